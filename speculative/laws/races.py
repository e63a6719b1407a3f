"""Races: which of many random numbers is the largest, one fork in the place of one for each comparison.

The usual way to draw from p without adding up is the argmax of log p + Gumbel noise, or of p / exponential noise. Both
are a race of exponential times: number i arrives after a time with rate p[i], and the first to arrive wins. So i wins
with the chance p[i] / Σ p. And the race among the rest goes on as if it began then, which gives the second one.

Only values tell that numbers are in such a race, as for uniform.py: where two of them are equal, the time of the one is
a fixed multiple of the time of the other.
"""

from functools import cache

import numpy as np

from speculative.laws.uniform import ENDS, LEAST, Formula, NotFollowed, Number, Uniform, ends_of, switch, take_likely

TIMES = np.array([0.0001, 1.0, 2.0, 4.0])  # [4], at which two numbers are compared


def largest(row) -> int:  # [n] of numbers, unknown ones among them -> the index of the largest
    """Raises NotFollowed if they are not in a race."""
    return largest_first(row, 1)[0]


def largest_first(row, k: int) -> list[int]:  # [n] -> [k], indices from the largest down
    """Raises NotFollowed if they are not in a race."""
    racing = {}
    fixed = {}
    for i, number in enumerate(row):
        if isinstance(number, Number):
            racing[i] = number
        else:
            fixed[i] = number
    lows = [min(ends_of(number.formula)) for number in racing.values()]
    if lows and fixed and max(fixed.values()) > min(lows):
        raise NotFollowed("an argmax of random numbers and others, which they may be below, cannot be followed")
    if len(racing) > 1:
        check_start([number.u for number in racing.values()])
    falling = sorted(fixed, key=fixed.__getitem__, reverse=True)
    return [*winners(racing, k), *falling][:k]


def check_start(numbers: list[Uniform]) -> None:
    """Raise NotFollowed if these have been seen before, or one is in the race twice."""
    if len({*numbers}) < len(numbers) or not all(u.is_new for u in numbers):
        raise NotFollowed("an argmax of random numbers of which something is known cannot be followed")


def winners(numbers: dict[int, Number], k: int) -> list[int]:
    """Fork for the first of a race, for the second and so on, k at most. Returns their keys in this order."""
    if len(numbers) < 2:
        return [*numbers]
    fastest = fastest_of([number.formula for number in numbers.values()])
    rates = {i: rate(fastest, number.formula) for i, number in numbers.items()}
    for number in numbers.values():
        number.u.is_spent = True
    first = next(iter(numbers.values()))
    arrived: list[int] = []
    while rates and len(arrived) < k:
        taken = take_likely(first.u.take_branch, [*rates.values()])
        arrived.append([*rates][taken])
        del rates[arrived[-1]]
    return arrived


def is_first(number: Number, other: Number, is_larger: bool) -> bool:
    """Fork: whether a number is larger than another one, or smaller. As in Python's max, the winner may go on to the
    next one: it came before all whom it has beaten, so its rate is the sum of theirs. Raises NotFollowed."""
    sides = []
    for duellist in (number, other):
        u = duellist.u
        if not (u.is_new or u.beaten):
            raise NotFollowed("random numbers that were compared before are compared with each other")
        formula = duellist.formula if is_larger else Formula(np.negative, (duellist.formula,))
        sides.append(u.beaten or [formula])
    fastest = fastest_of(sides[0] + sides[1])
    rates = [sum(rate(fastest, formula) for formula in side) for side in sides]
    taken = take_likely(number.u.take_branch, rates)
    for duellist in (number, other):
        duellist.u.is_spent = True
        duellist.u.beaten = []
    (number, other)[taken].u.beaten = sides[0] + sides[1]
    return taken == 0


def fastest_of(formulas: list[Formula]) -> Formula:
    """The number in a race whose rate is the highest."""
    return max(formulas, key=lambda formula: formula.at(0.5))


@cache
def rate(formula: Formula, other: Formula) -> float:
    """The rate of the other number, if that of the fastest is 1: the other's time over that of the fastest, where they
    are equal. Raises NotFollowed if they are not of one kind.

    A number that is kept away from 0 or 1, as those of PyTorch's Gumbel, starts a little early or late: its time is
    rate * time + constant. So the rate is a slope.
    """
    first, last = ends_of(formula)
    rises = first < last
    u = np.exp(-TIMES)  # [4]
    values = formula.at(u if rises else 1 - u)  # [4]
    times = np.array([time_at(other, float(value), rises) for value in values])  # [4]
    slope = (times[-1] - times[-2]) / (TIMES[-1] - TIMES[-2])
    if not np.allclose(times, slope * TIMES, 1e-5, LEAST):
        raise NotFollowed("an argmax of random numbers that are not of one kind cannot be followed")
    return float(slope)


def time_at(formula: Formula, value: float, rises: bool) -> float:
    """The time at which a number has this value: -log(u) if it rises with u, else -log(1 - u)."""
    is_below = Formula(np.less, (formula, value))
    first, last = is_below.at(np.array(ENDS))
    if first == last:
        return 0.0 if first else np.inf
    u = switch(is_below)
    return float(-np.log(u if rises else 1 - u))
