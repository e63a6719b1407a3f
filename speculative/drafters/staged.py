"""Staged (multi-level) drafting: with a/b, model a drafts for the target, and b drafts for a.

It is speculative sampling once more, with a's model as the target. The tokens are distributed as a's own, so p are the
rows that a gave for their places, whichever drafter proposed them.

Source: Spector and Re 2023, "Accelerating LLM Inference with Staged Speculative Decoding"; Georganas et al. 2025,
"ML-SpecQD: Multi-Level Speculative Decoding with Quantized Drafts".
"""

from collections.abc import Callable

from speculative.drafters.base import Draft
from speculative.filters import margins_of
from speculative.sampling import Proposal, speculative_sampling


def staged(name: str, model: Callable, new_draft: Callable[[], Draft], K: int, rng, accept: Callable) -> Draft:
    """The drafter `name`, whose model is sped up by new_draft(), K tokens at a time. accept: a lossless rule."""

    def draft(x, k, go_on=None):  # [n], k -> [m], [m, n_vocab], m <= k
        tokens = []
        p = []
        source = []
        margins = []
        steps = []
        for step in speculative_sampling(x, new_draft(), model, k, K, rng, accept):
            n = len(step.tokens)
            steps.append(step)
            tokens += step.tokens
            p += [*step.q[:n]]
            source += [*step.proposal.source[: step.n_accepted], name]  # a step's last token is the model's own
            if go_on:  # asked after the draws, but by p: all tokens of the step stay
                margins += margins_of(getattr(model, "last_logits", step.q)[:n])
                if not all(map(go_on, margins[-n:])):
                    break
        return Proposal(tokens, p, source, steps, margins)

    return draft
