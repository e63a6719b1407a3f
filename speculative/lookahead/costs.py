"""The cost of a call by its rows, from the times of calls: one measure for the figures, the predictions and K auto."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import median, median_low

import numpy as np

from speculative.engines.model import Call

ByRows = dict[int, float]  # {rows: seconds of a call of the target}
N_RECENT = 20  # numbers that count
N_TIMED = 3  # times that each window is timed before a decode
LONG = 3  # a call of more than this many times the median was interrupted, and does not count


def usual_seconds(times: Sequence[float]) -> float:
    """Return the mean of these times, without those of calls that were interrupted."""
    longest = LONG * median_low(times)
    usual = [seconds for seconds in times if seconds <= longest]
    return sum(usual) / len(usual)


class Recent:
    """The last numbers of some kind."""

    def __init__(self, *numbers: float):
        self.numbers = numbers
        self.usual = numbers[0] if numbers else 0.0  # their mean, without those of calls that were interrupted

    def add(self, number: float) -> None:
        self.numbers = (*self.numbers, number)[-N_RECENT:]
        self.usual = usual_seconds(self.numbers)


def costs_by_rows(calls: Iterable[tuple[int, float]]) -> ByRows:
    """(rows, seconds) of each call, in any order -> {rows: usual seconds of a call}, the fewest rows first."""
    times: dict = defaultdict(list)
    for rows, seconds in calls:
        times[rows].append(seconds)
    return {rows: usual_seconds(times[rows]) for rows in sorted(times)}


def line_through(costs: ByRows) -> Callable[[int], float]:
    """Return the function rows -> cost through these {rows: cost}: linear between them, and beyond the largest with the
    slope from 1 row to it. One row that is missing costs as much as the cheapest call."""
    costs = {1: min(costs.values())} | costs
    sizes = sorted(costs)  # [n]
    seconds = [costs[rows] for rows in sizes]  # [n]
    slope = max(0.0, seconds[-1] - seconds[0]) / max(1, sizes[-1] - 1)

    @cache
    def cost(rows):
        return float(np.interp(rows, sizes, seconds)) + slope * max(0, rows - sizes[-1])

    return cost


def time_windows(time_window: Callable, sizes: Sequence[int]) -> ByRows:
    """Time windows of these sizes, in rows, in turns -> the medians. time_window(rows): the seconds of a call now."""
    turns = []
    for _ in range(N_TIMED):
        turns.append([time_window(rows) for rows in sizes])
    medians = map(median, zip(*turns, strict=True))
    return dict(zip(sizes, medians, strict=True))


class WindowCosts:
    """The seconds of a call of the target by its rows: those timed before the decode, times the slowdown since."""

    def __init__(self, costs: ByRows):
        """costs: those before the decode."""
        self.line_before = line_through(costs)  # rows -> seconds
        self.slowdown = Recent(1.0)  # seconds of a call now, over those of line_before

    def seconds(self, rows: int) -> float:
        """The seconds that such a call takes at present."""
        return self.slowdown.usual * self.line_before(rows)

    def learn(self, call: Call) -> None:  # an entry of the target's log
        expected = self.line_before(call.n_rows)
        if expected:  # a coarse clock may have measured 0
            self.slowdown.add(call.seconds / expected)
