"""Its speculative_decode(), which generate() calls for each window."""

import torch
from torchchat.generate import LocalGenerator

from benchmarks.samplers.networks import Placed, by_windows


def speculative_sampling(x, draft_model, target_model, N, K):
    def window(text):
        models = Placed(target_model, text), Placed(draft_model, text)
        loop = LocalGenerator.__new__(LocalGenerator)
        return loop.speculative_decode(*models, torch.tensor(text[-1:]), len(text) - 1, K, temperature=1.0)

    return by_windows(window, x, N)
