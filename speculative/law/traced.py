"""Generators whose random numbers are unknown, in the place of NumPy's, Python's and PyTorch's."""

import contextlib
import gc
import io
import math
import operator
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, CellType, MethodType
from typing import Any

import numpy as np
from numpy.random import Generator, RandomState

from speculative.law.unknown import MATH, Numbers, Unfollowed, UnknownNumber, forget_floats


class NoDistribution(Exception):
    """Something was drawn from numbers that are not probabilities."""


def shape_of(size, *numbers):
    """The shape of a draw, as NumPy has it: its size, or that of its parameters. None for one number."""
    return np.broadcast(0, *numbers).shape or None if size is None else size


class TracedRandom:
    """A generator, with the methods of NumPy's and Python's. Those that take a size give Numbers."""

    walk: Any = None  # the Walk that goes on
    family = ""  # generators of one family and one seed give the same numbers

    def __init__(self, seed=None, *_, **__):
        if isinstance(seed, TracedRandom):  # as in Generator(PCG64(7))
            self.__dict__ = seed.__dict__
        else:
            self.first_seed = seed
            self.key = object()  # of its place in walk.places

    def seed(self, seed=None, *_) -> "TracedRandom":
        is_known = self.walk.reseeds and seed is not None
        self.walk.places[self.key] = (f"{self.family} {seed}" if is_known else object(), 0)
        return self

    manual_seed = seed

    def number(self) -> UnknownNumber:
        if self.key not in self.walk.places:
            self.seed(self.first_seed)
        seed, n = self.walk.places[self.key]
        self.walk.places[self.key] = seed, n + 1
        return UnknownNumber(self.walk.number(seed, n))

    def random(self, size=None, dtype=None):
        if size is None:
            return self.number()
        numbers = np.empty(size, object).view(Numbers)
        for i in range(numbers.size):
            numbers.flat[i] = self.number()
        return numbers

    random_sample = random

    def rand(self, *size):
        return self.random(size or None)

    def uniform(self, low=0.0, high=1.0, size=None):
        return self.random(shape_of(size, low, high)) * np.subtract(high, low) + low

    def exponential(self, scale=1.0, size=None):
        return -np.log(self.random(shape_of(size, scale))) * scale

    def standard_exponential(self, size=None, dtype=None, method=None):
        return self.exponential(1.0, size)

    def expovariate(self, lambd=1.0):
        return self.exponential(1 / lambd)

    def gumbel(self, loc=0.0, scale=1.0, size=None):
        return -np.log(self.exponential(1.0, shape_of(size, loc, scale))) * scale + loc

    def binomial(self, n, p, size=None):
        if n != 1:
            raise Unfollowed("binomial() with more than one trial cannot be followed")
        if not np.all((np.asarray(p) >= 0) & (np.asarray(p) <= 1)):
            raise NoDistribution
        return (self.random(shape_of(size, p)) < p) * 1

    def integers(self, low, high=None, size=None, dtype=int, endpoint=False):
        low, high = (0, low) if high is None else (low, high)
        return self.choice(np.arange(low, high + endpoint), size)

    randint = randrange = integers

    def place(self, p) -> int:  # [n], not all of them 0 -> i with chance p[i]
        cumulative = np.cumsum(p, dtype=np.float64)  # [n]
        return self.number().u.part([0.0, *(cumulative / cumulative[-1]).tolist()])

    def choice(self, a, size=None, replace=True, p=None, axis=0, shuffle=True):
        ids = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)  # [n]
        if p is not None:
            kind = p.dtype if isinstance(p, np.ndarray) and p.dtype.kind == "f" else np.dtype(float)
            if np.shape(p) != ids.shape:
                raise ValueError("'a' and 'p' must have same size")
            if abs(check_weights(p).sum() - 1) > np.finfo(kind).eps ** 0.5:  # as NumPy
                raise NoDistribution
        weights = np.ones(len(ids)) if p is None else np.asarray(p, float)  # [n]
        n = 1 if size is None else int(np.prod(size))
        if not replace and n > np.count_nonzero(weights):
            raise ValueError("Fewer non-zero entries in p than size")
        places: list[int] = []
        for _ in range(n):
            places.append(self.place(weights))
            weights = weights if replace else np.where(np.arange(len(ids)) == places[-1], 0, weights)  # [n]
        return ids[places[0]] if size is None else ids[np.array(places, int)].reshape(size)

    def choices(self, population, weights=None, *, k=1):
        weights = np.ones(len(population)) if weights is None else check_weights(weights)  # [n]
        return [population[self.place(weights)] for _ in range(k)]

    def multinomial(self, n, pvals):
        return np.bincount(self.choice(len(pvals), n, p=pvals), minlength=len(pvals))

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return unfollowed(name)


def unfollowed(name: str) -> Callable:
    def refuse(*args, **named):
        raise Unfollowed(f"{name}() cannot be followed: draw by random, uniform, choice, binomial, exponential")

    return refuse


def check_weights(p) -> np.ndarray:  # [n] -> [n] float64
    """The weights, if they are some. Raises NoDistribution."""
    p = np.asarray(p, float)  # [n]
    if not (p >= 0).all() or not 0 < p.sum() < np.inf:
        raise NoDistribution
    return p


class OfPython(TracedRandom):
    family = "python"

    def randint(self, low, high):
        return self.integers(low, high, endpoint=True)


# ---- In the place of NumPy's, Python's, PyTorch's and JAX's ----------------------------------------------------------

FAMILIES = {"numpy": "RandomState", "PCG64": "Generator default_rng PCG64 SeedSequence"}
FAMILIES |= {name: name for name in ("MT19937", "Philox", "PCG64DXSM", "SFC64")}
CLASSES = {
    name: type("TracedRandom", (TracedRandom,), {"family": family})
    for family, names in FAMILIES.items()
    for name in names.split()
}


def of_torch(torch) -> dict[str, Any]:
    """PyTorch's functions of random numbers: a tensor of numbers that are not known is an array of objects."""
    own = type("TracedRandom", (TracedRandom,), {"family": "torch"})()

    def rand(*size, generator=own, **_):
        return generator.random(size[0] if size and np.ndim(size[0]) else size)

    def multinomial(p, num_samples, replacement=False, *, generator=own):
        rows = [
            generator.choice(len(row), num_samples, replacement, check_weights(row) / check_weights(row).sum())
            for row in np.atleast_2d(np.asarray(p, float))
        ]
        return torch.tensor(np.array(rows)).reshape(*p.shape[:-1], num_samples)

    def bernoulli(p, *, generator=own):
        return torch.tensor(generator.binomial(1, np.asarray(p, float)), dtype=p.dtype)

    return {
        "rand": rand,
        "rand_like": lambda tensor, **_: own.random(tuple(tensor.shape)),
        "multinomial": multinomial,
        "bernoulli": bernoulli,
        "manual_seed": own.seed,
        "Generator": type(own),
    }


def loaded() -> set[str]:
    """The libraries with random numbers of their own."""
    return {"torch", "jax.random"} & {*sys.modules}


def replacements() -> list[tuple[Any, Any]]:
    """Each function, class and generator of random numbers, and ours in its place."""
    found: list[tuple[Any, Any]] = [(getattr(math, name), one) for name, one in MATH.items()]
    generators: dict[int, TracedRandom] = {}
    for module, own, names in (
        (np.random, np.random.mtrand._rand, CLASSES),
        (random, random._inst, {"Random": OfPython}),  # type: ignore[attr-defined]
    ):
        rng = generators[id(own)] = names.get("Random", CLASSES["RandomState"])()
        for name, one in vars(module).items():
            if name in names:
                found.append((one, names[name]))
            elif getattr(one, "__self__", None) is own or name == "seed":
                found.append((one, getattr(rng, name)))
    olds = [one for one in gc.get_objects() if type(one) in (Generator, RandomState, random.Random)]
    for one in olds:
        generators.setdefault(id(one), TracedRandom(pickle.dumps(one)))  # those of one state give the same numbers
    for one in [*olds, *gc.get_referrers(*olds)]:
        if id(one) in generators:
            found.append((one, generators[id(one)]))
        elif isinstance(one, BuiltinMethodType | MethodType) and (rng := generators.get(id(one.__self__))):
            found.append((one, getattr(rng, one.__name__)))
    for name in loaded():
        module = sys.modules[name]
        stand_ins = of_torch(module) if name == "torch" else {}
        for key, one in vars(module).items():
            if key in stand_ins or (name == "jax.random" and callable(one)):
                found.append((one, stand_ins.get(key) or unfollowed(f"{name}.{key}")))
    return found


@contextlib.contextmanager
def everywhere() -> Iterator[None]:
    """Replace the generators wherever they are held, except in our own modules, and print nothing, until the end."""
    found = replacements()
    ours = {id(old): new for old, new in found}
    with contextlib.ExitStack() as stack:

        def put(change: Callable, holder, name, old, new) -> None:
            change(holder, name, new)
            stack.callback(change, holder, name, old)

        holders = gc.get_referrers(*(old for old, _ in found))
        for holder in holders:
            names = holder if isinstance(holder, dict | list) else getattr(holder, "__dict__", None)
            if isinstance(holder, CellType):
                put(setattr, holder, "cell_contents", holder.cell_contents, ours[id(holder.cell_contents)])
            elif isinstance(names, list) or (isinstance(names, dict) and not is_kept(names)):
                for name, one in [*(names.items() if isinstance(names, dict) else enumerate(names))]:
                    if id(one) in ours:
                        put(operator.setitem, names, name, one, ours[id(one)])
        for function in gc.get_referrers(*(one for one in holders if isinstance(one, tuple))):  # default arguments
            values = getattr(function, "__defaults__", None) or ()
            if any(id(one) in ours for one in values):
                put(setattr, function, "__defaults__", values, tuple(ours.get(id(one), one) for one in values))
        for quiet in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            stack.enter_context(quiet(io.StringIO()))
        stack.enter_context(np.errstate(all="ignore"))
        stack.callback(forget_floats)
        yield


def is_kept(names: dict) -> bool:
    """Whether these are the names of a module of ours, or of a class."""
    return "__module__" in names or str(names.get("__name__")).startswith("speculative")
