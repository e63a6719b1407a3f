"""A random number that is not known yet: a formula of a u between 0 and 1, which forks when it is compared.

A program draws u, computes -log(u) / 2 with it, and asks whether that is below 0.3. The answer is True in one interval
of u and False in the rest, and the lengths of both are the chances of the answers. So the number of the program is kept
as a formula of u. As long as it rises or falls all the way, the u at which a comparison changes its answer can be found
by bisection. Nothing has to be known about a formula but its values.

The walk at the end goes along all paths: a fork has branches with known chances, and a path takes one of each.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from speculative.support.errors import UserError

LEAST = 1e-6  # a branch of a fork that is less likely is rounding of float32, and is not followed
MOST_INTS = 2_000  # whole numbers that a random number may stand for
ENDS = 2.0**-53, 1 - 2.0**-53  # the least and the largest u: there 1 / u and log(1 - u) are finite


class NotFollowed(UserError):
    """Somebody's code cannot be followed: it may be right, or wrong."""

    raised: ClassVar[list] = []  # those of this path, because somebody's code may catch one and go on

    def __init__(self, *sentence: str):
        super().__init__(*sentence)
        self.raised.append(self)


class Uniform:
    """A random number u from 0 to 1, as far as comparisons have told it."""

    def __init__(self) -> None:
        self.low, self.high = 0.0, 1.0
        self.is_spent = False  # whether it was in a race: its law is not uniform any more
        self.beaten: list[Formula] = []  # after a duel: of its own number, and of those it came before

    def fork_at(self, edges) -> int:  # [n + 1], from 0 to 1 -> i
        """Fork: u is in one of the intervals from edges[i] to edges[i + 1]. Raises NotFollowed if it was in a race."""
        if self.is_spent:
            raise NotFollowed("a random number that was compared with another one is compared again")
        inner = [min(max(edge, self.low), self.high) for edge in edges]  # [n + 1]
        taken = take_likely([b - a for a, b in pairwise(inner)])
        self.low, self.high = inner[taken : taken + 2]
        return taken

    @property
    def is_new(self) -> bool:
        """Whether no comparison has told anything of it."""
        return not self.is_spent and (self.low, self.high) == (0, 1)

    def spend(self, beaten: Sequence = ()) -> None:
        """Note a race, or a duel in which the numbers of these formulas were beaten."""
        self.is_spent = True
        self.beaten = [*beaten]


def take_likely(chances: list[float]) -> int:  # [n] -> the branch that is taken
    """Fork, without the branches that rounding explains. Raises NotFollowed if there is none left."""
    least = LEAST * sum(chances)
    possible = [i for i, chance in enumerate(chances) if chance > least]
    if not possible:
        raise NotFollowed("a choice among random numbers that all have probability 0 cannot be followed")
    if len(possible) == 1:
        return possible[0]
    return possible[WALK.take_branch([chances[i] for i in possible])]


# ---- A number as a function of u -------------------------------------------------------------------------------------


class Formula(NamedTuple):
    """function(*parameters) of a random number u. Those of the parameters that are Formulas are of the same u."""

    function: Callable  # a ufunc, or a function of arrays of numbers
    parameters: tuple

    def at(self, u):
        """The number, or the array of numbers, that it makes of u."""
        if self is ITSELF:
            return u
        values = [x.at(u) if isinstance(x, Formula) else x for x in self.parameters]
        return self.function(*values)


ITSELF = Formula(float, ())  # u itself


@cache
def find_ends(formula: Formula) -> tuple | None:
    """The values at both ENDS; None if the number neither rises nor falls from one to the other, as far as 33 points
    tell: a test, no proof."""
    values = np.asarray(formula.at(np.linspace(*ENDS, 33)))  # [33]
    before = values[:-1]  # [32]
    after = values[1:]  # [32]
    rises = np.all(after >= before)
    falls = np.all(after <= before)
    return (values[0], values[-1]) if rises or falls or np.all(np.isnan(values)) else None


def ends_of(formula: Formula) -> tuple:
    """The values at both ENDS. Raises NotFollowed if the number rises and falls."""
    ends = find_ends(formula)
    if ends is None:
        raise NotFollowed("a formula of a random number that rises and falls cannot be followed")
    return ends


@cache
def switch(formula: Formula) -> float:
    """Return the u at which the number, which is True or False, changes."""
    low, high = ENDS
    while (low + high) / 2 not in (low, high):
        grid = np.linspace(low, high, 129)  # more than the middle: a call costs more than 128 more numbers in it
        values = formula.at(grid)  # [129]
        first_after = int(np.argmax(values != values[0]))
        low, high = grid[first_after - 1], grid[first_after]
    return float(high)


@dataclass(eq=False)
class Number:
    """A random number: a function of a Uniform, which rises or falls."""

    u: Uniform
    formula: Formula = ITSELF


# ---- The walk --------------------------------------------------------------------------------------------------------
#
# There is one WALK in a process, because a generator that somebody's code makes has no other way to it. Two begin paths
# on it: paths.run, for the paths of a program that paths_of has started, and for the one that samplers/shown.py shows;
# and samplers/drawn.py, where each text that is drawn is a path without forks. All others ask: how many nodes there
# were (samplers/following.py), whether it is the same path still (samplers/guard.py), and what belongs to the path
# alone.


NO_PROGRESS = "no progress: a text takes"
MOST_IN_PATH = 2_000  # nodes: random numbers and calls of models


class Walk:
    """The paths of a program, one after the other: depth first, at each fork the first branch first."""

    def __init__(self) -> None:
        self.n_nodes = 0  # random numbers and calls of models, in all programs
        self.n_paths = 0  # paths that began, in all programs
        self.listener: Any = None  # a listener of samplers/shown.py, which is told what happens in a path
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
        self.n_paths += 1
        self.depth = 0  # forks that were met
        self.weight = 1.0  # the probability of the path
        self.n_nodes_before = self.n_nodes
        self.numbers: dict = defaultdict(Uniform)  # {(stream, n): the nth number}
        self.n_unseeded = 0  # streams
        NotFollowed.raised.clear()
        self.of_path: dict = {}  # {a generator or the like: what it keeps, which is forgotten when the path ends}

    def count(self) -> None:
        """Note a node. Raises UserError."""
        self.n_nodes += 1
        if self.n_nodes - self.n_nodes_before > MOST_IN_PATH:
            raise UserError(f"{NO_PROGRESS} more than {MOST_IN_PATH:,} random numbers and calls of a model")

    def stream_of(self, seed: str | None) -> Hashable:
        """Return the stream that `number` takes for a seed; another one for each generator without a seed."""
        if self.reseeds and seed is not None:
            return seed
        self.n_unseeded += 1
        return self.n_unseeded

    def number(self, stream: Hashable, n: int) -> Uniform:
        """The nth number of a stream, which is the same one if it is asked for again."""
        self.count()
        return self.numbers[stream, n]

    def take_branch(self, chances: list[float]) -> int:  # [n] -> the branch that this path takes
        if self.depth == len(self.branches):
            self.left += [[*self.branches, i] for i in reversed(range(1, len(chances)))]
            self.branches.append(0)
        # A path that is taken again may meet a smaller fork here, because the program keeps state: law_of sees that.
        taken = min(self.branches[self.depth], len(chances) - 1)
        self.depth += 1
        self.weight *= chances[taken] / sum(chances)
        return taken


WALK = Walk()
