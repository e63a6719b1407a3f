"""Middle_Spec(), whose drafts are passed on as draws from the rows that it returns: those are the target here."""

from types import SimpleNamespace

import torch
from utils.decoding import Middle_Spec


def speculative_sampling(x, draft_model, target_model, N, K):
    text = [*map(int, x)]

    def rows(model, input_ids):  # after each of the ids, the first of which is the text's last token
        return torch.tensor(model([*text[:-1], *input_ids[0].tolist()])[len(text) - 1 :])

    engine = SimpleNamespace(model=SimpleNamespace(device="cpu"), kv_cache=SimpleNamespace(seq_len=0))
    graph = SimpleNamespace(
        engine=engine,
        graph_draft_inference=lambda input_ids, gamma_offset: rows(draft_model, input_ids)[-1],
        graph_verify=lambda input_ids, position_ids: rows(target_model, input_ids),
    )
    while len(text) < len(x) + N:
        text += Middle_Spec(torch.tensor([[text[-1]]]), graph, K, False, None)[0][1:]
    return text
