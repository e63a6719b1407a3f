"""Its _verify_and_accept_tokens() with drafts of our loop; it draws no token after a window whose drafts all stay."""

from speculative_decoding.algorithms.optimized_speculative_decoding_v2 import OptimizedSpeculativeDecoderV2

from benchmarks.samplers.networks import in_batch


def rule(proposal, q, rng):
    drafts, p, q = in_batch(proposal, q)
    return OptimizedSpeculativeDecoderV2._verify_and_accept_tokens(None, drafts, p.log(), q[:, :-1].log())[0][0]
