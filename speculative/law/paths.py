"""The exact law of a random program: every path that its random numbers can take, and the probability of each.

A law is {outcome: probability}. A path is a list of branch numbers: a comparison of a random number, or a choice, is a
fork, whose branches have known chances. check_law asks with this whether a sampler is lossless.
"""

import contextlib
import io
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
        self.numbers: list[Number] = []  # in the order in which they were drawn
        self.streams: dict = defaultdict(list)  # seed -> its Numbers
        self.places: dict = {}  # generator -> (its seed, how many Numbers it gave)
        self.windows: list[tuple] = []  # the tokens of each call of the target

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


class Number:
    """A random number from 0 to 1, of which each comparison tells more; or `factor` times that number."""

    def __init__(self, walk: Walk, known: Any = None, factor: float = 1.0):
        self.walk = walk
        self.known = known or SimpleNamespace(low=0.0, high=1.0)
        self.factor = factor

    def __mul__(self, factor):
        return Number(self.walk, self.known, self.factor * factor)

    __rmul__ = __mul__

    def __str__(self):
        return f"{self.known.low:.3g} to {self.known.high:.3g}"

    def part(self, edges) -> int:  # [n + 1], from 0 to 1 -> i if the number is in [edges[i], edges[i + 1])
        inner = [min(max(float(edge), self.known.low), self.known.high) for edge in edges]  # [n + 1]
        taken = self.walk.branch([b - a for a, b in pairwise(inner)])
        self.known.low, self.known.high = inner[taken : taken + 2]
        return taken

    def __lt__(self, bound):
        if bound is self or bound != bound:  # as np.searchsorted asks; NaN
            return False
        return self.part([0, bound / self.factor if self.factor else float(bound > 0), 1]) == 0

    def __ge__(self, bound):
        return not self < bound

    __gt__ = __ge__
    __le__ = __lt__


class Draws:
    """In place of a generator, and of np.random and random."""

    def __init__(self, walk: Walk | None = None, seed=None):
        self.walk = walk or Walk()
        self.first_seed = seed

    def seed(self, seed=None) -> None:
        self.walk.places[self] = (str(seed) if self.walk.reseeds and seed is not None else object(), 0)

    def default_rng(self, seed=None) -> "Draws":
        return Draws(self.walk, seed)

    def random(self, size=None):
        if size is not None:
            return np.array([self.random() for _ in range(np.prod(size))], object).reshape(size)
        if self not in self.walk.places:
            self.seed(self.first_seed)
        seed, n = self.walk.places[self]
        self.walk.places[self] = seed, n + 1
        stream = self.walk.streams[seed]
        if n == len(stream):
            stream.append(Number(self.walk))
        self.walk.numbers.append(stream[n])
        return stream[n]

    random_sample = rand = random

    def uniform(self, low=0.0, high=1.0):
        return self.random() * high if low == 0 else self.normal()

    def choice(self, a, size=None, replace=True, p=None):
        ids = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)  # [n]
        p = np.full(len(ids), 1 / len(ids)) if p is None else np.asarray(p, np.float64)  # [n]
        if len(p) != len(ids) or not (p >= 0).all() or abs(p.sum() - 1) > 1e-3:
            raise NoDistribution
        if size is not None:
            return np.array([self.choice(ids, p=p) for _ in range(int(np.prod(size)))]).reshape(size)
        cumulative = np.cumsum(p)  # [n]
        return ids[self.random().part([0, *cumulative / cumulative[-1]])]

    def multinomial(self, n, pvals):
        return np.bincount(self.choice(len(pvals), n, p=pvals), minlength=len(pvals))

    def integers(self, low, high=None):
        return self.choice(range(low) if high is None else range(low, high))

    randint = integers

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(f"{name}() cannot be followed: draw by random, uniform, choice, multinomial or integers")

    @contextlib.contextmanager
    def everywhere(self, variables: dict) -> Iterator[None]:
        """Replace NumPy's and Python's random numbers by these, also in these variables of a module, and print nothing,
        until the end."""
        names = "seed default_rng random random_sample rand uniform choice multinomial randint"
        replaced = {}
        for name, value in variables.items():
            owner = getattr(value, "__self__", value)  # of a method, as after "from random import random"
            if isinstance(owner, Generator | np.random.RandomState | random.Random):
                replaced[name] = Draws(self.walk, name) if owner is value else getattr(self, value.__name__)
        with (
            patch.dict(variables, replaced),
            patch.multiple(np.random, **{name: getattr(self, name) for name in names.split()}),
            patch.multiple(random, random=self.random, uniform=self.uniform, seed=self.seed),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            np.errstate(all="ignore"),
        ):
            yield


def paths(program: Callable, draws: Draws | None = None, most: int | None = None) -> Iterator[tuple]:
    """program(draws) -> an outcome, along every path -> (outcome, the path's probability). Raises TooLarge."""
    draws = draws or Draws()
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


def law_of(program: Callable, draws: Draws | None = None, most: int | None = None) -> dict:
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
def random_model(seed: int, n_vocab: int, parts: int = 64) -> Callable:
    """model(x, n_last) -> [n_last, n_vocab], by default a row for each token of x, as in the blog. A row depends on the
    last two tokens; its entries are multiples of 1 / parts, zeros among them."""

    @cache
    def row(*context):
        rng = Generator(PCG64([seed, *context]))
        keep = rng.random(n_vocab) < 0.7  # [n_vocab]
        keep[rng.integers(n_vocab)] = True
        return rng.multinomial(parts, keep / keep.sum()).astype(np.float32) / parts  # [n_vocab]

    @cache  # computed once for all paths
    def rows(x):
        return np.stack([row(*context) for context in pairwise((0, *x))])  # [n, n_vocab]

    return lambda x, n_last=0: rows(tuple(map(int, x)))[-n_last:].copy()
