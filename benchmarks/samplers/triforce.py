"""Middle_Spec(), whose drafts are passed on as draws from the rows that it returns: those are the target here."""

from unittest.mock import MagicMock

import torch
from utils.decoding import Middle_Spec

from benchmarks.samplers.networks import by_windows


def speculative_sampling(x, draft_model, target_model, N, K):
    def window(text):
        def rows(model, input_ids):  # after each of the ids, the first of which is the text's last token
            return torch.tensor(model([*text[:-1], *input_ids[0].tolist()])[len(text) - 1 :])

        graph = MagicMock()
        graph.engine.model.device, graph.engine.kv_cache.seq_len = "cpu", 0
        graph.graph_draft_inference = lambda input_ids, **_: rows(draft_model, input_ids)[-1]
        graph.graph_verify = lambda input_ids, **_: rows(target_model, input_ids)
        return torch.tensor(Middle_Spec(torch.tensor([[text[-1]]]), graph, K, False, None)[0][1:])

    return by_windows(window, x, N)
