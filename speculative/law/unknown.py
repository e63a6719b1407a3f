"""Random numbers that are not known yet: each comparison is a fork, whose branches have known chances."""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from speculative.support.errors import UserError

LEAST = 1e-8  # a branch of a fork that is less likely is not followed


class Unfollowed(UserError):
    """Something is done with a random number of which no law is known."""


class Uniform:
    """A random number u from 0 to 1, as far as comparisons have told it."""

    def __init__(self, branch: Callable):
        """branch: [n] chances -> the number of the branch that is taken."""
        self.branch = branch
        self.low, self.high = 0.0, 1.0
        # After races, -log(u) of the winner is exponential of a rate above 1: -log(1 - u) if it is flipped.
        self.rate = 1.0
        self.is_flipped = False

    def __str__(self):
        return f"{self.low:.3g} to {self.high:.3g}"

    def below(self, x: float) -> float:
        """The chance that u < x, before its first comparison."""
        return 1 - (1 - x) ** self.rate if self.is_flipped else x**self.rate

    def part(self, edges) -> int:  # [n + 1], from 0 to 1 -> i if u is in [edges[i], edges[i + 1])
        if not self.rate:
            raise Unfollowed("a random number that lost against another one is compared again")
        inner = [min(max(edge, self.low), self.high) for edge in edges]  # [n + 1]
        shares = [self.below(b) - self.below(a) for a, b in pairwise(inner)]  # [n]
        least = LEAST * sum(shares)
        possible = [i for i, share in enumerate(shares) if share > least]
        if len(possible) == 1:
            return possible[0]
        taken = possible[self.branch([shares[i] for i in possible])]
        self.low, self.high = inner[taken : taken + 2]
        return taken


# A step changes a number x by a constant c: its name: (the function, its inverse).
STEPS: dict[str, tuple[Callable, Callable]] = {
    "add": (lambda x, c: x + c, lambda y, c: y - c),
    "times": (lambda x, c: x * c, lambda y, c: y / c),
    "power": (lambda x, c: x**c, lambda y, c: y ** (1 / c)),
    "log": (lambda x, c: np.log(x), lambda y, c: np.exp(y)),
    "exp": (lambda x, c: np.exp(x), lambda y, c: np.log(y)),
}


class UnknownNumber:
    """A random number: steps from a Uniform, which together rise or fall."""

    def __init__(self, u: Uniform, steps: tuple = (), ends: tuple = (np.float64(0), np.float64(1))):
        """ends: this number where u is 0 and 1."""
        self.u = u
        self.steps = steps
        self.ends = ends

    def at(self, x: float):
        """This number where u = x."""
        for name, c in self.steps:
            x = STEPS[name][0](np.float64(x), c) + 0.0  # no -0.0, whose inverse is -inf
        return x

    def u_at(self, value: float) -> float:
        """u where this number has a value: 0 or 1 if it never has."""
        if not self.steps:
            return value
        value = min(max(value, min(self.ends)), max(self.ends))
        for name, c in reversed(self.steps):
            value = STEPS[name][1](np.float64(value), c)
        return float(value)

    def then(self, name: str, c=1.0) -> Any:
        """This number changed by one more step."""
        if isinstance(c, UnknownNumber):
            raise Unfollowed("two random numbers in one formula cannot be followed")
        c = np.float64(c)
        step = STEPS[name][0]
        if not np.isfinite(c) or (c == 0 and name == "times"):
            return step(self.at(0.5), c)
        low, high = ends = tuple(step(end, c) + 0.0 for end in self.ends)
        if np.isnan(low) or np.isnan(high) or low == high or (name == "power" and self.ends[0] * self.ends[1] < 0):
            raise Unfollowed(f"this formula of a random number ({name}) cannot be followed")
        return UnknownNumber(self.u, (*self.steps, (name, c)), ends)

    def is_below(self, bound) -> bool:
        if bound is self:  # np.searchsorted and np.argmax ask
            return False
        if isinstance(bound, UnknownNumber):
            return bound.wins(self)
        value = float(bound)
        if value != value:  # NaN
            return False
        return (self.u.part([0.0, self.u_at(value), 1.0]) == 0) == (self.ends[0] < self.ends[1])

    def is_above(self, bound) -> bool:
        if bound is self:
            return True
        if isinstance(bound, UnknownNumber):
            return self.wins(bound)
        return bool(bound == bound) and not self.is_below(bound)

    def wins(self, other: "UnknownNumber") -> bool:
        return largest([other, self]) == 1

    def __int__(self) -> int:
        low, high = sorted(float(self.at(end)) for end in (self.u.low, self.u.high))
        if low < 0 or not math.isfinite(high):
            raise Unfollowed("a random number below 0 or without bound as an int cannot be followed")
        whole = [*range(math.floor(low), math.ceil(high) + 1)]  # [n + 1]
        edges = [min(max(self.u_at(edge), 0.0), 1.0) for edge in whole]  # [n + 1]
        if edges[0] < edges[-1]:
            return whole[self.u.part(edges)]
        return whole[-2 - self.u.part(edges[::-1])]

    def item(self):
        return self

    def __float__(self):
        raise Unfollowed("a random number as a float cannot be followed: compare it as it is")


def largest(numbers: list[UnknownNumber]) -> int:
    """The place of the largest. It can be told if all are one function of exponential times: in a race, as of Gumbel's.

    The first of several times has the sum of their rates, whichever it is: so it can race again.
    """
    ratios = [time_ratio(numbers[0].steps, numbers[0].ends, one.steps, one.ends) for one in numbers]
    flipped = {is_flipped for is_flipped, _ in ratios[1:]}
    rates = [one.u.rate * ratio for one, (_, ratio) in zip(numbers, ratios, strict=True)]  # [n]
    is_flipped = flipped == {True}
    is_first = (numbers[0].ends[0] < numbers[0].ends[1]) != is_flipped  # whether the largest has the least time
    for one in numbers:
        if (one.u.low, one.u.high) != (0, 1) or one.u.rate == 0 or (one.u.rate != 1 and one.u.is_flipped != is_flipped):
            raise Unfollowed("a random number of which something is known is compared with another one")
    if len(flipped) > 1 or len({id(one.u) for one in numbers}) < len(numbers) or not (is_first or len(numbers) == 2):
        raise Unfollowed("random numbers are compared that are not of one kind")
    first = numbers[0].u.branch(rates)
    for one in numbers:
        one.u.rate = 0.0
    numbers[first].u.rate = sum(rates) / ratios[first][1]
    numbers[first].u.is_flipped = is_flipped
    return first if is_first else 1 - first


@cache
def time_ratio(steps: tuple, ends: tuple, other_steps: tuple, other_ends: tuple) -> tuple[bool, float]:
    """Where two numbers are equal, -log(u) of the other one over that of the first; or, if True, of -log(1 - u).

    Raises Unfollowed if it is not the same everywhere.
    """
    times = np.array([0.0005, 0.001, 0.002])  # [3], of the first
    for is_flipped in (False, True):
        u = -np.expm1(-times) if is_flipped else np.exp(-times)  # [3]
        first = UnknownNumber(None, steps, ends)
        at = np.array(
            [UnknownNumber(None, other_steps, other_ends).u_at(first.at(x)) for x in u]
        )  # [3]: the other one's u
        ratio = -np.log(1 - at if is_flipped else at) / times  # [3]
        if np.isfinite(ratio[0]) and np.allclose(ratio, ratio[0], 1e-5, 0):
            return is_flipped, float(ratio[1])
    raise Unfollowed("two random numbers are compared that are not of one kind")


class Numbers(np.ndarray):
    """An array of random numbers, among others. Its argmax is one fork, not one for each comparison."""

    def argmax(self, axis=None, *args, **named):
        if self.ndim > 1 and axis is not None:
            return np.apply_along_axis(lambda row: row.view(Numbers).argmax(), axis, self)
        places = [i for i, one in enumerate(self.flat) if isinstance(one, UnknownNumber)]
        least = min((min(self.flat[i].ends) for i in places), default=0)
        if not places or any(one > least for one in self.flat if not isinstance(one, UnknownNumber)):
            return super().argmax(axis, *args, **named)
        return places[largest([self.flat[i] for i in places])] if len(places) > 1 else places[0]

    def argmin(self, axis=None, *args, **named):
        return (-self).argmax(axis)


def with_arrays(operator: Callable) -> Callable:
    """The operator, for each number of an array too."""

    def apply(u, *c):
        if not c or np.ndim(c[0]) == 0:
            return operator(u, *c)
        numbers = np.asarray(c[0])
        made = [operator(u, one) for one in numbers.ravel()]
        dtype = bool if all(isinstance(one, bool) for one in made) else object
        return np.array(made, dtype).reshape(numbers.shape).view(Numbers if dtype is object else np.ndarray)

    return apply


OPERATORS: dict[str, Callable] = {
    "__lt__ __le__": lambda u, c: u.is_below(c),
    "__gt__ __ge__": lambda u, c: u.is_above(c),
    "__add__ __radd__": lambda u, c: u.then("add", c),
    "__sub__": lambda u, c: u.then("add", -c),
    "__rsub__": lambda u, c: u.then("times", -1).then("add", c),
    "__neg__": lambda u: u.then("times", -1),
    "__mul__ __rmul__": lambda u, c: u.then("times", c),
    "__truediv__": lambda u, c: u.then("times", np.divide(1.0, c)),
    "__rtruediv__": lambda u, c: u.then("power", -1).then("times", c),
    "__pow__": lambda u, c: u.then("power", c),
    "__floor__ floor": int,
    "log": lambda u: u.then("log"),
    "log1p": lambda u: u.then("add", 1).then("log"),
    "exp": lambda u: u.then("exp"),
    "sqrt": lambda u: u.then("power", 0.5),
}
for names, operator in OPERATORS.items():
    for name in names.split():
        setattr(UnknownNumber, name, with_arrays(operator))


def in_math(name: str) -> Callable:
    """The function of Python's math, of an UnknownNumber too."""
    of_floats = getattr(math, name)
    return lambda x, *base: getattr(x, name)() if isinstance(x, UnknownNumber) and not base else of_floats(x, *base)


MATH = {name: in_math(name) for name in ("log", "log1p", "exp", "sqrt", "floor")}
