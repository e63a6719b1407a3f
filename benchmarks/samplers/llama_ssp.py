"""At its own temperature, 0.5. Its tokenizer is not made."""

import torch
from lssp.base import TEMPERATURE
from lssp.ssp import ssp

from benchmarks.samplers.networks import Network


def speculative_sampling(x, draft_model, target_model, N, K):
    models = Network(target_model, TEMPERATURE), Network(draft_model, TEMPERATURE)
    return ssp(*models, N, torch.tensor([x]), K)[0]
