"""Its TypicalAcceptanceSampler, with the thresholds that its command has by default."""

import torch
from vllm.model_executor.layers.typical_acceptance_sampler import TypicalAcceptanceSampler

from benchmarks.samplers.networks import in_batch

sampler = TypicalAcceptanceSampler(0.09, 0.3)
sampler.init_tensors("cpu", "cpu")


def rule(proposal, q, rng):
    drafts, p, q = in_batch(proposal, q)
    ids = sampler(q, torch.multinomial(q[0, -1:], 1), p, drafts)
    return ids[ids >= 0]
