"""The tests of a step's drafts, rebuilt from the random numbers that were drawn for it.

Whose numbers they are: in a step the drafter draws first, then the rule, both from the decoder's one generator. The
rule draws one number for each test and one more for the last token of the step. So the last numbers are the rule's, and
from them, p and q Rule.judge gives the same tests once more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from speculative.rules import Rule
from speculative.sampling import Step

N_TOP = 10  # number of the likeliest tokens that are recorded of a distribution


@dataclass
class RecordedRandom:
    """A random generator that remembers its draws: the tests of a step can be rebuilt from them."""

    rng: np.random.Generator
    u: list[float] = field(default_factory=list)

    def random(self, *size):
        drawn = self.rng.random(*size)
        self.u += np.ravel(drawn).tolist()
        return drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rng, name)  # other methods, which a user's rule may call


def explain_step(step: Step, rule: Rule, u: Sequence[float], n: int) -> dict:
    """Return {"drafts", "tested", "own"} of a step that drafted a chain: its drafts, the tests that decided about them,
    and the draw of the last token. u: random numbers, of which the last are the rule's. n: the tokens that are shown; a
    stop text has cut the others."""
    tests, q = rule.explain(step, u)
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for token, test, p_i, q_i in zip(drafts[:n], tests, step.proposal.p, step.q, strict=False):
        tested.append({"token": token, **test, "top": likeliest_rows(np.maximum(p_i, q_i), token, p_i, q_i)})
    if n < len(step.tokens):
        return {"drafts": drafts, "tested": tested, "own": None}
    token = int(step.tokens[-1])
    residual = step.accepted < step.drafted and not np.may_share_memory(q, step.q)
    own = {
        "token": token,
        "from": "residual" if residual else "q",
        "u": u[-1],
        "top": likeliest_rows(q, token, q),
    }
    return {"drafts": drafts, "tested": tested, "own": own}


def likeliest_rows(order, token: int, *columns) -> list[list]:  # [n_vocab] each -> rows
    """Return the rows [id, its probabilities] of the N_TOP tokens that are the first by this order, without those of
    probability 0, and of this token."""
    n = min(N_TOP, len(order))
    first = np.argpartition(order, -n)[-n:]  # [n]
    ids = sorted({*first[order[first] > 0].tolist(), token}, key=lambda id: (-order[id], id))
    return [[id, *(float(f"{column[id]:.4g}") for column in columns)] for id in ids]
