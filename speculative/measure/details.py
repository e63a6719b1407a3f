"""The details of an iteration: its drafts, the tests that decided about them, and the target's own draw."""

from typing import TypedDict

import numpy as np

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
    own: Own | None  # how the target's own token was drawn; None if it was not


class TreeDetails(TypedDict):
    """The nodes of a tree from number 1 on, as node 0 is the last token of the text; and the path that was walked."""

    tokens: list[int]
    parents: list[int]
    path: list[int]


def details(step: Step) -> Details:
    """The details of a step that drafted a chain."""
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for test, j, p_i, q_i in zip(step.tests, drafts, step.proposal.p, step.q, strict=False):  # p_i, q_i [n_vocab]
        top = likeliest(np.maximum(p_i, q_i), j)
        of_both = {"tokens": top, "p": rounded(p_i[top]), "q": rounded(q_i[top])}
        tested.append({**test._asdict(), "top": of_both})
    return {"drafts": drafts, "tested": tested, "own": own_token(step)}


def own_token(step: Step) -> Own | None:
    if step.own is None:
        return None
    u, q = step.own
    rejected = step.accepted < step.drafted
    residual = rejected and not np.may_share_memory(q, step.q)  # else nothing was left but q's own row
    top = likeliest(q, step.tokens[-1])
    return {
        "from": "residual" if residual else "q",
        "u": u,
        "top": {"tokens": top, "probability": rounded(q[top])},
    }


def likeliest(p, *others: int) -> list[int]:  # [n_vocab] -> ids
    """The N_TOP most probable tokens, without those of probability 0, and these others; the most probable first."""
    n = min(N_TOP, len(p))
    top = np.argpartition(p, -n)[-n:]  # [n]
    return sorted({*top[p[top] > 0].tolist(), *others}, key=lambda token: (-p[token], token))


def rounded(p) -> list[float]:  # [n]
    return [float(f"{value:.4g}") for value in p]
