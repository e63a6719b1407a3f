"""A level that has another one inside it: in a/b, a drafts, and b drafts for a.

It is speculative sampling once more, with a's model as the target. What comes out is distributed as a's own text, so p
are the rows that a gave for these places, whoever proposed the tokens.

Source: Spector and Re 2023, "Accelerating LLM Inference with Staged Speculative Decoding"; Georganas et al. 2025,
"ML-SpecQD: Multi-Level Speculative Decoding with Quantized Drafts", for a level that is the target itself, rounded.
"""

from collections.abc import Callable

import numpy as np

from speculative.drafters.base import NOTHING, Proposal, no_record
from speculative.lookahead import decode_chain


def level(
    name: str, model: Callable, draft: Callable, K, rng: np.random.Generator, record: Callable = no_record
) -> Callable:
    """The drafter `name`, whose model is sped up by draft. K: a number, or an AutoK.

    record: Parts.record. draft has to draw from the same rng: another of the same seed would not be independent.
    """

    def drafted(x, k):  # [n], k -> [k], [k, n_vocab]
        tokens = []
        p = []
        by = []
        proposal = NOTHING  # until the drafter is asked, which an AutoK may never do
        q = None

        def proposed(x, k):
            nonlocal proposal
            proposal = draft(x, k)
            return proposal

        def scored(x, n_last=1):
            nonlocal q
            q = model(x, n_last)  # [n_last, n_vocab]
            return q

        def steps(model, draft):
            return decode_chain(x, draft, model, k, K, rng)

        for step in record(name, scored, proposed, steps):
            tokens += step.tokens
            p += [*q[: len(step.tokens)]]
            by += [*proposal.by[: step.accepted], name]  # the last token of a step is the model's own
        return Proposal(tokens, p, by)

    return drafted
