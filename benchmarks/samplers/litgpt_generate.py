"""Its generate()."""

import torch
from litgpt.generate.speculative_decoding import generate

from benchmarks.samplers.networks import Placed


def speculative_sampling(x, draft_model, target_model, N, K):
    models = Placed(draft_model), Placed(target_model)
    for model in models:
        model.setup_caches()
        model.modules = list
    return generate(*models, torch.tensor(x), len(x) + N + 1, speculative_k=K)[0]
