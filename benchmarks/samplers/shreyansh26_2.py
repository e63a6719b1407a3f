"""Its probabilistic_verify() with drafts of our loop."""

from types import SimpleNamespace

from common.verification import probabilistic_verify

from benchmarks.samplers.networks import in_batch


def rule(proposal, q, rng):
    drafts, p, q = in_batch(proposal, q)
    output = SimpleNamespace(logits=q.log())
    return probabilistic_verify(lambda ids: output, [0], drafts[0].tolist(), p[0]).emitted_ids
