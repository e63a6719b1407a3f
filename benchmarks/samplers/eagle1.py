"""EAGLE-1 in a chain, with its temperature at 0.5."""

import torch
from model.eagle.utils import evaluate_posterior

TEMPERATURE = 0.5


def speculative_sampling(x, draft_model, target_model, N, K):
    text = [*map(int, x)]
    while len(text) < len(x) + N:
        path, op = list(text), []
        for _ in range(K):
            op.append(torch.tensor(draft_model(path)[-1:]))  # [1, n_vocab]
            path.append(int(torch.multinomial(op[-1][0], 1)))
        drafts = torch.tensor([path[len(text) - 1 :]])  # [1, K + 1]
        chances = torch.cat([torch.ones(1), torch.cat(op)[range(K), drafts[0, 1:]]])[None]
        logits = TEMPERATURE * torch.tensor(target_model(path)[len(text) - 1 :]).double().log()[None]
        places = [[0] * (K + 1)], drafts, [[[]] * (K + 1)]
        _, n, p = evaluate_posterior(logits, drafts, lambda _, row: row / TEMPERATURE, chances, op, *places)
        text = [*path[: len(text) + n], int(torch.multinomial(p, 1))]
    return text
