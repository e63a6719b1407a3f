"""Races: which of many random numbers is the largest, one fork in the place of one for each comparison.

The usual way to draw from p without adding up is the argmax of log p + Gumbel noise, or of p / exponential noise. Both
are a race of exponential times: number i arrives after a time with rate p[i], and the first to arrive wins. So i wins
with the chance p[i] / Σ p. And the race among the rest goes on as if it began then, which gives the second one.

The u of each number gives an exponential number E = -log(u) of rate 1, and the number arrives at the time E / p[i]. Of
Gumbel noise G = -log(E), for instance, log(0.5) + G1 and log(0.25) + G2 are equal if E1 / 0.5 = E2 / 0.25, so if
E2 = 0.5 E1: the second has half the rate of the first. Rates are found from values alone, as forks.py finds chances:
two numbers are in one race if, wherever they are equal, the E of the one is the same multiple of the E of the other.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from speculative.law.forks import ENDS, LEAST, WALK, Formula, NotFollowed, Number, Uniform, ends_of, switch, take_likely

# The E of the fastest, where others are compared with it. The first is near 0: there u.clamp(max=0.999) is seen.
E_FASTEST = np.array([0.0001, 1.0, 2.0, 4.0])  # [4]
ROUNDING = 1e-5  # rounding of E in float32, as a share of it
SHIFT = LEAST  # shift of E if a number starts a little early: -log(u + 1e-10), as in PyTorch's Gumbel noise


def largest(row) -> int:  # [n] of numbers, unknown ones among them -> the index of the largest
    """Raises NotFollowed if they are not in a race."""
    return largest_first(row, 1)[0]


def largest_first(row, k: int) -> list[int]:  # [n] -> [k], indices from the largest down
    """Raises NotFollowed if they are not in a race."""
    racing, fixed = racers(row)
    falling = sorted(fixed, key=fixed.__getitem__, reverse=True)
    return [*winners(racing, k), *falling][:k]


def racers(row) -> tuple[dict[int, Number], dict[int, float]]:
    """The numbers in a race, by their indices, and those below them. Raises NotFollowed if they are not in a race."""
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
    return racing, fixed


def check_start(numbers: list[Uniform]) -> None:
    """Raise NotFollowed if these have been seen before, or one is in the race twice."""
    if len({*numbers}) < len(numbers) or not all(u.is_new for u in numbers):
        raise NotFollowed("an argmax of random numbers of which something is known cannot be followed")


def winners(numbers: dict[int, Number], k: int) -> list[int]:
    """Fork for the first of a race, for the second and so on, k at most. Returns their keys in this order."""
    if len(numbers) < 2:
        return [*numbers]
    rates = start(numbers)
    arrived: list[int] = []
    while rates and len(arrived) < k:
        taken = take_likely([*rates.values()])
        arrived.append([*rates][taken])
        if WALK.listener:
            WALK.listener.drawn(arrived[-1], [rates.get(i, 0.0) for i in range(max(rates) + 1)])
        del rates[arrived[-1]]
    return arrived


def start(numbers: dict[int, Number]) -> dict[int, float]:
    """Their rates. Nothing else is told of them from then on."""
    rates = rates_of(numbers)
    for number in numbers.values():
        number.u.spend()
    return rates


def rates_of(numbers: dict[int, Number]) -> dict[int, float]:
    """Their rates, in proportion to which each of them is the first."""
    fastest = fastest_of([number.formula for number in numbers.values()])
    return {i: rate(fastest, number.formula) for i, number in numbers.items()}


class Race(Uniform):
    """The u that tells the first of a race. The race starts when somebody asks for it: so there may be several of the
    same numbers, as of one noise for all rows, if only one is looked at."""

    def __init__(self, numbers: dict[int, Number]):
        super().__init__()
        self.waiting = [number.u for number in numbers.values()]

    def start(self) -> None:
        """Raises NotFollowed if something is known of the numbers by now."""
        if self.waiting:
            check_start(self.waiting)
            for u in self.waiting:
                u.spend()
            self.waiting = []

    def fork_at(self, edges) -> int:
        self.start()
        return super().fork_at(edges)

    def spend(self, beaten: Sequence = ()) -> None:
        self.start()
        super().spend(beaten)


def is_first(number: Number, other: Number, is_larger: bool) -> bool:
    """Fork: whether a number is larger than another one, or smaller. As in Python's max, the winner may go on to the
    next one: it came before all whom it has beaten, so its rate is the sum of theirs. Raises NotFollowed."""
    side = side_of(number, is_larger)
    other_side = side_of(other, is_larger)
    fastest = fastest_of(side + other_side)
    rates = [sum(rate(fastest, formula) for formula in formulas) for formulas in (side, other_side)]
    is_won = take_likely(rates) == 0
    winner, loser = (number, other) if is_won else (other, number)
    loser.u.spend()
    winner.u.spend(beaten=side + other_side)
    return is_won


def side_of(duellist: Number, is_larger: bool) -> list[Formula]:
    """The numbers that race on the side of this one: those that it has beaten, of a new one itself."""
    u = duellist.u
    if u.beaten:
        return u.beaten
    if not u.is_new:
        raise NotFollowed("random numbers that were compared before are compared with each other")
    return [duellist.formula if is_larger else Formula(np.negative, (duellist.formula,))]


def fastest_of(formulas: list[Formula]) -> Formula:
    """The number in a race whose rate is the highest: at u = 0.5 all have the same E, so it arrives first there, and is
    the largest."""
    return max(formulas, key=lambda formula: formula.at(0.5))


@cache
def rate(fastest: Formula, formula: Formula) -> float:
    """The rate of a number, if that of the fastest is 1: its E over that of the fastest, where they are equal. Raises
    NotFollowed if they are not of one kind.

    Of two that arrive together the faster has the larger E. So beside the fastest all have an E below E_FASTEST, where
    u = exp(-E) is far from 0. With a SHIFT, E is rate * E_FASTEST + a constant: so the rate is the slope.
    """
    first, last = ends_of(fastest)
    rises = first < last
    u = np.exp(-E_FASTEST)  # [4]
    values = fastest.at(u if rises else 1 - u)  # [4]
    E = np.array([exponential_at(formula, float(value), rises) for value in values])  # [4]
    slope = (E[-1] - E[-2]) / (E_FASTEST[-1] - E_FASTEST[-2])
    if not np.allclose(E, slope * E_FASTEST, ROUNDING, SHIFT):
        raise NotFollowed("an argmax of random numbers that are not of one kind cannot be followed")
    return float(slope)


def exponential_at(formula: Formula, value: float, rises: bool) -> float:
    """The E at which a number has this value: -log(u) if it rises with u, else -log(1 - u)."""
    is_below = Formula(np.less, (formula, value))
    first, last = is_below.at(np.array(ENDS))
    if first == last:
        return 0.0 if first else np.inf
    u = switch(is_below)
    return float(-np.log(u if rises else 1 - u))
