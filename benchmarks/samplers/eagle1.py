"""EAGLE-1 in a chain, with its temperature at 0.5 and drafts of our loop."""

import torch
from model.eagle.utils import evaluate_posterior

from benchmarks.samplers.networks import from_last, in_batch

TEMPERATURE = 0.5


def rule(proposal, q, rng):
    drafts, p, q = in_batch(proposal, q)
    ids, m = from_last(drafts), drafts.shape[1]
    chances = torch.cat([torch.ones(1), p[0, range(m), drafts[0]]])[None]
    places = [[0] * (m + 1)], ids, [[[]] * (m + 1)]  # a chain: each draft has its row, and no siblings
    scaled = TEMPERATURE * q.log(), ids, lambda _, row: row / TEMPERATURE
    _, n, row = evaluate_posterior(*scaled, chances, p[0, :, None], *places)
    return [*drafts[0, :n].tolist(), int(torch.multinomial(row, 1))]
