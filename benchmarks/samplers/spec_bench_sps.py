"""Its copy of transformers' acceptance; two names that its file imports are no longer in transformers."""

import transformers.generation.candidate_generator as candidates
import transformers.generation.utils as utils

from benchmarks.samplers.networks import in_batch

utils.GreedySearchOutput = candidates._crop_past_key_values = None

from model.sps.decoding import _speculative_sampling  # noqa: E402


def rule(proposal, q, rng):
    drafts, p, q = in_batch(proposal, q)
    m = drafts.shape[1]
    return _speculative_sampling(drafts, p.log(), m, q.log(), False, m)[0][0]
