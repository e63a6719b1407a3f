"""What stands for Python's float and math, which take nothing but real numbers."""

import math
from collections.abc import Callable

import numpy as np

from speculative.law.unknown import Numbers, UnknownNumber, is_tensor


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
