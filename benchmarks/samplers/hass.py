"""Its evaluate_posterior() with a processor of temperature 0.5."""

import torch
from model.utils import evaluate_posterior

from benchmarks.samplers.networks import decode_with_paths

TEMPERATURE = 0.5


def choose(logits, candidates):
    scaled = TEMPERATURE * logits
    best, n_accepted, p = evaluate_posterior(scaled, candidates, lambda _, row: row / TEMPERATURE)
    return best, n_accepted, torch.multinomial(p, 1)


def speculative_sampling(x, draft_model, target_model, N, K):
    return decode_with_paths(choose, x, draft_model, target_model, N, K)
