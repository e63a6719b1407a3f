"""The seconds of a window, as they change during a decode."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from speculative.lookahead.costs import Recent, line_through

N_TIMED = 3  # times that each window is timed before a decode


class WindowCosts:
    """The seconds of a call of the target by its rows: those timed before the decode, times the slowdown since."""

    def __init__(self):
        self.line_before: Callable | None = None  # rows -> seconds, through the times before the decode
        self.slowdown = Recent(1.0)  # seconds of a call now, over those of line_before

    def measure(self, time_window: Callable, sizes: Sequence[int]) -> None:
        """Time windows of these sizes, in rows, in turns. time_window(rows): the seconds of a call now."""
        turns = []
        for _ in range(N_TIMED):
            turns.append([time_window(rows) for rows in sizes])
        medians = map(median, zip(*turns, strict=True))
        costs = dict(zip(sizes, medians, strict=True))
        # At the end, so that an interrupted measurement counts for nothing.
        self.line_before = line_through(costs)

    def seconds(self, rows: int) -> float:
        """The seconds that such a call takes at present."""
        return self.slowdown.usual * self.line_before(rows)

    def learn(self, call: Any) -> None:  # an entry of the target's log
        expected = self.line_before(call.n_rows)
        if expected:  # a coarse clock may have measured 0
            self.slowdown.add(call.seconds / expected)
