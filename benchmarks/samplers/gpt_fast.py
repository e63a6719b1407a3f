"""Its whole generate()."""

import torch
from generate import generate

from benchmarks.samplers.networks import Placed


def speculative_sampling(x, draft_model, target_model, N, K):
    draft, target = Placed(draft_model), Placed(target_model)
    ids, _ = generate(target, torch.tensor(x, dtype=torch.int), N, interactive=False, draft_model=draft, speculate_k=K)
    return ids
