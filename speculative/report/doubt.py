"""Whether the times of a run can be right. The noisier the machine, the more is doubted."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from speculative.report.record import Comparison, Figures, Times
from speculative.run.steps import TextStep

NOISE = 0.05  # share of a time; on a machine at rest smaller differences may be chance
DISAGREE = 0.5  # share; on a machine at rest, a measured speedup and an account farther apart cannot both be right
DISAGREE_LEAST = 0.2  # share; the same on a machine that is never at rest
DISTURBED = 0.25  # share of the decodes' time; threads that waited longer for a core disturbed the times
MIN_ITERATIONS = 5  # iterations from which a speedup and its account can disagree
STEADY = 1.15  # the median / the least time of equal calls: if it is less, threads that waited did so elsewhere
MIN_CALLS = 3  # equal calls from which their spread is known


def is_quiet(waited: float, seconds: float) -> bool:
    """Return True if threads waited for cores for a small part of these seconds."""
    return waited <= DISTURBED * seconds


def disturbance(times: Times) -> str | None:
    """Say for how long threads had no core. None if that took little of the decodes' time."""
    whole = times.seconds.speculative + (times.seconds.autoregressive or 0.0)
    if times.waited < DISTURBED * whole:
        return None
    return f"the threads together waited {times.waited:.3g} s for cores that other programs used"


def spread_of(steps: Sequence[TextStep]) -> float | None:
    """Return the median / the least time of the calls with one row; None if no call was timed by itself."""
    rows = [step.seconds for step in steps if step.seconds and not step.prefill and not step.derived]
    return median(rows) / min(rows) if rows else None


def are_steady(steps: Sequence[TextStep]) -> bool:
    """Return True if equal calls of the target took about the same time in these steps."""
    by_rows = defaultdict(list)
    for step in steps:
        if step.seconds and not step.prefill:
            by_rows[step.drafted + 1].append(step.seconds - step.drafting)
    often = [times for times in by_rows.values() if len(times) >= MIN_CALLS]
    if not often:
        return False
    spreads = [median(times) / min(times) for times in often]
    return max(spreads) < STEADY


def reason_to_doubt(f: Figures, comparison: Comparison, spread: float | None) -> str | None:
    """Return the reason to doubt the measured speedup, or None.

    A target call that gives n tokens allows a speedup of n at most, if it costs as much as a call with one row. spread:
    of the times of calls with one row. It only makes the limits narrower: a disturbed machine excuses no figure.
    """
    noise = 0.0 if disturbance(f) else NOISE / (spread or 1)
    most = f.tokens_per_iteration
    limit = (1 + noise) * most
    without = comparison.speedup_without_prefill
    if comparison.speedup > limit:
        return f"a call of the target gave {most:.2f} tokens, so the text cannot have been that much faster"
    if without > limit:
        return f"without the prompt it would be {without:.2f}, but a call of the target gave only {most:.2f} tokens"
    account = f.account
    if not account:
        return None
    if spread and account.mean_beta < 1 - NOISE:
        return "calls of the target with several tokens took less time than calls with one"
    apart = without / account.account_blog
    limit = 1 + max(DISAGREE_LEAST, DISAGREE / (spread or 1))
    if f.iterations >= MIN_ITERATIONS and not 1 / limit < apart < limit:
        return f"the times of the single calls, put into the blog's formula with β, give {account.account_blog:.2f}"
    return None
