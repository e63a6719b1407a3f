"""Generators whose random numbers are unknown, in the place of NumPy's and Python's. (PyTorch's: pytorch/)"""

import copy
import os
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, Generator, Philox, RandomState, SeedSequence

from speculative.law.forks import WALK, NotFollowed, Uniform
from speculative.law.unknown import FEW_INTS, Numbers, UnknownNumber, WholeNumber


class NoDistribution(Exception):
    """Something was drawn from numbers that are not probabilities. Each library has an error of its own for it, which
    somebody's code may catch."""


class NotProbabilities(NoDistribution, ValueError):
    """NumPy's and Python's."""


def one_trial(u, n, p):
    if n != 1:
        raise NotFollowed("binomial() with more than one trial cannot be followed")
    if np.any(np.clip(p, 0, 1) != p):
        raise NotProbabilities("p < 0, p > 1 or p is NaN")
    return (u < p) * 1


class Transform(NamedTuple):
    """The function of a number from 0 to 1 that a method of NumPy's or Python's computes."""

    n_parameters: int  # number of the method's parameters, without size
    of_u: Callable


TRANSFORMS = {
    "uniform": Transform(2, lambda u, low=0.0, high=1.0: u * np.subtract(high, low) + low),
    "standard_exponential": Transform(0, lambda u: -np.log(u)),
    "exponential": Transform(1, lambda u, scale=1.0: -np.log(u) * scale),
    "expovariate": Transform(1, lambda u, lambd=1.0: -np.log(u) / lambd),
    "gumbel": Transform(2, lambda u, loc=0.0, scale=1.0: -np.log(-np.log(u)) * scale + loc),
    "binomial": Transform(2, one_trial),
}


def name_of(seed) -> str:
    """A name for a seed. Of a random one of many values nobody draws the same again: its u is its name."""
    if isinstance(seed, WholeNumber) and seed.edges:
        seed = int(seed)
    return f"{id(seed.u)} {seed.formula}" if isinstance(seed, UnknownNumber) else str(seed)


@dataclass(eq=False)
class BitGenerator:
    """The source of the numbers of one or several generators, by NumPy's name: in Generator(PCG64(7)) both have one. It
    begins anew in each path."""

    family: str  # the kind of generator; two kinds have other numbers for one seed
    first_seed: object  # None for other numbers in each path

    def seed(self, seed) -> "State":
        """Begin with the numbers of a seed, which all of one family share."""
        return self.set(State(WALK.stream_of(None if seed is None else f"{self.family} {name_of(seed)}")))

    def set(self, state: "State") -> "State":
        WALK.of_path[self] = state
        return state

    @property
    def state(self) -> "State":
        """How far it is in this path, where it begins with its first seed."""
        return WALK.of_path.get(self) or self.seed(self.first_seed)

    def __reduce__(self):
        """A deep copy, or what is pickled and read again, goes on with the same numbers."""
        return BitGenerator.copied, (self.family, self.first_seed, replace(self.state))

    @classmethod
    def copied(cls, family: str, first_seed, state: "State") -> "BitGenerator":
        copied = cls(family, first_seed)
        copied.set(state)
        return copied


@dataclass
class State:
    """The state of a bit generator in a path: what comes next."""

    stream: Hashable
    n_drawn: int = 0  # numbers of the stream
    n_spawned: int = 0  # generators

    def next_number(self) -> Uniform:
        self.n_drawn += 1
        return WALK.number(self.stream, self.n_drawn)


class UnknownGenerator:
    """A generator, with the methods of NumPy's and Python's. Those that take a size give Numbers."""

    family = "PCG64"

    def __init__(self, seed=None, *_, **__):
        """seed: a number, or a generator or a SeedSequence with one."""
        if not isinstance(seed, UnknownGenerator):
            self.bits = BitGenerator(self.family, seed)
        elif seed.bits.family == "SeedSequence":
            self.bits = BitGenerator(self.family, seed.bits.first_seed)
        else:
            self.bits = seed.bits

    def seed(self, seed=None, *_) -> "UnknownGenerator":
        self.bits.seed(seed)
        return self

    def number(self) -> UnknownNumber:
        return UnknownNumber(self.bits.state.next_number())

    def random(self, size=None, dtype=None):
        if size is None:
            return self.number()
        numbers = np.empty(size, object).view(Numbers)
        for i in range(numbers.size):
            numbers.flat[i] = self.number()
        return numbers

    random_sample = random

    def rand(self, *shape):
        return self.random(shape or None)

    def spawn(self, n: int) -> list:
        """Other generators, whose seeds follow from this one's."""
        seed, state = self.bits.first_seed, self.bits.state
        first = state.n_spawned
        state.n_spawned += n
        return [type(self)(None if seed is None else f"{name_of(seed)} {i}") for i in range(first, first + n)]

    @property
    def bit_generator(self) -> "UnknownGenerator":
        """It stands for its bit generator too: it has the same numbers, and their state."""
        return self

    @property
    def state(self) -> State:
        return replace(self.bits.state)

    @state.setter
    def state(self, state: State) -> None:
        self.bits.set(replace(state))

    def __getattr__(self, name: str) -> Callable:
        """A method that is one of TRANSFORMS. Raises NotFollowed, if it is called, for one of another name."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in TRANSFORMS:
            return unfollowed(name)
        transform = TRANSFORMS[name]

        def draw(*parameters, size=None, **named):
            if len(parameters) > transform.n_parameters:  # NumPy takes size by position too, as the last
                parameters, size = parameters[:-1], parameters[-1]
            if size is None:
                size = np.broadcast(0, *parameters, *named.values()).shape or None
            return transform.of_u(self.random(size), *parameters, **named)

        return draw

    def choice(self, a, size=None, replace=True, p=None, axis=0, shuffle=True):
        ids = np.asarray(a) if np.ndim(a) else np.arange(a)  # [n], or [n, ...]
        p = np.ones(len(ids)) / len(ids) if p is None else np.asarray(p)  # [n]
        if p.shape != ids.shape[:1]:
            raise ValueError("'a' and 'p' must have same size")
        check_sum(p.tobytes(), p.dtype)
        n = 1 if size is None else int(np.prod(size))
        indices = draw_indices(self, p, n, replace)
        if size is None:
            return ids[indices[0]]
        drawn = ids[np.array(indices, int)]
        return drawn.reshape(*np.atleast_1d(size), *ids.shape[1:])

    def integers(self, low, high=None, size=None, dtype=int, endpoint=False):
        low, high = (0, low) if high is None else (low, high)
        n = high + endpoint - low
        if n <= FEW_INTS:
            return self.choice(np.arange(low, low + n), size)
        numbers = np.empty(() if size is None else size, object).view(Numbers)
        for i in range(numbers.size):
            numbers.flat[i] = WholeNumber.below(self.bits.state.next_number(), n, low)
        return numbers[()]

    def multinomial(self, n, pvals, size=None) -> np.ndarray:  # [..., n_values] -> the same shape, or [*size, n_values]
        """How often each value is drawn, of n draws for each row of pvals."""
        pvals = np.asarray(pvals)
        shape = np.broadcast_shapes(np.shape(n), pvals.shape[:-1]) if size is None else tuple(np.atleast_1d(size))
        ns = np.broadcast_to(n, shape)
        rows = np.broadcast_to(pvals, (*shape, pvals.shape[-1]))  # [..., n_values]
        counts = np.empty(rows.shape, int)
        for index in np.ndindex(shape):
            drawn = self.choice(len(rows[index]), ns[index], p=rows[index])
            counts[index] = np.bincount(drawn, minlength=len(rows[index]))
        return counts

    def permutation(self, x, axis=0) -> np.ndarray:
        """The numbers below x, or the parts of x, in a random order."""
        parts = np.asarray(x) if np.ndim(x) else np.arange(x)  # [n, ...]
        return parts[draw_indices(self, np.ones(len(parts)), len(parts), replace=False)]

    def shuffle(self, x, axis=0) -> None:
        """Put the parts of x in a random order, in place."""
        order = draw_indices(self, np.ones(len(x)), len(x), replace=False)
        x[:] = [x[i] for i in order] if isinstance(x, list) else x[order]


class UnknownRandomState(UnknownGenerator):
    """NumPy's older generators."""

    family = "RandomState"
    randint = UnknownGenerator.integers
    sample = ranf = UnknownGenerator.random

    def get_state(self, legacy=True) -> State:
        return self.state

    def set_state(self, state: State) -> None:
        self.state = state


class UnknownPythonRandom(UnknownGenerator):
    family = "Random"
    randrange = _randbelow = UnknownGenerator.integers  # secrets calls it so
    randbytes = staticmethod(os.urandom)  # names and keys: bytes cannot be unknown
    getstate = UnknownRandomState.get_state
    setstate = UnknownRandomState.set_state
    __copy__ = copy.deepcopy  # NumPy's generators share their numbers with a shallow copy, Python's do not

    def randint(self, low, high):
        return self.integers(low, high, endpoint=True)

    def choice(self, a, *more, **named):
        return a[draw_indices(self, np.ones(len(a)))[0]]

    def sample(self, population, k):
        return [population[i] for i in draw_indices(self, np.ones(len(population)), k, replace=False)]

    def getrandbits(self, k):
        return self.integers(2**k)

    def choices(self, population, weights=None, *, cum_weights=None, k=1):
        if cum_weights is not None:
            weights = np.diff(cum_weights, prepend=0)
        elif weights is None:
            weights = np.ones(len(population))
        if len(weights) != len(population):
            raise ValueError("The number of weights does not match the population")
        return [population[i] for i in draw_indices(self, weights, k)]


# What stands in for the objects of each class.
OF_TYPES: dict[type, type] = {Generator: UnknownGenerator, RandomState: UnknownRandomState}
OF_TYPES |= {random.Random: UnknownPythonRandom, random.SystemRandom: UnknownPythonRandom}
for of_numpy in (PCG64, PCG64DXSM, MT19937, Philox, SFC64, SeedSequence):
    OF_TYPES[of_numpy] = type(of_numpy.__name__, (UnknownGenerator,), {"family": of_numpy.__name__})


def unfollowed(name: str) -> Callable:
    def refuse(*args, **named):
        raise NotFollowed(f"{name}() cannot be followed: draw by random, uniform, choice, binomial, exponential")

    return refuse


def draw_indices(rng: UnknownGenerator, weights, n: int = 1, replace: bool = True) -> list[int]:  # [n_weights] -> [n]
    """Draw n indices with chances in proportion to the weights. Raises NotProbabilities if they are none."""
    weights = np.array(weights, float)  # [n_weights]
    if not replace and n > np.count_nonzero(weights):
        raise NotProbabilities("Fewer non-zero entries in p than size")
    indices = []
    for _ in range(n):
        edges = edges_of(weights.tobytes())  # as bytes, because a cache keeps no arrays
        u = rng.number().u
        indices.append(u.fork_at(edges))
        if WALK.listener:
            WALK.listener.drawn(indices[-1], weights, u)
        if not replace:
            weights[indices[-1]] = 0
    return indices


@lru_cache(1_000)  # kept for all paths
def edges_of(weights: bytes) -> list[float]:  # bytes of [n_weights] -> [n_weights + 1]
    """The edges of intervals in [0, 1], whose lengths are in proportion to the weights. Raises NotProbabilities."""
    cumulative = np.cumsum(np.frombuffer(weights))  # [n_weights]
    if not np.all(np.diff(cumulative, prepend=0) >= 0) or not 0 < cumulative[-1] < np.inf:
        raise NotProbabilities("Probabilities contain NaN, are negative, or their sum is 0")
    return [0.0, *(cumulative / cumulative[-1]).tolist()]


@lru_cache(1_000)
def check_sum(p: bytes, dtype: np.dtype) -> None:
    """Raise NotProbabilities if the sum of p is not 1, as exactly as NumPy asks for it."""
    exactness = np.finfo(np.result_type(dtype, np.float16)).eps ** 0.5
    if abs(np.sum(np.frombuffer(p, dtype), dtype=float) - 1) > exactness:
        raise NotProbabilities("Probabilities do not sum to 1")
