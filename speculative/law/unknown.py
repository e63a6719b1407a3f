"""Random numbers that are not known yet, in the place of floats and arrays: each comparison is a fork.

forks.py says what such a number is, races.py which of many is the largest.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from speculative.law.forks import (
    ENDS,
    ITSELF,
    MOST_INTS,
    WALK,
    Formula,
    NotFollowed,
    Number,
    Uniform,
    ends_of,
    find_ends,
    switch,
)
from speculative.law.races import is_first, largest, largest_first

DUELS = (np.less, np.less_equal, np.greater, np.greater_equal)  # comparisons of two random numbers: races.is_first


FEW_INTS = 64  # most values of a whole number that has few: as many as a vocabulary


class UnknownNumber(Number, NDArrayOperatorsMixin):
    """A random number in the place of a float."""

    has_few = False  # whether it has at most FEW_INTS values

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        """NumPy calls this for its functions, and NDArrayOperatorsMixin for all operators.

        An array among the inputs goes back to NumPy, as one of objects: NumPy then comes here with each number of it. A
        tensor goes to PyTorch. NumPy's searchsorted and sort begin by asking whether a number is below itself.
        """
        is_plain = method == "__call__" and not options
        is_elsewhere = out and out[0] is not self
        if not is_plain or is_elsewhere:
            raise NotFollowed(f"{ufunc.__name__} of random numbers cannot be followed")
        if not all(map(is_number, inputs)):
            return number_by_number(ufunc, inputs)
        if len(us_of(inputs)) == 2:  # a whole number can be asked for its value: then one u is left
            inputs = (*without_whole(inputs),)
        if ufunc in DUELS and len(us_of(inputs)) == 2:
            number, other = inputs
            return is_first(number, other, ufunc in (np.greater, np.greater_equal))
        return computed(ufunc, [x if isinstance(x, UnknownNumber) else float(x) for x in inputs])

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """PyTorch calls this for its functions: they get a tensor of the number."""
        torch = sys.modules["torch"]
        tensors = [torch.tensor(x) if isinstance(x, UnknownNumber) else x for x in args]
        return function(*tensors, **kwargs or {})

    def __getattr__(self, name: str):
        """A method of the name of a ufunc, for which NumPy asks the numbers of an array."""
        ufunc = None if name.startswith("__") else getattr(np, name, None)
        if not isinstance(ufunc, np.ufunc):
            raise AttributeError(name)
        return lambda: ufunc(self)

    def __int__(self) -> int:
        """Fork: one of the whole numbers that it can become."""
        limits = (self.u.low, self.u.high)
        low, high = sorted(float(self.formula.at(np.clip(limit, *ENDS))) for limit in limits)
        if low < 0 or not high - low < MOST_INTS:
            raise NotFollowed("a random number below 0 or without bound as an int cannot be followed")
        for n in range(int(high), int(low), -1):
            if self >= n:
                return n
        return int(low)

    __floor__ = __int__

    def item(self):
        return self

    def __round__(self, digits: int = 0):
        return np.rint(self * 10.0**digits) / 10.0**digits

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __format__(self, how: str) -> str:
        return "?"

    def __float__(self):
        raise NotFollowed("a random number as a float cannot be followed: compare it as it is")


class WholeNumber(UnknownNumber):
    """A whole number, one of several: which one is a fork only if somebody asks for it, as an index does."""

    def __init__(self, u: Uniform, formula: Formula, edges: list[float]):
        """edges: those of the intervals of u for its values, [] if they are too many."""
        super().__init__(u, formula)
        self.edges = edges
        self.has_few = 0 < len(edges) <= FEW_INTS + 1

    @classmethod
    def below(cls, u: Uniform, n: int, low: int = 0) -> "WholeNumber":
        """One of the n numbers from low on, of equal chances."""
        return cls(u, Formula(floor_of, (ITSELF, n, low)), [i / n for i in range(n + 1)] if n <= MOST_INTS else [])

    @classmethod
    def among(cls, u: Uniform, edges: list[float]) -> "WholeNumber":
        """The index of the interval between these edges that u is in."""
        return cls(u, Formula(interval_of, (ITSELF, tuple(edges[1:-1]))), edges)

    def __index__(self) -> int:
        """Fork: one of its values. Raises NotFollowed if they are too many."""
        if not self.edges:
            raise NotFollowed(f"a whole number of more than {MOST_INTS:,} can be compared, not used as an index")
        self.u.fork_at(self.edges)
        return int(self.formula.at((self.u.low + self.u.high) / 2))

    __int__ = __floor__ = __index__

    def __hash__(self) -> int:
        return hash(int(self))


def floor_of(u, n: int, low: int):
    return np.floor(u * n) + low


def interval_of(u, inner: tuple):  # inner [n - 1], the edges between 0 and 1 -> the index of an interval
    return np.searchsorted(inner, u, side="right")


def without_whole(inputs) -> list:
    """The inputs with WholeNumbers as ints, by forks."""
    return [float(int(x)) if isinstance(x, WholeNumber) else x for x in inputs]


def us_of(inputs) -> set:
    """The different u of the unknown numbers among the inputs."""
    return {x.u for x in inputs if isinstance(x, UnknownNumber)}


def number_by_number(ufunc, inputs):
    """The ufunc of inputs with arrays or tensors among them: an array, or a tensor if there is one."""
    if any(map(is_tensor, inputs)):
        arrays = [x.numpy() if is_tensor(x) else x for x in inputs]
        return sys.modules["torch"].tensor(ufunc(*arrays))
    objects = [np.asarray(x, object) for x in inputs]
    results = ufunc(*objects)
    return results.view(Numbers) if results.dtype == object else results


def computed(function: Callable, inputs: Sequence):
    """function(*inputs), as a Formula, with unknown numbers among the inputs: an unknown number, or a value if it does
    not depend on u, or a fork if it is a bool. Raises NotFollowed if it is not a function of one u."""
    us = us_of(inputs)
    if function in (np.equal, np.not_equal) and sum(isinstance(x, UnknownNumber) for x in inputs) == 1:
        return is_equal(*inputs) == (function is np.equal)
    if us and (len(us) > 1 or find_ends(formula_of(function, inputs)) is None):
        inputs = without_whole(inputs)
        us = us_of(inputs)
    formula = formula_of(function, inputs)
    if not us:
        return formula.at(0.5)
    if len(us) > 1:
        raise NotFollowed("two random numbers in one formula cannot be followed: their argmax can be")
    [u] = us
    first, last = ends_of(formula)
    is_nan = first != first
    if first == last or is_nan:
        return first
    if first.dtype != bool:
        return UnknownNumber(u, formula)
    is_after = u.fork_at([0.0, switch(formula), 1.0])
    answer = last if is_after else first
    if WALK.listener:
        WALK.listener.compared(formula, u, answer)
    return answer


def is_equal(number, x) -> np.bool_:
    """Whether one of these, an unknown number, has the value of the other: False below it and above."""
    return np.bool_(bool(number >= x) and not bool(number > x))


def formula_of(function: Callable, inputs: Sequence) -> Formula:
    return Formula(function, tuple(x.formula if isinstance(x, UnknownNumber) else x for x in inputs))


class Numbers(np.ndarray):
    """An array of random numbers, among others. Its argmax is one fork, not one for each comparison."""

    def argmax(self, axis=None, *args, **named):
        if self.ndim > 1 and axis is not None:
            return np.apply_along_axis(largest, axis, self)
        return largest(self.ravel())

    def argmin(self, axis=None, *args, **named):
        return (-self).argmax(axis)

    def argsort(self, axis=-1, *args, **named):
        return np.apply_along_axis(largest_first, axis, -self, self.shape[axis])

    def argpartition(self, kth, axis=-1, *args, **named):
        return self.argsort(axis)

    def astype(self, dtype, *args, **named):
        """Numbers of a type of NumPy's: a half one has few values, and a whole one is a fork."""
        kind = np.dtype(dtype).type
        if not issubclass(kind, np.floating):
            whole = bool if kind is np.bool_ else int
            return np.vectorize(whole, [dtype])(self)
        result = self.copy()
        for index, x in np.ndenumerate(self):
            result[index] = computed(kind, [x]) if isinstance(x, UnknownNumber) else kind(x)
        return result


def is_number(x: Any) -> bool:
    """Whether it is one number, unknown or not; np.ndim takes longer than isinstance."""
    return isinstance(x, UnknownNumber | float) or (not is_tensor(x) and np.ndim(x) == 0)


def is_tensor(x: object) -> bool:
    return hasattr(x, "untyped_storage")


# ---- What stands for Python's float and math, which take nothing but real numbers ------------------------------------


class AnyFloat(type):
    """isinstance(x, float) is true of each float, also where float is the class below."""

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


MATH = {getattr(math, name): in_math(name) for name in ("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt")}
