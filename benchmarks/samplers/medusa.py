"""Typical acceptance at temperature 1, with its defaults; the next token is the likeliest, as in its fast mode."""

from medusa.model.utils import evaluate_posterior

from benchmarks.samplers.networks import decode_with_paths


def choose(logits, candidates):
    best, n_accepted = evaluate_posterior(logits, candidates, 1.0)
    return best, n_accepted, logits[best, n_accepted].argmax()


def speculative_sampling(x, draft_model, target_model, N, K):
    return decode_with_paths(choose, x, draft_model, target_model, N, K)
