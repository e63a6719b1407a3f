"""What decided an iteration: its drafts, u, p and q of each that was tested, and the target's own draw."""

from collections.abc import Sequence

import numpy as np

from speculative.sampling import Step, max_fn

N_TOP = 10  # tokens of a distribution that are kept, the likeliest


def details(step: Step, x_draft, p, q, draws: Sequence[float], lenience: float = 1.0) -> dict:
    """x_draft [m], p [m, n_vocab] and q [m + 1, n_vocab] of a step; draws: the random numbers after the target's call.

    -> {"drafts": ids [m],
        "tested": {"u", "p", "q", "top"} for each draft that was tested: it was accepted if u * p < q,
        "own": {"from": "residual" or "q", "u", "top"}, how the target's own token was drawn; None if it was not}

    "top" has "tokens" and their "p" and "q", or in "own" their "probability".
    """
    n_tested = min(step.accepted + 1, step.drafted)
    drafts = [int(token) for token in x_draft[: step.drafted]]
    own = None
    if len(step.tokens) > step.accepted:  # else a stop text came before
        own = own_token(step, p, q, draws[n_tested])
    tested = []
    for j, p_i, q_i, draw in zip(drafts[:n_tested], p, q, draws, strict=False):  # id, [n_vocab], [n_vocab], u
        top = likeliest(np.maximum(p_i, q_i), j)
        tested.append(
            {
                "u": draw * lenience,
                "p": float(p_i[j]),
                "q": float(q_i[j]),
                "top": {"tokens": top, "p": rounded(p_i[top]), "q": rounded(q_i[top])},
            }
        )
    return {"drafts": drafts, "tested": tested, "own": own}


def own_token(step: Step, p, q, u: float) -> dict:  # [m, n_vocab], [m + 1, n_vocab]
    """How the target's own token was drawn: from what a rejection leaves of q, else from q."""
    drawn_from = q[step.accepted]  # [n_vocab]
    name = "q"
    if step.accepted < step.drafted:
        residual = max_fn(drawn_from - p[step.accepted])  # [n_vocab]
        if residual.any():
            drawn_from = residual
            name = "residual"
    top = likeliest(drawn_from, step.tokens[-1])
    return {"from": name, "u": u, "top": {"tokens": top, "probability": rounded(drawn_from[top])}}


def likeliest(p, *others: int) -> list[int]:  # [n_vocab] -> ids
    """The N_TOP most probable tokens, without those of probability 0, and these others; the most probable first."""
    n = min(N_TOP, len(p))
    top = np.argpartition(p, -n)[-n:]  # [n]
    return sorted({*top[p[top] > 0].tolist(), *others}, key=lambda token: (-p[token], token))


def rounded(p) -> list[float]:  # [n]
    return [float(f"{value:.4g}") for value in p]
