"""The walk along all paths of a random program. A fork has branches with known chances; a path takes one of each.

There is one WALK in a process, because a generator that somebody's code makes has no other way to it. Two begin paths
on it: paths.law_of, which starts each program and takes its paths one after the other; and samplers/drawn.py, where
each text that is drawn is a path without forks. All others ask: how many nodes there were (samplers/following.py),
how long the path takes (samplers/guard.py), and what belongs to the path alone.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from speculative.law.uniform import Uniform
from speculative.support.errors import UserError

MOST_IN_PATH = 2_000  # nodes: random numbers and calls of models


class Walk:
    """The paths of a program, one after the other: depth first, at each fork the first branch first."""

    def __init__(self) -> None:
        self.n_nodes = 0  # of all programs: random numbers and calls of models
        self.start_program()

    def start_program(self, reseeds: bool = True) -> None:
        """Start with the first path of a program.

        reseeds: whether a seed that comes again gives the same numbers again, as in NumPy.
        """
        self.reseeds = reseeds
        self.left: list = [[]]  # the paths that are not taken yet, by their branches
        self.begin_path([])

    def begin_path(self, branches: list[int]) -> None:
        """Begin the path that takes these branches, and the first ones after them."""
        self.branches = branches
        self.depth = 0  # forks that were met
        self.weight = 1.0  # the probability of the path
        self.n_nodes_before = self.n_nodes
        self.numbers: dict = defaultdict(lambda: Uniform(self.take_branch))  # {(seed, n): the nth number}
        self.of_path: dict = {}  # {a generator or the like: what it keeps, which is forgotten when the path ends}
        self.restart_clocks()

    def restart_clocks(self) -> None:
        self.began = clocks()

    def seconds(self) -> np.ndarray:  # [2]
        """The seconds since then that this process has computed, and all of them."""
        return clocks() - self.began

    def count(self) -> None:
        """Note a node. Raises UserError."""
        self.n_nodes += 1
        if self.n_nodes - self.n_nodes_before > MOST_IN_PATH:
            raise UserError(f"no progress: a text takes more than {MOST_IN_PATH:,} random numbers and calls of a model")

    def stream(self, seed) -> Iterator[Uniform]:
        """The numbers of a seed; others for each generator without a seed."""
        seed = seed if self.reseeds and seed is not None else object()
        for n in itertools.count():
            self.count()
            yield self.numbers[seed, n]

    def take_branch(self, chances: list[float]) -> int:  # [n] -> the branch that this path takes
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


WALK = Walk()
