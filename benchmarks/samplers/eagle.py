"""Its processor of logits at temperature 1 is the identity."""

import torch
from eagle.model.utils import evaluate_posterior

from benchmarks.samplers.networks import decode_with_paths


def choose(logits, candidates):
    best, n_accepted, p = evaluate_posterior(logits, candidates, lambda _, row: row)
    return best, n_accepted, torch.multinomial(p, 1)


def speculative_sampling(x, draft_model, target_model, N, K):
    return decode_with_paths(choose, x, draft_model, target_model, N, K)
