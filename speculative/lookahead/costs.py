"""The cost of a call by its rows, from the times of calls: one measure for the figures, the predictions and K auto."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import median_low

import numpy as np

ByRows = dict[int, float]  # {rows: seconds of a call of the target}
N_RECENT = 20  # numbers that count
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
