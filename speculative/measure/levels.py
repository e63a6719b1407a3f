"""A prediction, from a run without them, of the speedup that levels with the target's own copy would bring."""

from typing import NamedTuple

from speculative.drafters import DRAFTERS
from speculative.lookahead import best_k
from speculative.measure.timing import cost_of_rows

K_MAX = 8  # the largest K that is considered: the cost of longer windows does not follow from that of short ones
WORTH = 1.1  # times the speedup without it, from which on it is said
LARGE = 2**28  # bytes of weights; a smaller target is not bound by memory, so fewer bytes make no cheaper row


class Levels(NamedTuple):
    """Lookaheads of the copy and of the draft model under it, and the speedup that they are predicted to bring."""

    K: int
    inner_K: int
    speedup: float


def with_copy(f: dict, row: float) -> Levels:
    """f: figures() of a run with the draft model alone. row: the cost of a row of the copy in rows of the target, which
    is about its share of the target's bytes.

    It is assumed that the copy accepts the draft model's tokens as often as the target does, that a window of the copy
    costs as many of its rows as the target's does, and that the target accepts the copy's as often as its spec expects.
    The result is scaled by this run's own error: its measured speedup over the predicted one.
    """
    beta = cost_of_rows({int(rows): cost for rows, cost in f["beta"].items()})
    inner_K, inner_speedup = best_k([f["alpha"]] * K_MAX, f["c"] / row, beta)
    passed, of = DRAFTERS["int8"].expected
    K, speedup = best_k([passed / of] * K_MAX, row / inner_speedup, beta)
    return Levels(K, inner_K, speedup * f["speedup_without_prefill"] / f["predicted_blog"])


def advice(f: dict, row: float, copy_bytes: float, target_bytes: float) -> str | None:
    """A sentence where the copy is predicted to bring more than what was measured, and than another K; else None."""
    if target_bytes < LARGE or f["busy"] or f["c"] is None or f["alpha"] is None or f["tree"]:
        return None
    K, inner_K, speedup = with_copy(f, row)
    without = f["speedup_without_prefill"]
    if f["better_K"]:
        without *= 1 + f["better_K"]["gain"]
    if K == 0 or inner_K == 0 or speedup < WORTH * without:
        return None
    flags = f"--drafter int8/model --K {K}/{inner_K}"
    return f"{flags} is predicted to bring {speedup:.1f}x, for {copy_bytes / 1e9:.1f} GB more memory."
