"""What decided an iteration: its drafts, the test of each that was tested, and the target's own draw."""

import numpy as np

from speculative.sampling import Step

N_TOP = 10  # tokens of a distribution that are kept, the likeliest


def details(step: Step) -> dict:
    """Of the step of a chain.

    -> {"drafts": ids [m],
        "tested": {"u", "p", "q", "passed", "top"} and what else the rule tells, for each draft that was tested,
        "own": {"from": "residual" or "q", "u", "top"}, how the target's own token was drawn; None if it was not}

    "top" has "tokens" and their "p" and "q", or in "own" their "probability".
    """
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for test, j, p_i, q_i in zip(step.tests, drafts, step.proposal.p, step.q, strict=False):  # p_i, q_i [n_vocab]
        top = likeliest(np.maximum(p_i, q_i), j)
        of_both = {"tokens": top, "p": rounded(p_i[top]), "q": rounded(q_i[top])}
        tested.append({**test._asdict(), "top": of_both})
    return {"drafts": drafts, "tested": tested, "own": own_token(step)}


def own_token(step: Step) -> dict | None:
    if step.own is None:
        return None
    u, left = step.own
    rejected = step.accepted < step.drafted
    residual = rejected and not np.may_share_memory(left, step.q)  # else nothing was left but q's own row
    top = likeliest(left, step.tokens[-1])
    return {
        "from": "residual" if residual else "q",
        "u": u,
        "top": {"tokens": top, "probability": rounded(left[top])},
    }


def likeliest(p, *others: int) -> list[int]:  # [n_vocab] -> ids
    """The N_TOP most probable tokens, without those of probability 0, and these others; the most probable first."""
    n = min(N_TOP, len(p))
    top = np.argpartition(p, -n)[-n:]  # [n]
    return sorted({*top[p[top] > 0].tolist(), *others}, key=lambda token: (-p[token], token))


def rounded(p) -> list[float]:  # [n]
    return [float(f"{value:.4g}") for value in p]
