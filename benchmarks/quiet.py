"""Runs whose times can be shown: a doubtful or disturbed one is decoded again, and after a few tries refused."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from speculative.engines.system import seconds_waited
from speculative.report.doubt import disturbance, is_quiet
from speculative.report.record import Figures
from speculative.support.errors import UserError

TRIES = 4
DOUBTED = "do not trust it"  # what a run's ending says of a doubtful speedup
Result = TypeVar("Result")


def trouble(figures: Figures) -> str | None:
    """Return why the times of a run cannot be shown, or None."""
    return figures.doubt or disturbance(figures)


def undisturbed(
    measure: Callable[[], Result], trouble_of: Callable[[Result], str | None], busy: bool = False
) -> Result:
    """Return the result of measure(), once it has no trouble. busy: take the first. Raises UserError after a few
    tries."""
    reason = None
    for number in range(1, TRIES + 1):
        result = measure()
        reason = trouble_of(result)
        if busy or not reason:
            return result
        print(f"disturbed, try {number} of {TRIES}: {reason}", file=sys.stderr, flush=True)
    raise UserError(f"{TRIES} runs were disturbed, the last as {reason}: try again when the machine is at rest")


def with_waits(measure: Callable[[], Result]) -> tuple[Result, str | None]:
    """Return the result of measure(), and why its times cannot be shown, or None."""
    began = time.perf_counter()
    before = seconds_waited()
    result = measure()
    waited = seconds_waited() - before
    if is_quiet(waited, time.perf_counter() - began):
        return result, None
    return result, f"the threads waited {waited:.3g} s for cores that other programs used"


def add_busy(add: Callable) -> None:
    """Add the flag that takes disturbed runs too."""
    add("--busy", action="store_true", help="take disturbed runs too, whose times are wrong")
