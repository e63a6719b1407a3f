"""The details of an iteration: its drafts, the tests that decided about them, and the draw of the last token."""

from collections.abc import Sequence

import numpy as np

from speculative.rules import Rule
from speculative.sampling import Step

N_TOP = 10  # number of the likeliest tokens that are recorded of a distribution


def details(step: Step, rule: Rule, u: Sequence[float]) -> dict:
    """Return {"drafts", "tested", "own"} of a step that drafted a chain. u: the random numbers that the rule drew.
    docs/output.md explains the keys."""
    explained = rule.explain(step.proposal, step.q, u)
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for i, test in enumerate(explained.tests):
        p_i = step.proposal.p[i]  # [n_vocab]
        q_i = step.q[i]
        tokens = likeliest(np.maximum(p_i, q_i), drafts[i])
        top = {"tokens": tokens, "p": rounded(p_i[tokens]), "q": rounded(q_i[tokens])}
        numbers = {name: value for name, value in test._asdict().items() if value is not None}
        tested.append({**numbers, "top": top})
    q = explained.q  # [n_vocab]
    residual = step.accepted < step.drafted and not np.may_share_memory(q, step.q)
    tokens = likeliest(q, step.tokens[-1])
    top = {"tokens": tokens, "probability": rounded(q[tokens])}
    own = {"from": "residual" if residual else "q", "u": explained.u, "top": top}
    return {"drafts": drafts, "tested": tested, "own": own}


def likeliest(p, *others: int) -> list[int]:  # [n_vocab] -> ids
    """Return the N_TOP most probable tokens, without those of probability 0, and these others; the likeliest first."""
    n = min(N_TOP, len(p))
    top = np.argpartition(p, -n)[-n:]  # [n]
    return sorted({*top[p[top] > 0].tolist(), *others}, key=lambda token: (-p[token], token))


def rounded(p) -> list[float]:  # [n]
    return [float(f"{value:.4g}") for value in p]
