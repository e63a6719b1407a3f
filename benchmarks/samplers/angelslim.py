"""Its processor of logits at temperature 1 is the identity."""

from angelslim.compressor.speculative.utils.util import evaluate_posterior

from benchmarks.samplers.networks import decode_with_paths


def speculative_sampling(x, draft_model, target_model, N, K):
    def choose(logits, candidates):
        return evaluate_posterior(logits, candidates, lambda _, row: row)

    return decode_with_paths(choose, x, draft_model, target_model, N, K)
