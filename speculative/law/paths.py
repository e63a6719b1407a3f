"""The exact law of a random program: every path that its random numbers can take, and the probability of each.

A law is {outcome: probability}. A comparison of a random number, or a choice, is a fork, whose branches have known
chances; a path takes one branch of each. check_law asks with this whether a sampler is lossless.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from speculative.law.traced import TracedRandom
from speculative.law.unknown import Unfollowed, Uniform
from speculative.support.errors import UserError

MOST_CALLS = 1_000  # random numbers and calls of a model in one path
MOST_BRANCHES = 2_000  # of a fork
OUT_OF_SIGHT = "some of its random numbers cannot be followed: draw from rng, np.random or random"
EXACT = 1e-6  # the distance of two laws that differ by rounding in float32


class TooLarge(UserError):
    """A program with too many paths, or a path without an end."""


class Walk:
    """The paths of a random program, one after the other: depth first, at each fork the first branch first."""

    def __init__(self, reseeds: bool = True):
        """reseeds: whether a seed that comes again gives the same numbers again, as in NumPy."""
        self.reseeds = reseeds
        self.forks: list[list] = []  # of this path: [the chances of the branches, the number of the one it takes]
        self.begin()

    def begin(self) -> None:
        """Go to the begin of the path."""
        self.began = time.monotonic()  # seconds
        self.depth = 0  # forks that were met
        self.weight = 1.0  # the probability of the path
        self.numbers: dict = defaultdict(list)  # those of each seed, as far as they were asked for
        self.streams: dict[object, Iterator[Uniform]] = {}  # the numbers that each generator goes on with
        self.n_calls = 0

    def count(self) -> None:
        """Note a random number or a call of a model. Raises TooLarge."""
        self.n_calls += 1
        if self.n_calls > MOST_CALLS:
            raise TooLarge(f"no progress: a text takes more than {MOST_CALLS:,} random numbers and calls of a model")

    def begin_stream(self, key, seed) -> None:
        """Let the generator of this key begin with the numbers of a seed, or of none."""
        numbers = self.numbers[seed] if self.reseeds and seed is not None else []

        def stream() -> Iterator[Uniform]:
            for n in itertools.count():
                self.count()
                if n == len(numbers):
                    numbers.append(Uniform(self.branch))
                yield numbers[n]

        self.streams[key] = stream()

    def branch(self, chances: list[float]) -> int:  # [n] -> the branch that this path takes
        if len(chances) > MOST_BRANCHES:
            raise TooLarge(f"a random number is one of more than {MOST_BRANCHES:,}: compare it with a share instead")
        if self.depth == len(self.forks):
            self.forks.append([chances, 0])
        known, taken = self.forks[self.depth]
        if known != chances:
            raise Unfollowed(OUT_OF_SIGHT)
        self.depth += 1
        self.weight *= chances[taken] / sum(chances)
        return taken

    def advance(self) -> bool:
        """Go on to the next path, if there is one."""
        while self.forks and self.forks[-1][1] + 1 == len(self.forks[-1][0]):
            self.forks.pop()
        if self.forks:
            self.forks[-1][1] += 1
        return bool(self.forks)


def law_of(program: Callable, most: float = float("inf"), reseeds: bool = True) -> dict:
    """program(rng) -> an outcome -> {outcome: its exact probability}. Raises UserError, TooLarge above `most` paths."""
    walk = TracedRandom.walk = Walk(reseeds)
    rng = TracedRandom()

    def outcome():
        walk.begin()
        return program(rng)

    law: dict = defaultdict(float)
    n_paths = 0
    while not n_paths or walk.advance():
        if n_paths >= most:
            raise TooLarge(f"a case has more than {most:,} paths: of a loop without a bound, or of too many draws")
        found = outcome()
        if walk.depth < len(walk.forks):
            raise Unfollowed(OUT_OF_SIGHT)
        law[found] += walk.weight
        n_paths += 1
    if len({outcome() for _ in range(4)}) > 1:  # one path gives one outcome
        raise Unfollowed(OUT_OF_SIGHT)
    return dict(law)


def distance(law: dict, other: dict) -> float:
    """The total variation distance."""
    return sum(abs(law.get(text, 0) - other.get(text, 0)) for text in {*law, *other}) / 2
