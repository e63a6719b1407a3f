"""The exact law of a random program: every path that its random numbers can take, and the probability of each.

A law is {outcome: probability}. A comparison of a random number, or a choice, is a fork, whose branches have known
chances; a path takes one branch of each. check_law asks with this whether a sampler is lossless.
"""

import time
from collections import defaultdict
from collections.abc import Callable

from speculative.law.traced import TracedRandom
from speculative.law.unknown import Again, Unfollowed, Uniform
from speculative.support.errors import UserError

MOST_NUMBERS = 500  # of a path
MOST_BRANCHES = 2_000  # of a fork
MOST_IDLE = 1_000  # calls of a model without a random number
OUT_OF_SIGHT = "some of its random numbers cannot be followed: draw from rng, np.random or random"
EXACT = 1e-6  # the distance of two laws that differ by rounding in float32


class TooLarge(UserError):
    """A program with too many paths, or a path with more than MOST_NUMBERS random numbers."""


class Walk:
    """The paths of a random program, one after the other: depth first, at each fork the first branch first."""

    def __init__(self, reseeds: bool = True):
        """reseeds: True if a seed that comes again gives the same numbers again, as in NumPy."""
        self.reseeds = reseeds
        self.forks: list[list] = []  # of this path: [the chances of the branches, the number of the one it takes]
        self.begin()

    def begin(self) -> None:
        """Go to the begin of the path."""
        self.began = time.monotonic()  # seconds
        self.depth = 0  # forks that were met
        self.weight = 1.0  # the probability of the path
        self.n_numbers = 0
        self.streams: dict = defaultdict(list)  # seed -> its numbers
        self.places: dict = {}  # key of a generator -> (its seed, how many numbers it gave)
        self.n_idle = 0  # calls of a model since the last number
        self.window: tuple = ()  # the tokens of the first call of the target

    def number(self, seed, n: int) -> Uniform:
        """The n-th number of a seed."""
        stream = self.streams[seed]
        if n == len(stream):
            stream.append(Uniform(self.branch))
        self.n_numbers += 1
        self.n_idle = 0
        if self.n_numbers > MOST_NUMBERS:
            raise TooLarge(f"a text takes more than {MOST_NUMBERS:,} random numbers: is a loop without a bound?")
        return stream[n]

    def idle(self) -> None:
        """Note a call of a model. Raises Unfollowed if there were MOST_IDLE since the last random number."""
        self.n_idle += 1
        if self.n_idle > MOST_IDLE:
            raise Unfollowed(f"no progress: {MOST_IDLE:,} calls of a model without a random number")

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


def law_of(program: Callable, walk: Walk | None = None, most: float = float("inf")) -> dict:
    """program(rng) -> an outcome -> {outcome: its exact probability}. Raises UserError, TooLarge above `most` paths."""
    walk = TracedRandom.walk = walk or Walk()
    rng = TracedRandom()

    def outcome():
        walk.begin()
        try:
            return program(rng)
        except Again:
            return outcome()

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
