"""The exact law of a random program: every path that its random numbers can take, and the probability of each.

A law is {outcome: probability}. A path is a list of branch numbers: a comparison of a random number, or a choice, is a
fork, whose branches have known chances. check_law asks with this whether a sampler is lossless.
"""

import contextlib
import io
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.random import PCG64, Generator

from speculative.support.errors import UserError

MOST_FORKS = 2_000  # of a path
MOST_IDLE = 1_000  # calls of a model without a random number
EXACT = 1e-6  # the distance of two laws that differ by rounding in float32


class TooLarge(UserError):
    """A program with too many paths, or a path with more than MOST_FORKS forks."""


class NoDistribution(Exception):
    """Something was drawn from numbers that are not probabilities."""


class Walk:
    """One path of a random program: the number of the branch that it takes at each fork."""

    def __init__(self, reseeds: bool = True):
        """reseeds: True if a seed that comes again gives the same numbers again, as in NumPy."""
        self.reseeds = reseeds
        self.begin([])

    def begin(self, path: list[int]) -> None:
        """Take these branches, and the first one at each fork after them."""
        self.path = path
        self.n_branches: list[int] = []  # at each fork
        self.weight = 1.0  # the probability of the path
        self.numbers: list = []  # in the order in which they were drawn
        self.streams: dict = defaultdict(list)  # seed -> its Numbers
        self.places: dict = {}  # generator -> (its seed, how many Numbers it gave)
        self.n_idle = 0  # calls of a model since then
        self.windows: list[tuple] = []  # the tokens of each call of the target

    def drew(self, number: Any) -> None:
        """Note that a random number was drawn: the program goes on."""
        self.numbers.append(number)
        self.n_idle = 0
        if len(self.numbers) > 10 * MOST_FORKS:
            raise TooLarge(f"a text takes more than {10 * MOST_FORKS} random numbers: does the loop ever end?")

    def idle(self) -> None:
        """Note a call of a model. Raises Unfollowed if there were MOST_IDLE since the last random number."""
        self.n_idle += 1
        if self.n_idle > MOST_IDLE:
            raise Unfollowed(f"no progress: {MOST_IDLE:,} calls of a model without a random number")

    def branch(self, chances: list[float]) -> int:  # [n] -> the branch that this path takes
        possible = [i for i, chance in enumerate(chances) if chance > 0]
        depth = len(self.n_branches)
        if depth == MOST_FORKS:
            raise TooLarge(f"a text takes more than {MOST_FORKS} random numbers: does the loop end after N tokens?")
        if depth == len(self.path):
            self.path.append(0)
        self.n_branches.append(len(possible))
        taken = possible[self.path[depth] % len(possible)]
        self.weight *= chances[taken] / sum(chances)
        return taken


class Unfollowed(UserError):
    """Something is done with a random number of which no law is known."""


class UnknownNumber:
    """A rising or falling function of a random number from 0 to 1, of which each comparison tells more."""

    def __init__(self, walk: Walk, known: Any = None, rising=True, inverse=float):
        """inverse: a bound of this number -> the bound of the number from 0 to 1."""
        self.walk = walk
        self.known = known or SimpleNamespace(low=0.0, high=1.0)
        self.rising = rising
        self.inverse = inverse

    def map(self, inverse: Callable, rising: bool = True) -> "UnknownNumber":
        before = self.inverse
        return UnknownNumber(self.walk, self.known, self.rising == rising, lambda bound: before(inverse(bound)))

    def __add__(self, c):
        return each(lambda c: self.map(lambda bound: bound - c), c)

    def __mul__(self, c):
        return each(lambda c: self.map(lambda bound: bound / c, c > 0) if c else 0.0, c)

    def __neg__(self):
        return self * -1

    def __sub__(self, c):
        return self + -c

    def __rsub__(self, c):
        return -self + c

    def __truediv__(self, c):
        return each(lambda c: self.map(lambda bound: bound * c, c > 0) if c else np.inf, c)

    def __rtruediv__(self, c):
        if self.inverse is not float:
            raise Unfollowed("a division by a random number that was changed cannot be followed")
        return each(lambda c: self.map(lambda bound: c / bound if bound > 0 else np.inf, False) if c > 0 else 0.0, c)

    __radd__ = __add__
    __rmul__ = __mul__

    def log(self):
        return self.map(lambda bound: np.exp(min(bound, 700)))

    def exp(self):
        return self.map(lambda bound: np.log(bound) if bound > 0 else -np.inf)

    def item(self):
        return self

    def __float__(self):
        raise Unfollowed("a random number as a float, or compared with another one, cannot be followed")

    __int__ = __float__

    def __str__(self):
        return f"{self.known.low:.3g} to {self.known.high:.3g}"

    def part(self, edges) -> int:  # [n + 1], from 0 to 1 -> i if the number is in [edges[i], edges[i + 1])
        inner = [min(max(float(edge), self.known.low), self.known.high) for edge in edges]  # [n + 1]
        taken = self.walk.branch([b - a for a, b in pairwise(inner)])
        self.known.low, self.known.high = inner[taken : taken + 2]
        return taken

    def below(self, bound) -> bool:
        if bound != bound:  # NaN
            return False
        return (self.part([0, self.inverse(float(bound)), 1]) == 0) == self.rising

    def __lt__(self, bound):
        return bound is not self and each(self.below, bound, bool)  # np.searchsorted asks for itself

    def __ge__(self, bound):
        return bound is self or each(lambda bound: bound == bound and not self.below(bound), bound, bool)

    __gt__ = __ge__
    __le__ = __lt__


class Racer:
    """An exponential time, of a rate, or what falls as it grows. The first of several times has a known law.

    The first of two has the sum of their rates, whichever it is: so comparisons one after the other find the winner.
    """

    def __init__(self, walk: Walk, rate=1.0, falls=False, log=False):
        self.walk, self.rate, self.falls, self.is_log = walk, rate, falls, log

    def of(self, rate, **changed) -> "Racer":
        return Racer(self.walk, rate, **{"falls": self.falls, "log": self.is_log} | changed)

    def __mul__(self, c):
        if self.is_log:
            raise Unfollowed("this product of a random number cannot be followed")
        with np.errstate(divide="ignore"):
            return each(lambda c: self.of(self.rate * c if self.falls else np.divide(self.rate, c)), c)

    def __truediv__(self, c):
        with np.errstate(divide="ignore"):
            return self * np.divide(1.0, np.asarray(c, float))

    def __rtruediv__(self, c):  # c / time
        return each(lambda c: self.of(self.rate * c, falls=True), c)

    def __add__(self, c):
        if not self.is_log:
            raise Unfollowed("this sum with a random number cannot be followed")
        return each(lambda c: self.of(self.rate * np.exp(c if self.falls else -c)), c)

    def __sub__(self, c):
        return self + -c

    def __neg__(self):
        return self.of(self.rate, falls=not self.falls)

    def __rsub__(self, c):
        return -self + c

    __radd__ = __add__
    __rmul__ = __mul__

    def log(self):
        return self.of(self.rate, log=True)

    def __gt__(self, other):
        if other is self:
            return False
        if not isinstance(other, Racer) or self.falls != other.falls:
            raise Unfollowed("this comparison of a random number cannot be followed")
        if not self.rate + other.rate > 0:
            return False
        is_first = self.walk.branch([self.rate, other.rate]) == 0
        (self if is_first else other).rate = self.rate + other.rate
        return is_first == self.falls

    def __lt__(self, other):
        return other.__gt__(self)

    __ge__ = __gt__
    __le__ = __lt__


def each(function: Callable, c, dtype: Any = object):
    """function(c), or of each number in the array c."""
    if isinstance(c, UnknownNumber | Racer):
        raise Unfollowed("two random numbers in one formula cannot be followed")
    if np.ndim(c) == 0:
        return function(c)
    made = np.empty(np.shape(c), dtype)
    made.ravel()[:] = [function(one) for one in np.ravel(c)]
    return made


def filled(draw: Callable, size):
    """draw(), or an array of this size of it."""
    if size is None or size == ():
        return draw()
    made = np.empty(size, object)
    for i in np.ndindex(made.shape):
        made[i] = draw()
    return made


def log(x, *base):
    """math.log, also of a random number."""
    return x.log() if isinstance(x, UnknownNumber | Racer) and not base else LOG(x, *base)


LOG = math.log


class TracedRandom:
    """In place of a generator, and of np.random and random."""

    def __init__(self, walk: Walk | None = None, seed=None):
        self.walk = walk or Walk()
        self.first_seed = seed

    def seed(self, seed=None, *_) -> None:
        self.walk.places[self] = (str(seed) if self.walk.reseeds and seed is not None else object(), 0)

    def made(self, family: str) -> Callable:
        """In place of a constructor of generators: one seed gives the same numbers in each family."""

        def make(seed=None, *_, **options):
            if isinstance(seed, TracedRandom):
                return seed
            return TracedRandom(self.walk, None if seed is None else f"{family}{seed}")

        return make

    def random(self, size=None, dtype=None):
        if size is not None:
            return filled(self.random, size)
        if self not in self.walk.places:
            self.seed(self.first_seed)
        seed, n = self.walk.places[self]
        self.walk.places[self] = seed, n + 1
        stream = self.walk.streams[seed]
        if n == len(stream):
            stream.append(UnknownNumber(self.walk))
        self.walk.drew(stream[n])
        return stream[n]

    random_sample = random

    def rand(self, *size):
        return self.random(size or None)

    def uniform(self, low=0.0, high=1.0, size=None):
        return filled(lambda: self.random() * (high - low) + low, size)

    def racer(self) -> Racer:
        self.walk.drew(None)
        return Racer(self.walk)

    def exponential(self, scale=1.0, size=None):
        return filled(lambda: self.racer() * scale, size)

    def standard_exponential(self, size=None):
        return filled(self.racer, size)

    def gumbel(self, loc=0.0, scale=1.0, size=None):
        if loc or scale != 1:
            return self.normal()
        return filled(lambda: -self.racer().log(), size)

    def binomial(self, n, p, size=None):
        if np.any(np.asarray(n) != 1):
            return self.normal()
        if np.ndim(p):
            return np.array([self.binomial(1, one) for one in np.ravel(p)]).reshape(np.shape(p))
        if not 0 <= p <= 1:
            raise NoDistribution
        drawn = filled(lambda: 1 - self.random().part([0, p, 1]), size)
        return drawn if size is None else drawn.astype(int)

    def choice(self, a, size=None, replace=True, p=None, axis=0, shuffle=True):
        ids = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)  # [n]
        dtype = p.dtype if isinstance(p, np.ndarray) and p.dtype.kind == "f" else np.float64
        p = np.full(len(ids), 1 / len(ids)) if p is None else np.asarray(p, np.float64)  # [n]
        if p.shape != ids.shape:
            raise ValueError("'a' and 'p' must have same size")
        if not (p >= 0).all() or abs(p.sum() - 1) > max(np.finfo(dtype).eps, np.finfo(float).eps) ** 0.5:  # as NumPy
            raise NoDistribution
        if size is None:
            return ids[self.place(p)]
        n = int(np.prod(size))
        if not replace and n > np.count_nonzero(p):
            raise ValueError("Fewer non-zero entries in p than size")
        places: list[int] = []
        for _ in range(n):
            places.append(self.place(p if replace else np.where(np.isin(np.arange(len(p)), places), 0, p)))
        return ids[np.array(places, int)].reshape(size)

    def place(self, p) -> int:  # [n], not all of them 0
        cumulative = np.cumsum(p, dtype=np.float64)  # [n]
        return self.random().part([0, *cumulative / cumulative[-1]])

    def choices(self, population, weights=None, *, cum_weights=None, k=1):
        weights = np.ones(len(population)) if weights is None and cum_weights is None else weights
        p = np.diff(cum_weights, prepend=0) if weights is None else np.asarray(weights, float)  # [n]
        if len(p) != len(population):
            raise ValueError("The number of weights does not match the population")
        if not (p >= 0).all() or not p.sum() > 0:
            raise NoDistribution
        return [population[self.place(p)] for _ in range(k)]

    def multinomial(self, n, pvals, size=None):
        return np.bincount(self.choice(len(pvals), n, p=pvals), minlength=len(pvals))

    def integers(self, low, high=None, size=None):
        return self.choice(range(low) if high is None else range(low, high), size)

    randint = integers

    def randrange(self, *limits):
        return self.choice(range(*limits))

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unfollowed(f"{name}() cannot be followed: draw by random, uniform, choice, binomial, gumbel, exponential")

    @contextlib.contextmanager
    def everywhere(self, *variables: dict) -> Iterator[None]:
        """Replace NumPy's and Python's random numbers by these, also in these variables of modules, and print nothing,
        until the end."""
        names = "seed random random_sample rand uniform choice multinomial randint binomial gumbel exponential"
        names += " standard_exponential"
        of_numpy = {name: getattr(self, name) for name in names.split()}
        of_numpy |= {name: self.made("numpy") for name in ("default_rng", "Generator", "PCG64", "SeedSequence")}
        of_numpy |= {name: self.made(name) for name in ("RandomState", "MT19937", "Philox", "SFC64")}
        names = "random uniform seed choice choices randint randrange"
        of_python = {name: getattr(self, name) for name in names.split()}
        of_python |= {"Random": self.made("random"), "randint": lambda a, b: self.randrange(a, b + 1)}
        ours = {id(math.log): log}
        for module, replacements in ((np.random, of_numpy), (random, of_python)):
            ours |= {id(getattr(module, name)): one for name, one in replacements.items()}
        with contextlib.ExitStack() as stack:
            for one in variables:
                replaced = {name: self.instead_of(value, name, ours) for name, value in one.items()}
                replaced = {name: value for name, value in replaced.items() if value is not one[name]}
                stack.enter_context(patch.dict(one, replaced))
            stack.enter_context(patch.multiple(np.random, **of_numpy))
            stack.enter_context(patch.multiple(random, **of_python))
            stack.enter_context(patch.object(math, "log", log))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            stack.enter_context(np.errstate(all="ignore"))
            yield

    def instead_of(self, value, name: str, ours: dict):
        """The same value, or what stands in its place if it gives random numbers."""
        owner = getattr(value, "__self__", value)  # of a method, as after "from random import random"
        if id(value) in ours:
            return ours[id(value)]
        if isinstance(owner, Generator | np.random.RandomState | random.Random):
            return TracedRandom(self.walk, name) if owner is value else getattr(self, value.__name__)
        return value


def paths(program: Callable, draws: TracedRandom | None = None, most: int | None = None) -> Iterator[tuple]:
    """program(draws) -> an outcome, along every path -> (outcome, the path's probability). Raises TooLarge."""
    draws = draws or TracedRandom()
    path: list[int] = []
    n_paths = 0
    while path or not n_paths:
        if n_paths == most:
            raise TooLarge(f"more than {most:,} paths")
        draws.walk.begin(path)
        outcome = program(draws)
        yield outcome, draws.walk.weight
        n_paths += 1
        path = draws.walk.path[: len(draws.walk.n_branches)]
        while path and path[-1] + 1 >= draws.walk.n_branches[len(path) - 1]:
            path.pop()
        path = [*path[:-1], path[-1] + 1] if path else []


def law_of(program: Callable, draws: TracedRandom | None = None, most: int | None = None) -> dict:
    """program(draws) -> an outcome -> {outcome: its exact probability}. Raises UserError."""
    law: dict = defaultdict(float)
    for outcome, weight in paths(program, draws, most):
        law[outcome] += weight
    again = {next(paths(program, draws))[0] for _ in range(3)}  # one path gives one outcome
    if len(again) > 1 or abs(sum(law.values()) - 1) > EXACT:
        raise UserError("some of its random numbers cannot be followed: draw from rng, np.random or random")
    return dict(law)


def distance(law: dict, other: dict) -> float:
    """The total variation distance."""
    return sum(abs(law.get(text, 0) - other.get(text, 0)) for text in {*law, *other}) / 2


@cache
def random_model(seed: int, n_vocab: int, parts: int = 64, support: int = 0) -> Callable:
    """model(x, n_last) -> [n_last, n_vocab], by default a row for each token of x, as in the blog. A row depends on the
    last two tokens; its entries are multiples of 1 / parts, zeros among them.

    support: that many entries are above 0 (if 2, sometimes 1), of every size from 1 down to 1e-4."""

    @cache
    def row(*context):
        rng = Generator(PCG64([seed, *context]))
        if support:
            n = 1 if support == 2 and rng.random() < 0.4 else support
            weights = np.exp2(-13 * rng.random(n))  # [n]
            counts = np.maximum(np.floor(weights / weights.sum() * parts), np.ceil(1e-4 * parts))  # [n]
            counts[counts.argmax()] += parts - counts.sum()  # so that the sum is 1 to the bit
            q = np.zeros(n_vocab, np.float32)  # [n_vocab]
            q[rng.permutation(n_vocab)[:n]] = counts / parts
            return q
        keep = rng.random(n_vocab) < 0.7  # [n_vocab]
        keep[rng.integers(n_vocab)] = True
        return rng.multinomial(parts, keep / keep.sum()).astype(np.float32) / parts  # [n_vocab]

    @cache  # computed once for all paths
    def rows(x):
        return np.stack([row(*context) for context in pairwise((0, *x))])  # [n, n_vocab]

    return lambda x, n_last=0: rows(tuple(map(int, np.ravel(x))))[-n_last:].copy()
