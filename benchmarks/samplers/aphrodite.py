"""Its RejectionSampler: the parameters are one of the law's forms."""

import torch
from aphrodite.modeling.layers.rejection_sampler import RejectionSampler

sampler = RejectionSampler(disable_bonus_tokens=False)
sampler.num_accepted_tokens = sampler.num_emitted_tokens = torch.tensor(0)
rule = sampler.forward
