"""Races: which of many random numbers is the largest, one fork in the place of one for each comparison.

The usual way to draw from p without adding up is the argmax of log p + Gumbel noise, or of p / exponential noise. Both
are a race of exponential times: number i arrives after a time with rate p[i], and the first to arrive wins. So i wins
with the chance p[i] / Σ p. And the race among the rest goes on as if it began then, which gives the second place.

Only values tell that numbers are in such a race, as for unknown.py: where two of them are equal, the time of the one is
a fixed multiple of the time of the other.
"""

from functools import cache

import numpy as np

from speculative.laws.unknown import (
    ENDS,
    LEAST,
    Computed,
    Uniform,
    UnknownNumber,
    ends_of,
    likely,
    switch,
    value_at,
)
from speculative.support.errors import UserError

TIMES = np.array([0.0001, 0.0002, 0.0004])  # [3], at which two numbers are compared


def largest(row) -> int:  # [n] of numbers, unknown ones among them -> the place of the largest
    """Raises UserError if they are not in a race."""
    return largest_first(row, 1)[0]


def largest_first(row, k: int) -> list[int]:  # [n] -> [k], places from the largest down
    """Raises UserError if they are not in a race."""
    racing: dict[int, UnknownNumber] = {}
    fixed: dict[int, float] = {}
    for i, number in enumerate(row):
        if isinstance(number, UnknownNumber):
            racing[i] = number
        else:
            fixed[i] = number
    lows = [min(ends_of(number.steps)) for number in racing.values()]
    if lows and fixed and max(fixed.values()) > min(lows):
        raise UserError("an argmax of random numbers and others, which they may be below, cannot be followed")
    if len(racing) > 1:
        check_start([number.u for number in racing.values()])
    falling = sorted(fixed, key=fixed.__getitem__, reverse=True)
    return [*winners(racing, k), *falling][:k]


def check_start(numbers: list[Uniform]) -> None:
    """Raise UserError if these have been seen before, or one is in the race twice."""
    if len({*numbers}) < len(numbers) or not all(u.is_new for u in numbers):
        raise UserError("an argmax of random numbers of which something is known cannot be followed")


def winners(numbers: dict[int, UnknownNumber], k: int) -> list[int]:
    """Fork for each place of a race, for k places at most. -> the keys of those who have won them"""
    if len(numbers) < 2:
        return [*numbers]
    first = max(numbers.values(), key=lambda number: value_at(number.steps, 0.5))
    rates = {i: rate(first.steps, number.steps) for i, number in numbers.items()}
    for number in numbers.values():
        number.u.is_spent = True
    places: list[int] = []
    while rates and len(places) < k:
        place = likely(first.u.branch, [*rates.values()])
        places.append([*rates][place])
        del rates[places[-1]]
    return places


def is_first(number: UnknownNumber, other: UnknownNumber, is_larger: bool) -> bool:
    """Fork: whether a number is larger than another one, or smaller. As in Python's max, the winner may go on to the
    next one: it came before all whom it has beaten, so its rate is the sum of theirs. Raises UserError."""
    sign = () if is_larger else (Computed(np.negative),)
    sides = []
    for duellist in (number, other):
        u = duellist.u
        if not (u.is_new or u.beaten):
            raise UserError("random numbers that were compared before are compared with each other")
        sides.append(u.beaten or [(*duellist.steps, *sign)])
    first = sides[0][0]
    rates = [sum(rate(first, steps) for steps in side) for side in sides]
    taken = likely(number.u.branch, rates)
    for duellist in (number, other):
        duellist.u.is_spent = True
        duellist.u.beaten = []
    (number, other)[taken].u.beaten = sides[0] + sides[1]
    return taken == 0


@cache
def rate(steps: tuple, others: tuple) -> float:
    """The time of the other number over that of the first, where they are equal: the rate of the other, if that of the
    first is 1. Raises UserError if they are not of one kind."""
    first, last = ends_of(steps)
    rises = first < last
    values = value_at(steps, np.exp(-TIMES) if rises else -np.expm1(-TIMES))  # [3]
    rates = np.array([time_at(others, float(value), rises) for value in values]) / TIMES  # [3]
    if np.all(rates < LEAST):  # rounding
        return 0.0
    if not np.allclose(rates, rates[0], 1e-5, 0):
        raise UserError("an argmax of random numbers that are not of one kind cannot be followed")
    return float(rates[1])


def time_at(steps: tuple, value: float, rises: bool) -> float:
    """The time at which a number has this value: -log(u) if it rises with u, else -log(1 - u)."""
    is_below = (*steps, Computed(np.less, (), (value,)))
    first, last = value_at(is_below, np.array(ENDS))
    if first == last:
        return 0.0 if first else np.inf
    u = switch(is_below)
    return float(-np.log(u if rises else 1 - u))
