"""The law of a random program: every path that its random numbers can take, and its probability, exact up to LEAST.

A law is {outcome: probability}. A comparison of a random number, or a choice, is a fork, whose branches have known
chances; a path takes one branch of each. check.py asks with this whether a sampler is lossless.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from speculative.laws.traced import TracedRandom
from speculative.laws.unknown import MOST, Uniform
from speculative.support.errors import UserError

EXACT = 1e-6  # the distance of two laws that differ by rounding in float32
N_AGAIN = 4  # paths that are taken again


class NotAll(UserError):
    """The same path does not give the same outcome again."""

    def __init__(self) -> None:
        super().__init__(
            "it behaves differently on the same ones, so it keeps state between calls, or "
            "some of its random numbers are not from NumPy, Python or PyTorch"
        )


class TooManyPaths(UserError):
    """More than were asked for."""


class Walk:
    """The paths of a random program, one after the other: depth first, at each fork the first branch first."""

    n_nodes = 0  # random numbers and calls of models, of all walks
    path_numbers = itertools.count(1)  # of the paths of all walks

    def __init__(self, reseeds: bool = True):
        """reseeds: whether a seed that comes again gives the same numbers again, as in NumPy."""
        self.reseeds = reseeds
        self.left: list[list[int]] = [[]]  # the paths that are not taken yet, by their branches
        self.begin([])

    def begin(self, branches: list[int]) -> None:
        """Begin the path that takes these branches, and the first ones after them."""
        self.path_number = next(self.path_numbers)
        self.branches = branches
        self.depth = 0  # forks that were met
        self.weight = 1.0  # the probability of the path
        self.n_calls = 0
        self.numbers: dict = defaultdict(lambda: Uniform(self.branch))  # {(seed, n): the nth number}
        self.began = clocks()

    def count(self) -> None:
        """Note a random number or a call of a model. Raises UserError."""
        self.n_calls += 1
        Walk.n_nodes += 1
        if self.n_calls > MOST:
            raise UserError(f"no progress: a text takes more than {MOST:,} random numbers and calls of a model")

    def stream(self, seed) -> Iterator[Uniform]:
        """The numbers of a seed; others for each generator without a seed."""
        seed = seed if self.reseeds and seed is not None else object()
        for n in itertools.count():
            self.count()
            yield self.numbers[seed, n]

    def branch(self, chances: list[float]) -> int:  # [n] -> the branch that this path takes
        if self.depth == len(self.branches):
            self.left += [[*self.branches, i] for i in reversed(range(1, len(chances)))]
            self.branches.append(0)
        # A path that is taken again may meet a smaller fork here, because the program keeps state: law_of sees that.
        taken = min(self.branches[self.depth], len(chances) - 1)
        self.depth += 1
        self.weight *= chances[taken] / sum(chances)
        return taken


def clocks() -> np.ndarray:  # [2]
    """The seconds that this process has computed, and the time. On a busy machine a path may wait for long."""
    return np.array([time.process_time(), time.monotonic()])


def law_of(program: Callable, most: float = float("inf"), reseeds: bool = True) -> dict:
    """program(rng) -> an outcome -> {outcome: its probability}. Raises UserError."""
    walk = TracedRandom.walk = Walk(reseeds)
    rng = TracedRandom()

    def outcome(branches):
        walk.begin(branches)
        return program(rng)

    law: dict = defaultdict(float)
    paths: list[tuple] = []  # (its branches, its outcome)
    while walk.left:
        if len(paths) >= most:
            raise TooManyPaths(f"a case has more than {most:,} paths")
        result = outcome(walk.left.pop())
        paths.append((walk.branches, result))
        law[result] += walk.weight
    # A path has the same outcome again, after whichever other path, and the chances of all are the whole.
    again = [paths[i * len(paths) // N_AGAIN] for i in range(N_AGAIN)]
    if abs(sum(law.values()) - 1) > EXACT or any(outcome([*branches]) != result for branches, result in again):
        raise NotAll
    return dict(law)


def distance(law: dict, other: dict) -> float:
    """The total variation distance."""
    return sum(abs(law.get(text, 0) - other.get(text, 0)) for text in {*law, *other}) / 2
