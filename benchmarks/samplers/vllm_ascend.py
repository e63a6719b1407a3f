"""Its rejection_sample() as it is without Triton, with drafts of our loop; vLLM's own names are given here."""

from types import SimpleNamespace

import torch
from vllm_ascend.sample import rejection_sampler as theirs

from benchmarks.samplers.networks import Unpinned, in_batch

theirs.torch, theirs.HAS_TRITON = Unpinned(), False
theirs.PLACEHOLDER_TOKEN_ID, theirs.GREEDY_TEMPERATURE = -1, 0
theirs.generate_uniform_probs = lambda n, *_: torch.rand(n, dtype=torch.float64)
options = theirs.get_ascend_config().rejection_sampler_config
options.enable_block_verify = options.enable_entropy_verify = False


def rule(proposal, q, rng):
    drafts, p, q = (tensor[0] for tensor in in_batch(proposal, q))
    m = len(drafts)
    about = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(1), generators={})
    bonus = torch.multinomial(q[-1:], 1)
    ids = theirs.rejection_sample(drafts, [m], m, torch.tensor([m]), p, q[:-1].log(), bonus, about)
    return ids[ids >= 0]
