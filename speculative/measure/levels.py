"""What the target's own copy would bring: a prediction from a run without it."""

from typing import NamedTuple

from speculative.costs import best_k
from speculative.drafters.self import KIND
from speculative.measure.timing import cost_of_rows

K_MAX = 16  # the largest K that is considered
WORTH = 1.1  # times the measured speedup, from which on it is said
LARGE = (
    2**28
)  # bytes of a target's weights: smaller ones are not bound by memory, and a row in fewer bytes is no cheaper


class Levels(NamedTuple):
    """Lookaheads of the copy and of the draft model under it, and the speedup that they are predicted to bring."""

    K: int
    inner_K: int
    speedup: float


def with_copy(f: dict, row: float) -> Levels:
    """f: figures() of a run with the draft model alone. row: the cost of a row of the copy in rows of the target, which
    is about its share of the target's bytes.

    The draft model is taken to be accepted by the copy as it is by the target, a window of the copy to cost as many
    rows as one of the target, and the copy's drafts to be accepted as often as its kind expects. Scaled by what this
    run had over what was predicted for it.
    """
    beta = cost_of_rows(f["beta"])
    inner_K, inner_speedup = best_k([f["alpha"]] * K_MAX, f["c"] / row, beta)
    passed, of = KIND.expected
    K, speedup = best_k([passed / of] * K_MAX, row / inner_speedup, beta)
    return Levels(K, inner_K, speedup * f["speedup_without_prefill"] / f["predicted_blog"])


def advice(f: dict, row: float, copy_bytes: float, target_bytes: float) -> str | None:
    """A sentence where the copy is predicted to bring more than what was had; else None."""
    if target_bytes < LARGE or f["busy"] or f["c"] is None or f["alpha"] is None or f["tree"]:
        return None
    found = with_copy(f, row)
    if found.K == 0 or found.inner_K == 0 or found.speedup < WORTH * f["speedup_without_prefill"]:
        return None
    flags = f"--drafter self/model --K {found.K}/{found.inner_K}"
    return f"{flags} is predicted to bring {found.speedup:.1f}x, for {copy_bytes / 1e9:.1f} GB more memory."
