"""Its sample() refuses token 0, so all tokens are moved up by one."""

import torch
from sampling.speculative_sampling import speculative_sampling_v2 as theirs

from benchmarks.samplers.networks import Network, moved_up


def speculative_sampling(x, draft_model, target_model, N, K):
    models = Network(moved_up(draft_model, 1)), Network(moved_up(target_model, 1))
    return theirs(torch.tensor([x + 1]), *models, N, K)[0] - 1
