"""Random numbers that are not known yet: each comparison is a fork, whose branches have known chances.

A program draws u, computes -log(u) / 2 with it, and asks whether that is below 0.3. The answer is True on one part of
u's range and False on the rest, and the lengths of the parts are the chances of the answers. So the number of the
program is kept as u and the steps that lead from u to it. As long as they rise or fall all the way, the u at which a
comparison changes its answer can be found by bisection. Nothing has to be known about the steps but their values.

races.py tells which of many numbers is the largest. tensors.py is the same for PyTorch.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from speculative.support.errors import UserError

LEAST = 1e-6  # a branch of a fork that is less likely is rounding of float32, and is not followed
MOST = 2_000  # random numbers and calls of models in one path; ints that a number can become
ENDS = 2.0**-53, 1 - 2.0**-53  # of u, where 1 / u and log(1 - u) are finite


class Uniform:
    """A random number u from 0 to 1, as far as comparisons have told it."""

    def __init__(self, branch: Callable):
        """branch: [n] chances -> the number of the branch that is taken."""
        self.branch = branch
        self.low, self.high = 0.0, 1.0
        self.is_spent = False  # in a race: its law is not uniform any more
        self.beaten: list = []  # the steps of those that it came before in duels, and its own

    def part(self, edges) -> int:  # [n + 1], from 0 to 1 -> i if u is in [edges[i], edges[i + 1])
        """Fork: u is in one of the parts between the edges. Raises UserError if it was in a race."""
        if self.is_spent:
            raise UserError("a random number that was compared with another one is compared again")
        inner = [min(max(edge, self.low), self.high) for edge in edges]  # [n + 1]
        taken = likely(self.branch, [b - a for a, b in pairwise(inner)])
        self.low, self.high = inner[taken : taken + 2]
        return taken

    @property
    def is_new(self) -> bool:
        """Whether no comparison has told anything of it."""
        return not self.is_spent and (self.low, self.high) == (0, 1)


def likely(branch: Callable, chances: list[float]) -> int:  # [n] -> the branch that is taken
    """Fork, without the branches that rounding explains. Raises UserError if there is none left."""
    least = LEAST * sum(chances)
    possible = [i for i, chance in enumerate(chances) if chance > least]
    if not possible:
        raise UserError("a choice among random numbers that all have probability 0 cannot be followed")
    if len(possible) == 1:
        return possible[0]
    return possible[branch([chances[i] for i in possible])]


# ---- A number as a function of u -------------------------------------------------------------------------------------


class Computed(NamedTuple):
    """A step: function(*before, x, *after) of a number x, with other numbers that are known."""

    function: Any  # a ufunc, or a function of an array of numbers
    before: tuple = ()
    after: tuple = ()


def value_at(steps: tuple, x):
    """The number that the steps make of u = x."""
    for function, before, after in steps:
        x = function(*before, x, *after)
    return x


@cache
def ends_of(steps: tuple) -> tuple:
    """The values at both ENDS. Raises UserError if the number neither rises nor falls from one to the other."""
    values = np.asarray(value_at(steps, np.linspace(*ENDS, 33)))  # [33]
    before = values[:-1]  # [32]
    after = values[1:]  # [32]
    rises = np.all(after >= before)
    falls = np.all(after <= before)
    if not (rises or falls or np.all(np.isnan(values))):
        name = steps[-1].function.__name__
        raise UserError(f"a formula of a random number ({name}) that rises and falls cannot be followed")
    return values[0], values[-1]


@cache
def switch(steps: tuple) -> float:
    """Return the u at which the number, which is True or False, changes."""
    low, high = ENDS
    while (low + high) / 2 not in (low, high):
        grid = np.linspace(low, high, 129)  # more than the middle: a call costs more than 128 more numbers in it
        values = value_at(steps, grid)  # [129]
        first_after = int(np.argmax(values != values[0]))
        low, high = grid[first_after - 1], grid[first_after]
    return float(high)


DUELS = (np.less, np.less_equal, np.greater, np.greater_equal)


class UnknownNumber(NDArrayOperatorsMixin):
    """A random number: a function of a Uniform, which rises or falls."""

    tensor_of: Callable  # tensor_of(array) -> a tensor of PyTorch, while that is followed
    is_first: Callable  # is_first(number, other, is_larger) -> bool, as races.py says

    def __init__(self, u: Uniform, steps: tuple[Computed, ...] = ()):
        self.u = u
        self.steps = steps

    def then(self, step: Computed) -> Any:
        """The number after one more step: unknown, or a value if it does not depend on u, or a fork if it is a bool."""
        steps = (*self.steps, step)
        first, last = ends_of(steps)
        if first == last or first != first:
            return first
        if first.dtype != bool:
            return UnknownNumber(self.u, steps)
        is_after = self.u.part([0.0, switch(steps), 1.0])
        return last if is_after else first

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options) -> Any:
        """Take one more step. NumPy calls this for its functions, and NDArrayOperatorsMixin for all operators.

        An array among the inputs goes back to NumPy, as one of objects: NumPy then comes here with each number of it. A
        tensor goes to PyTorch. What has two unknown numbers cannot be followed, as it is not a function of one u. But
        NumPy's searchsorted and sort begin by asking whether a number is below itself.
        """
        if method != "__call__" or options or (out and out[0] is not self):
            raise UserError(f"{ufunc.__name__} of random numbers cannot be followed")
        others = [other for other in inputs if other is not self]
        if not all(map(is_number, others)):
            return self.with_arrays(ufunc, inputs)
        if not others and ufunc in (np.less, np.greater):
            return np.False_
        if ufunc in DUELS and len(others) == 1 and isinstance(others[0], UnknownNumber):
            return UnknownNumber.is_first(*inputs, ufunc in (np.greater, np.greater_equal))
        if len(others) != ufunc.nin - 1 or any(isinstance(other, UnknownNumber) for other in others):
            raise UserError("two random numbers in one formula cannot be followed: their argmax can be")
        numbers = tuple(map(float, others))
        if inputs[0] is self:
            return self.then(Computed(ufunc, after=numbers))
        return self.then(Computed(ufunc, before=numbers))

    def with_arrays(self, ufunc, inputs):
        """The ufunc of inputs with arrays or tensors among them, as one of them."""
        if any(map(is_tensor, inputs)):
            arrays = [x.numpy() if is_tensor(x) else x for x in inputs]
            return self.tensor_of(ufunc(*arrays))
        objects = [np.asarray(x, object) for x in inputs]
        results = ufunc(*objects)
        return results.view(Numbers) if results.dtype == object else results

    def __getattr__(self, name: str):
        """A method of the name of a ufunc, for which NumPy asks the numbers of an array."""
        ufunc = None if name.startswith("__") else getattr(np, name, None)
        if not isinstance(ufunc, np.ufunc):
            raise AttributeError(name)
        return lambda: ufunc(self)

    def __int__(self) -> int:
        """Fork: one of the whole numbers that it can become."""
        limits = (self.u.low, self.u.high)
        low, high = sorted(float(value_at(self.steps, np.clip(limit, *ENDS))) for limit in limits)
        if low < 0 or not high - low < MOST:
            raise UserError("a random number below 0 or without bound as an int cannot be followed")
        for n in range(int(high), int(low), -1):
            if self >= n:
                return n
        return int(low)

    __floor__ = __int__

    def item(self):
        return self

    def __round__(self, digits: int = 0) -> Any:
        return np.rint(self * 10.0**digits) / 10.0**digits

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __format__(self, how: str) -> str:
        return "?"

    def __float__(self):
        raise UserError("a random number as a float cannot be followed: compare it as it is")


class Numbers(np.ndarray):
    """An array of random numbers, among others. Its argmax is one fork, not one for each comparison."""

    largest: Callable  # largest(row) -> the place, as races.py says
    largest_first: Callable  # largest_first(row, k) -> [k] places

    def argmax(self, axis=None, *args, **named):
        if self.ndim > 1 and axis is not None:
            return np.apply_along_axis(Numbers.largest, axis, self)
        return Numbers.largest(self.ravel())

    def argmin(self, axis=None, *args, **named):
        return (-self).argmax(axis)

    def argsort(self, axis=-1, *args, **named):
        return np.apply_along_axis(Numbers.largest_first, axis, -self, self.shape[axis])

    def astype(self, dtype, *args, **named):
        """Numbers of a type of NumPy's: a half one has few values."""
        kind = np.dtype(dtype).type
        if not issubclass(kind, np.floating):
            return super().astype(dtype, *args, **named)
        numbers = self.copy()
        for place, number in np.ndenumerate(self):
            is_unknown = isinstance(number, UnknownNumber)
            numbers[place] = number.then(Computed(kind)) if is_unknown else kind(number)
        return numbers

    def argpartition(self, kth, axis=-1, *args, **named):
        return self.argsort(axis)


def is_number(x: Any) -> bool:
    """Whether it is one number, unknown or not; np.ndim takes longer than isinstance."""
    return isinstance(x, UnknownNumber | float) or (not is_tensor(x) and np.ndim(x) == 0)


def is_tensor(x: Any) -> bool:
    return hasattr(x, "untyped_storage")


# ---- In the place of Python's functions ------------------------------------------------------------------------------


class AnyFloat(type):
    def __instancecheck__(cls, x):
        return isinstance(x, float)


class Float(float, metaclass=AnyFloat):
    """In the place of float, which can return nothing but a float: of a random number, the number itself."""

    dtype = np.dtype(float)

    def __new__(cls, x=0.0):
        return x.item() if isinstance(x, UnknownNumber | Numbers) or is_tensor(x) else float(x)


def in_math(name: str) -> Callable:
    """The function of Python's math, of an UnknownNumber too."""
    ufunc = getattr(np, name)
    of_math = getattr(math, name)

    def function(x, *base):
        x = x.item() if is_tensor(x) else x
        return ufunc(x) if isinstance(x, UnknownNumber) and not base else of_math(x, *base)

    return function


MATH = {name: in_math(name) for name in ("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt")}
