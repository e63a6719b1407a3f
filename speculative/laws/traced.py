"""Generators whose random numbers are unknown, in the place of NumPy's, Python's and PyTorch's."""

import contextlib
import gc
import math
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from operator import setitem
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any

import numpy as np
from numpy.random import Generator, RandomState

from speculative.laws.unknown import MATH, Float, Numbers, UnknownNumber
from speculative.support.errors import UserError

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen", HERE)  # parts of their files' paths, and of ours


class NoDistribution(Exception):
    """Something was drawn from numbers that are not probabilities."""


def one_trial(u, n, p):
    if n != 1:
        raise UserError("binomial() with more than one trial cannot be followed")
    if np.any(np.clip(p, 0, 1) != p):
        raise NoDistribution
    return (u < p) * 1


# What NumPy's and Python's methods make of a number from 0 to 1, with their parameters.
LAWS: dict[str, Callable] = {
    "rand": lambda u: u,
    "uniform": lambda u, low=0.0, high=1.0: u * np.subtract(high, low) + low,
    "standard_exponential": lambda u: -np.log(u),
    "exponential": lambda u, scale=1.0: -np.log(u) * scale,
    "expovariate": lambda u, lambd=1.0: -np.log(u) / lambd,
    "gumbel": lambda u, loc=0.0, scale=1.0: -np.log(-np.log(u)) * scale + loc,
    "binomial": one_trial,
}


class TracedRandom:
    """A generator, with the methods of NumPy's and Python's. Those that take a size give Numbers."""

    walk: Any = None  # the Walk that goes on

    def __init__(self, seed=None, *_, **__):
        self.first_seed = seed
        self.path: Any = None  # the one in which it has begun
        if isinstance(seed, TracedRandom):  # as in Generator(PCG64(7))
            self.__dict__ = seed.__dict__

    def seed(self, seed=None, *_) -> "TracedRandom":
        """Begin with the numbers of a seed, which all generators of one class share."""
        self.path = self.walk.branches
        self.numbers = self.walk.stream(None if seed is None else f"{type(self).__name__} {seed}")
        return self

    manual_seed = seed

    def number(self) -> UnknownNumber:
        if self.path is not self.walk.branches:
            self.seed(self.first_seed)
        return UnknownNumber(next(self.numbers))

    def random(self, size=None, dtype=None):
        if size is None:
            return self.number()
        numbers = np.empty(size, object).view(Numbers)
        for i in range(numbers.size):
            numbers.flat[i] = self.number()
        return numbers

    random_sample = random

    def __getattr__(self, name: str) -> Callable:
        """A method that is one of LAWS. Raises UserError, if it is called, for one of another name."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in LAWS:
            return unfollowed(name)
        law = LAWS[name]

        def draw(*parameters, size=None, **named):
            n = law.__code__.co_argcount - 1
            parameters, rest = parameters[:n], parameters[n:]
            size = (rest if name == "rand" else rest[0]) if rest else size
            shape = np.broadcast(0, *parameters, *named.values()).shape
            return law(self.random(shape or None if size is None else size), *parameters, **named)

        return draw

    def places(self, weights, n: int = 1, replace: bool = True) -> list[int]:  # [n_weights] -> [n]
        """Draw n places with chances in proportion to the weights. Raises NoDistribution if they are none."""
        weights = np.asarray(weights, float)  # [n_weights]
        places: list[int] = []
        for _ in range(n):
            if not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
                raise NoDistribution
            cumulative = np.cumsum(weights)  # [n_weights]
            places.append(self.number().u.part([0.0, *(cumulative / cumulative[-1]).tolist()]))
            weights = weights if replace else np.where(np.arange(len(weights)) == places[-1], 0, weights)
        return places

    def choice(self, a, size=None, replace=True, p=None, axis=0, shuffle=True):
        ids = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)  # [n]
        if p is not None:
            if np.shape(p) != ids.shape:
                raise ValueError("'a' and 'p' must have same size")
            kind = np.result_type(getattr(p, "dtype", float), np.float16)
            if abs(np.sum(p, dtype=float) - 1) > np.finfo(kind).eps ** 0.5:  # as NumPy
                raise NoDistribution
        places = self.places(np.ones(len(ids)) if p is None else p, int(np.prod(size or 1)), replace)
        return ids[places[0]] if size is None else ids[np.array(places, int)].reshape(size)

    def integers(self, low, high=None, size=None, dtype=int, endpoint=False):
        low, high = (0, low) if high is None else (low, high)
        return self.choice(np.arange(low, high + endpoint), size)

    randint = randrange = integers

    def choices(self, population, weights=None, *, k=1):
        return [population[i] for i in self.places(np.ones(len(population)) if weights is None else weights, k)]

    def multinomial(self, n, pvals):
        return np.bincount(self.choice(len(pvals), n, p=pvals), minlength=len(pvals))


def unfollowed(name: str) -> Callable:
    def refuse(*args, **named):
        raise UserError(f"{name}() cannot be followed: draw by random, uniform, choice, binomial, exponential")

    return refuse


class OfRandomState(TracedRandom):
    """NumPy's older generators."""


class OfPython(TracedRandom):
    def randint(self, low, high):  # type: ignore[override]  # its last number counts
        return self.integers(low, high, endpoint=True)


class OfTorch(TracedRandom):
    """PyTorch's functions: a tensor of numbers that are not known is an array of objects."""

    def rand(self, *size, generator=None, **_):
        return (generator or self).random(size[0] if size and np.ndim(size[0]) else size)

    def rand_like(self, tensor, **_):
        return self.random(tuple(tensor.shape))

    def multinomial(self, p, num_samples, replacement=False, *, generator=None):
        rows = [(generator or self).places(row, num_samples, replacement) for row in np.atleast_2d(p)]
        return p.new_tensor(rows, dtype=int).reshape(*p.shape[:-1], num_samples)

    def bernoulli(self, p, *, generator=None):
        return p.new_tensor((generator or self).binomial(1, np.asarray(p, float)))


# ---- In the place of NumPy's, Python's, PyTorch's and JAX's ----------------------------------------------------------

OF_TYPES = {Generator: TracedRandom, RandomState: OfRandomState, random.Random: OfPython}
CONSTRUCTORS = ("default_rng", "SeedSequence", "PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def stand_ins() -> list[tuple[Any, Any]]:
    """Each function, class and generator of random numbers, and ours in its place."""
    found: list[tuple[Any, Any]] = [(getattr(math, name), one) for name, one in MATH.items()]
    found += [*OF_TYPES.items()] + [(getattr(np.random, name), TracedRandom) for name in CONSTRUCTORS]
    # Those of one state give the same numbers.
    olds = [(one, OF_TYPES[type(one)](hash(pickle.dumps(one)))) for one in gc.get_objects() if type(one) in OF_TYPES]
    generators = {id(old): new for old, new in olds}
    found += [*olds, (np.random.seed, generators[id(np.random.mtrand._rand)].seed)]
    for one in gc.get_referrers(*(old for old, _ in olds)):
        if isinstance(one, BuiltinMethodType | MethodType) and (rng := generators.get(id(one.__self__))):
            found.append((one, getattr(rng, one.__name__)))
    if torch := sys.modules.get("torch"):
        rng = OfTorch()
        names = ("rand", "rand_like", "multinomial", "bernoulli", "manual_seed")
        found += [(torch.Generator, OfTorch), *((getattr(torch, name), getattr(rng, name)) for name in names)]
    if jax_random := sys.modules.get("jax.random"):
        found += [(one, unfollowed(f"jax.random.{name}")) for name, one in vars(jax_random).items() if callable(one)]
    return found


@contextlib.contextmanager
def everywhere() -> Iterator[None]:
    """Replace them wherever they are held, except in our own modules; and float in somebody's modules."""
    found = stand_ins()
    ours = {id(old): new for old, new in found}
    changes: list[tuple] = []  # (setattr or setitem, the holder, the name, what it holds, what it shall hold)
    for holder in gc.get_referrers(*(old for old, _ in found)):
        if isinstance(holder, CellType):
            one = holder.cell_contents
            changes.append((setattr, holder, "cell_contents", one, ours[id(one)]))
        names = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        if "__module__" not in names and not str(names.get("__name__")).startswith("speculative"):
            changes += [(setitem, names, name, one, ours[id(one)]) for name, one in names.items() if id(one) in ours]
    for function in [one for one in gc.get_objects() if isinstance(one, FunctionType)]:
        names, values = function.__globals__, function.__defaults__
        if not any(part in str(names.get("__file__")) for part in LIBRARIES):
            changes.append((setitem, names, "float", names.get("float", float), Float))
            changes.append(
                (setattr, function, "__defaults__", values, values and tuple(ours.get(id(v), v) for v in values))
            )
    with contextlib.ExitStack() as stack:
        for change, holder, name, old, new in changes:
            change(holder, name, new)
            stack.callback(change, holder, name, old)
        yield
