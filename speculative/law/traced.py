"""Generators whose random numbers are unknown, in the place of NumPy's, Python's and PyTorch's."""

import contextlib
import functools
import gc
import inspect
import io
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.random import Generator, RandomState

from speculative.law.unknown import MATH, Numbers, Unfollowed, UnknownNumber


class NoDistribution(Exception):
    """Something was drawn from numbers that are not probabilities."""


class TracedRandom:
    """A generator. The methods of DRAWS, with NumPy's parameters, are added below."""

    walk: Any  # a Walk
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

    def time(self) -> UnknownNumber:
        """An exponential time of rate 1."""
        return -self.number().log()  # type: ignore[attr-defined]

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

    def choices(self, population, weights=None, *, cum_weights=None, k=1):
        weights = np.diff(cum_weights, prepend=0) if cum_weights is not None else weights  # [n]
        weights = np.ones(len(population)) if weights is None else check_weights(weights)  # [n]
        if len(weights) != len(population):
            raise ValueError("The number of weights does not match the population")
        return [population[self.place(weights)] for _ in range(k)]

    def multinomial(self, n, pvals, size=None):
        return np.bincount(self.choice(len(pvals), n, p=pvals), minlength=len(pvals))

    def rand(self, *size):
        return self.random(size or None)  # type: ignore[attr-defined]

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def unfollowed(*args, **named):
            raise Unfollowed(f"{name}() cannot be followed: draw by random, uniform, choice, binomial, exponential")

        return unfollowed


def check_weights(p) -> np.ndarray:  # [n] -> [n] float64
    """The weights, if they are some. Raises NoDistribution."""
    p = np.asarray(p, float)  # [n]
    if not (p >= 0).all() or not 0 < p.sum() < np.inf:
        raise NoDistribution
    return p


def one_of(rng: TracedRandom, n: float, p: float) -> int:
    """A draw of a binomial distribution of n = 1."""
    if n != 1:
        raise Unfollowed("binomial() with more than one trial cannot be followed")
    if not 0 <= p <= 1:
        raise NoDistribution
    return 1 - rng.number().u.part([0.0, float(p), 1.0])


DRAWS: dict[str, Callable] = {
    "random random_sample": lambda rng: rng.number(),
    "uniform": lambda rng, low=0.0, high=1.0: rng.number() * (high - low) + low,
    "exponential": lambda rng, scale=1.0: rng.time() * scale,
    "standard_exponential": lambda rng: rng.time(),
    "expovariate": lambda rng, lambd=1.0: rng.time() / lambd,
    "gumbel": lambda rng, loc=0.0, scale=1.0: loc - scale * rng.time().log(),
    "binomial": one_of,
    "integers randint": lambda rng, low, high=None: rng.choice(range(low) if high is None else range(low, high)),
}


def with_size(draw: Callable) -> Callable:
    """draw(rng, ...) with arrays in place of numbers, and a size after them, as NumPy's methods have them."""
    names = [*inspect.signature(draw).parameters][1:]

    def method(rng, *args, size=None, dtype=None, method=None, **named):
        named = dict(zip(names, args, strict=False)) | named
        size = args[len(names)] if len(args) > len(names) else size
        shape = np.broadcast_shapes(*map(np.shape, named.values())) if size is None else np.zeros(size, bool).shape
        if size is None and shape == ():
            return draw(rng, **named)
        columns = {name: np.broadcast_to(one, shape).ravel() for name, one in named.items()}  # [n] each
        made = [draw(rng, **{name: one[i] for name, one in columns.items()}) for i in range(math.prod(shape))]
        is_known = not any(isinstance(one, UnknownNumber) for one in made)
        return np.array(made).reshape(shape) if is_known else np.array(made, object).reshape(shape).view(Numbers)

    return method


for names, draw in DRAWS.items():
    for name in names.split():
        setattr(TracedRandom, name, with_size(draw))


def traced(walk, family: str = "", **methods: Callable) -> type[TracedRandom]:
    """A class of generators on this walk, with methods of its own."""
    return type("TracedRandom", (TracedRandom,), {"walk": walk, "family": family, **methods})


# ---- In the place of NumPy's, Python's and PyTorch's -----------------------------------------------------------------

KINDS = (Generator, RandomState, random.Random)
FAMILIES = {"numpy": "RandomState MT19937", "PCG64": "Generator default_rng PCG64 SeedSequence", "Philox": "Philox"}


def replacements(walk) -> list[tuple[ModuleType, dict[str, Any]]]:
    """For each module with random numbers, and for math, the names that are replaced."""
    of_numpy = {name: traced(walk, family) for family, names in FAMILIES.items() for name in names.split()}
    of_python = {"Random": traced(walk, "python", randint=lambda rng, low, high: rng.integers(low, high + 1))}
    for module, own, names, rng in (
        (np.random, np.random.mtrand._rand, of_numpy, of_numpy["RandomState"]()),
        (random, random._inst, of_python, of_python["Random"]()),  # type: ignore[attr-defined]
    ):
        for name, one in vars(module).items():
            if getattr(one, "__self__", None) is own or name == "seed":
                names[name] = getattr(rng, name)
    found: list[tuple[ModuleType, dict[str, Any]]] = [(np.random, of_numpy), (random, of_python), (math, MATH)]
    if "torch" in sys.modules:
        found.append((sys.modules["torch"], of_torch(sys.modules["torch"], traced(walk, "torch"))))
    return found


def of_torch(torch, kind: type[TracedRandom]) -> dict[str, Any]:
    """PyTorch's functions of random numbers: a tensor of numbers that are not known is an array of objects."""
    own = kind()

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
        "Generator": kind,
    }


def plain(function: Callable) -> Any:
    """The function itself: of a partial, a method, a wrapper, an object that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    return function if hasattr(function, "__globals__") else getattr(type(function), "__call__")  # noqa: B004, B009


def variables_of(function: Callable) -> list[dict]:
    """The variables that a function may take its generators from: its modules', its object's and its own."""
    found = [getattr(function, "keywords", {}), getattr(getattr(function, "__self__", function), "__dict__", {})]
    found.append(getattr(plain(function), "__kwdefaults__", None) or {})
    found.append(getattr(plain(function), "__globals__", {}))
    folder = os.path.dirname(found[-1].get("__file__") or "")
    for module in [*sys.modules.values()]:  # its helpers, in the same folder
        file = getattr(module, "__file__", None)
        if folder and file and os.path.dirname(file) == folder and not module.__name__.startswith("speculative"):
            found.append(vars(module))
    return found


@contextlib.contextmanager
def everywhere(walk, function: Callable) -> Iterator[None]:
    """Replace the generators of all modules and of the function, and print nothing, until the end."""
    found = replacements(walk)
    ours = {id(getattr(module, name)): one for module, names in found for name, one in names.items()}

    def instead_of(value):
        """The value, or ours in its place if it gives random numbers."""
        owner = getattr(value, "__self__", value)
        if id(value) in ours or not isinstance(owner, KINDS):
            return ours.get(id(value), value)
        rng = ours.setdefault(id(owner), traced(walk, "made before")(id(owner)))
        return rng if owner is value else getattr(rng, value.__name__)

    with contextlib.ExitStack() as stack:
        for names in variables_of(function):
            replaced = {name: instead_of(value) for name, value in names.items()}
            changed = {name: value for name, value in replaced.items() if value is not names[name]}
            stack.enter_context(patch.dict(names, changed))
        own = plain(function)
        held = [
            (cell, "cell_contents", instead_of(cell.cell_contents)) for cell in getattr(own, "__closure__", None) or ()
        ]
        held += (
            [(own, "__defaults__", (*map(instead_of, own.__defaults__),))] if getattr(own, "__defaults__", 0) else []
        )
        for owner, name, value in held:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        for module, names in found:
            stack.enter_context(patch.multiple(module, **names))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(np.errstate(all="ignore"))
        yield


def states() -> dict[int, str]:
    """The states of all generators of NumPy and Python: if one changes, it drew numbers that are not ours."""
    found = {}
    for one in gc.get_objects():
        if issubclass(type(one), KINDS) and type(one) is not random.SystemRandom:
            state = (
                one.bit_generator.state
                if isinstance(one, Generator)
                else (one.get_state() if isinstance(one, RandomState) else one.getstate())
            )
            found[id(one)] = repr(state)
    return found
