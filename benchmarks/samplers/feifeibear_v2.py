"""Its sample() refuses token 0, so all tokens are moved up by one."""

import numpy as np
import torch
from sampling.speculative_sampling import speculative_sampling_v2 as theirs

from benchmarks.samplers.networks import Network


def moved(model):
    return Network(lambda x: np.pad(model(np.maximum(np.array(x) - 1, 0)), ((0, 0), (1, 0))))


def speculative_sampling(x, draft_model, target_model, N, K):
    ids = theirs(torch.tensor([x + 1]), moved(draft_model), moved(target_model), N, K)
    return ids[0] - 1
