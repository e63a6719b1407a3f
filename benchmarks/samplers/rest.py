"""At temperature 1 with a top-p that cuts nothing; the token after the drafts is drawn anew, as in its next step."""

import torch
from rest.model.utils import evaluate_posterior

from benchmarks.samplers.networks import decode_with_paths


def choose(logits, candidates):
    best, n_accepted = evaluate_posterior(logits.clone(), candidates, 1.0, 0.9999999)
    return best, n_accepted, torch.multinomial(logits[best, n_accepted].softmax(0), 1)


def speculative_sampling(x, draft_model, target_model, N, K):
    return decode_with_paths(choose, x, draft_model, target_model, N, K)
