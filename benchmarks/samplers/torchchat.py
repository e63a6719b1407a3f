"""Its speculative_decode() in a loop of ours."""

import torch
from torchchat.generate import LocalGenerator

from benchmarks.samplers.networks import Placed


def speculative_sampling(x, draft_model, target_model, N, K):
    text, draft, target = torch.tensor(x, dtype=torch.int), Placed(draft_model), Placed(target_model)
    loop = LocalGenerator.__new__(LocalGenerator)
    while len(text) < len(x) + N:
        n = len(text)
        for model in (draft, target):
            model.setup_caches()
            model.text[:n] = text
            model.config.model_type = None
        text = torch.cat([text, loop.speculative_decode(target, draft, text[-1:], n - 1, K, temperature=1.0)])
    return text
