"""Its generate()."""

import torch
from litgpt.generate.speculative_decoding import generate

from benchmarks.samplers.networks import Placed


def speculative_sampling(x, draft_model, target_model, N, K):
    models = Placed(draft_model), Placed(target_model)
    return generate(*models, torch.tensor(x), len(x) + N + 1, speculative_k=K)[0]
