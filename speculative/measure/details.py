"""The details of an iteration: its drafts, the tests that decided about them, and the draw of the last token."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from speculative.rules import Rule
from speculative.sampling import Step

N_TOP = 10  # tokens of a distribution that are kept, the likeliest


class Top(TypedDict):
    tokens: list[int]
    p: list[float]
    q: list[float]


class Drawn(TypedDict):
    tokens: list[int]
    probability: list[float]


# A rule may tell more of a test.
class Tested(TypedDict):
    u: float
    p: float
    q: float
    passed: bool
    top: Top


# from: "residual" or "q"
Own = TypedDict("Own", {"from": str, "u": float, "top": Drawn})


class Details(TypedDict):
    drafts: list[int]  # [m]
    tested: list[Tested]  # of each draft that was tested, in order
    own: Own | None  # the draw of the target's own token; None if a stop text cut it


class TreeDetails(TypedDict):
    """The nodes of a tree from number 1 on, as node 0 is the last token of the text; and the accepted path."""

    tokens: list[int]
    parents: list[int]
    path: list[int]


def details(step: Step, rule: Rule, u: Sequence[float]) -> Details:
    """The details of a step that drafted a chain. u: the random numbers that the rule drew."""
    explained = rule.explain(step.proposal, step.q, u)
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for i, test in enumerate(explained.tests):
        p_i = step.proposal.p[i]  # [n_vocab]
        q_i = step.q[i]
        top = likeliest(np.maximum(p_i, q_i), drafts[i])
        of_both = {"tokens": top, "p": rounded(p_i[top]), "q": rounded(q_i[top])}
        known = {name: value for name, value in test._asdict().items() if value is not None}
        tested.append({**known, "top": of_both})
    q = explained.q  # [n_vocab]
    residual = step.accepted < step.drafted and not np.may_share_memory(q, step.q)
    top = likeliest(q, step.tokens[-1])
    own = {"from": "residual" if residual else "q", "u": explained.u}
    return {"drafts": drafts, "tested": tested, "own": own | {"top": {"tokens": top, "probability": rounded(q[top])}}}


def likeliest(p, *others: int) -> list[int]:  # [n_vocab] -> ids
    """The N_TOP most probable tokens, without those of probability 0, and these others; the most probable first."""
    n = min(N_TOP, len(p))
    top = np.argpartition(p, -n)[-n:]  # [n]
    return sorted({*top[p[top] > 0].tolist(), *others}, key=lambda token: (-p[token], token))


def rounded(p) -> list[float]:  # [n]
    return [float(f"{value:.4g}") for value in p]
