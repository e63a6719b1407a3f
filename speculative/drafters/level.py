"""A level that has another one inside it: in a/b, a drafts, and b drafts for a.

It is speculative sampling once more, with a's model as the target. What comes out is distributed as a's own text, so p
are the rows that a gave for these places, whoever proposed the tokens.

Source: Spector and Re 2023, "Accelerating LLM Inference with Staged Speculative Decoding"; Georganas et al. 2025,
"ML-SpecQD: Multi-Level Speculative Decoding with Quantized Drafts", for a level that is the target itself, rounded.
"""

from collections.abc import Callable

import numpy as np

from speculative.drafters.base import Proposal, no_record
from speculative.lookahead import decode_chain
from speculative.sampling import token_by_token


def level(
    name: str,
    model: Callable,
    draft: Callable,
    K,
    rng: np.random.Generator,
    record: Callable = no_record,
    accept: Callable = token_by_token,
) -> Callable:
    """The drafter `name`, whose model is sped up by draft. K: a number, or an AutoK.

    record: Parts.record. draft has to draw from the same rng: another of the same seed would not be independent.
    accept: a lossless rule, as p has to be what the tokens were drawn from.
    """

    def drafted(x, k):  # [n], k -> [k], [k, n_vocab]
        tokens = []
        p = []
        by = []

        def steps(model, draft):
            return decode_chain(x, draft, model, k, K, rng, accept)

        for step in record(name, model, draft, steps):
            tokens += step.tokens
            p += [*step.q[: len(step.tokens)]]
            by += [*step.proposal.by[: step.accepted], name]  # the last token of a step is the model's own
        return Proposal(tokens, p, by)

    return drafted
