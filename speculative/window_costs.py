"""The seconds of a window, as they change during a decode."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from speculative.costs import line_through, usual_seconds

N_RECENT = 20  # calls whose times count
N_TIMED = 3  # times that each window is timed before a decode


class Recent:
    """The last numbers of some kind."""

    def __init__(self, *numbers: float):
        self.numbers = numbers
        self.usual = numbers[0] if numbers else 0.0  # their mean, without those of calls that were interrupted

    def add(self, number: float) -> None:
        self.numbers = (*self.numbers, number)[-N_RECENT:]
        self.usual = usual_seconds(self.numbers)


class WindowCosts:
    """The seconds of a call of the target by its rows: those timed before the decode, times the slowdown since."""

    def __init__(self):
        self.seconds_before: Callable | None = None  # rows -> seconds: the line through the times before the decode
        self.slowdown = Recent(1.0)  # seconds of a call now, over seconds_before

    def measure(self, time_window: Callable, sizes: Sequence[int]) -> None:
        """Time windows of these sizes, in rows, in turns. time_window(rows): the seconds of a call now."""
        turns = []
        for _ in range(N_TIMED):
            turns.append([time_window(rows) for rows in sizes])
        medians = map(median, zip(*turns, strict=True))
        costs = dict(zip(sizes, medians, strict=True))
        # At the end, so that an interrupted measurement counts for nothing.
        self.seconds_before = line_through(costs)

    def seconds(self, rows: int) -> float:
        """The seconds that such a call takes at present."""
        return self.slowdown.usual * self.seconds_before(rows)

    def learn(self, call: Any) -> None:  # an entry of the target's log
        expected = self.seconds_before(call.n_rows)
        if expected:  # a coarse clock may have measured 0
            self.slowdown.add(call.seconds / expected)
