"""Random numbers that are not known yet: each comparison is a fork, whose branches have known chances."""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from speculative.support.errors import UserError

LEAST = 1e-6  # a branch of a fork that is less likely is rounding of float32, and is not followed
MOST = 2_000  # paths of a case; random numbers and calls of models in one path; ints that a number can become
ENDS = 2.0**-53, 1 - 2.0**-53  # of u, where 1 / u and log(1 - u) are finite


class Uniform:
    """A random number u from 0 to 1, as far as comparisons have told it."""

    def __init__(self, branch: Callable):
        """branch: [n] chances -> the number of the branch that is taken."""
        self.branch = branch
        self.low, self.high = 0.0, 1.0

    def part(self, edges) -> int:  # [n + 1], from 0 to 1 -> i if u is in [edges[i], edges[i + 1])
        inner = [min(max(edge, self.low), self.high) for edge in edges]  # [n + 1]
        shares = [b - a for a, b in pairwise(inner)]  # [n]
        least = LEAST * sum(shares)
        possible = [i for i, share in enumerate(shares) if share > least]
        if not possible:
            raise UserError("a random number that was compared with another one is compared again")
        if len(possible) == 1:
            return possible[0]
        taken = possible[self.branch([shares[i] for i in possible])]
        self.low, self.high = inner[taken : taken + 2]
        return taken


def value_at(steps: tuple, x):
    """The number that steps make of u = x. A step is a ufunc, and its inputs before and after the number."""
    for ufunc, before, after in steps:
        x = ufunc(*before, x, *after)
    return x


@cache
def ends_of(steps: tuple) -> tuple:
    """The values at both ENDS. Raises UserError if the number neither rises nor falls from one to the other."""
    values = np.asarray(value_at(steps, np.linspace(*ENDS, 33)))  # [33]
    rises, falls = (values[1:] >= values[:-1]).all(), (values[1:] <= values[:-1]).all()
    if not (rises or falls or np.isnan(values).all()):
        raise UserError(f"this formula of a random number ({steps[-1][0].__name__}) cannot be followed")
    return values[0], values[-1]


@cache
def switch(steps: tuple) -> float:
    """Return the u at which the number, which is True or False, changes: by bisection."""
    low, high = ENDS
    before = value_at(steps, np.float64(low))
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if value_at(steps, np.float64(middle)) == before else (low, middle)
    return high


class UnknownNumber(NDArrayOperatorsMixin):
    """A random number: a function of a Uniform, which rises or falls."""

    def __init__(self, u: Uniform, steps: tuple = ()):
        self.u = u
        self.steps = steps

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options) -> Any:
        """Apply a ufunc of NumPy, as all operators do: one more step, or a fork if it compares."""
        if method != "__call__" or options or (out and out[0] is not self):
            raise UserError(f"{ufunc.__name__} with a random number in it cannot be followed")
        others = [one for one in inputs if one is not self]
        if any(np.ndim(one) for one in others):  # NumPy applies it to each number of an array
            found = ufunc(*(np.asarray(one, object) for one in inputs))
            return found.view(Numbers) if found.dtype == object else found
        if not others and ufunc in (np.less, np.greater):  # np.searchsorted and np.argmax compare it with itself
            return np.False_
        if len(others) != ufunc.nin - 1 or any(isinstance(one, UnknownNumber) for one in others):
            raise UserError("two random numbers in one formula cannot be followed: their np.argmax can be")
        at = int(inputs[0] is not self)
        steps = (*self.steps, (ufunc, tuple(map(float, inputs[:at])), tuple(map(float, inputs[at + 1 :]))))
        ends = first, last = ends_of(steps)
        if first == last or first != first:
            return first
        return ends[self.u.part([0.0, switch(steps), 1.0])] if first.dtype == bool else UnknownNumber(self.u, steps)

    def __getattr__(self, name: str):
        """A method of the name of a ufunc, for which NumPy asks the numbers of an array."""
        if name.startswith("__") or not isinstance(ufunc := getattr(np, name, None), np.ufunc):
            raise AttributeError(name)
        return lambda: ufunc(self)

    def __int__(self) -> int:
        low, high = sorted(float(value_at(self.steps, np.clip(end, *ENDS))) for end in (self.u.low, self.u.high))
        if low < 0 or not high - low < MOST:
            raise UserError("a random number below 0 or without bound as an int cannot be followed")
        return next((n for n in range(int(high), int(low), -1) if self >= n), int(low))

    __floor__ = __int__

    def item(self):
        return self

    def __float__(self):
        raise UserError("a random number as a float cannot be followed: compare it as it is")


class Numbers(np.ndarray):
    """An array of random numbers, among others. Its argmax is one fork, not one for each comparison."""

    def argmax(self, axis=None, *args, **named):
        if self.ndim > 1 and axis is not None:
            return np.apply_along_axis(lambda row: row.view(Numbers).argmax(), axis, self)
        places = [i for i, one in enumerate(self.flat) if isinstance(one, UnknownNumber)]
        least = min((min(ends_of(self.flat[i].steps)) for i in places), default=0)
        if not places or any(one > least for one in self.flat if not isinstance(one, UnknownNumber)):
            return super().argmax(axis, *args, **named)
        return places[race([self.flat[i] for i in places])]

    def argmin(self, axis=None, *args, **named):
        return (-self).argmax(axis)


def race(numbers: list[UnknownNumber]) -> int:
    """The place of the largest, if all are one falling function of exponential times, as Gumbel's are: the chance of
    each to be the first is its rate over their sum."""
    if len(numbers) == 1:
        return 0
    rates = [rate(numbers[0].steps, one.steps) for one in numbers]  # [n]
    if any((one.u.low, one.u.high) != (0, 1) for one in numbers):
        raise UserError("a random number of which something is known is compared with another one")
    for one in numbers:
        one.u.low, one.u.high = math.inf, -math.inf  # no law of it is known any more
    return numbers[0].u.branch(rates)


@cache
def rate(steps: tuple, others: tuple) -> float:
    """The time of the first number over that of the other one, where they are equal.

    The time is -log(u) if the numbers rise with u, else -log(1 - u). Raises UserError if they are not of one kind.
    """
    first, last = ends_of(steps)
    times = np.array([0.0001, 0.0002, 0.0004])  # [3], of the first
    values = value_at(steps, np.exp(-times) if first < last else -np.expm1(-times))  # [3]
    u = np.array([switch((*others, (np.less, (), (value,)))) for value in values])  # [3], of the other one
    found = -np.log(u if first < last else 1 - u) / times  # [3]
    if not np.allclose(found, found[0], 1e-5, 0):
        raise UserError("two random numbers are compared that are not of one kind")
    return float(found[1])


class AnyFloat(type):
    def __instancecheck__(cls, one):
        return isinstance(one, float)


class Float(float, metaclass=AnyFloat):
    """In the place of float, which can return nothing but one: of a random number, the number itself."""

    dtype = np.dtype(float)

    def __new__(cls, x=0.0):
        return x.item() if isinstance(x, UnknownNumber | Numbers) else float(x)


def in_math(name: str) -> Callable:
    """The function of Python's math, of an UnknownNumber too."""
    ufunc, call = getattr(np, name), getattr(math, name).__call__  # which stays when math's is replaced
    return lambda x, *base: ufunc(x) if isinstance(x, UnknownNumber) and not base else call(x, *base)


MATH = {name: in_math(name) for name in ("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt")}
