"""The law of a random program: every path that its random numbers can take, and its probability, exact up to LEAST.

A law is {outcome: probability}. A comparison of a random number, or a choice, is a fork of forks.py. With this the
check asks whether a sampler is lossless.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from speculative.law.forks import WALK, NotFollowed
from speculative.law.generators import UnknownGenerator
from speculative.support.errors import UserError

# The distance of two laws that differ by rounding in float32. This and LEAST, the branches that are left out, are far
# below the probabilities of the models of a check (samplers: SMALLEST = 6e-5), so none of those passes for rounding.
EXACT = 1e-6
N_AGAIN = 4  # paths that are taken again
INFINITY = float("inf")


class NotRepeatable(NotFollowed):
    """The same path does not give the same outcome again."""

    def __init__(self) -> None:
        super().__init__(
            "it behaves differently on the same ones, so it keeps state between calls, or "
            "some of its random numbers are not from NumPy, Python or PyTorch"
        )


class TooManyPaths(UserError):
    """More than were asked for."""


class Path(NamedTuple):
    """A run of a program."""

    branches: list[int]  # the number of the branch that was taken at each fork
    outcome: Any
    weight: float  # its probability


def law_of(program: Callable, most: float = INFINITY, reseeds: bool = True, most_nodes: float = INFINITY) -> dict:
    """Run program(rng) -> an outcome along all its paths. Returns {outcome: its probability}. See paths_of."""
    law: dict = defaultdict(float)
    for path in paths_of(program, most, reseeds, most_nodes):
        law[path.outcome] += path.weight
    return dict(law)


def paths_of(
    program: Callable, most: float = INFINITY, reseeds: bool = True, most_nodes: float = INFINITY
) -> list[Path]:
    """Run program(rng) -> an outcome along all its paths.

    A run follows the branches that it is given, takes the first branch at each fork after them, appends that to the
    list, and leaves the paths of the fork's other branches in WALK.left.

    most: paths. reseeds: see Walk.start_program. most_nodes: random numbers and calls of models. Raises TooManyPaths,
    NotRepeatable, and what the program raises.
    """
    WALK.start_program(reseeds)
    rng = UnknownGenerator()
    n_before = WALK.n_nodes
    paths: list[Path] = []
    while WALK.left:
        if len(paths) >= most or WALK.n_nodes - n_before > most_nodes:
            raise TooManyPaths(f"a case has more than {len(paths):,} paths")
        branches = WALK.left.pop()
        outcome = run(program, rng, branches)
        paths.append(Path(branches, outcome, WALK.weight))
    is_whole = abs(sum(path.weight for path in paths) - 1) <= EXACT
    some = [paths[i * len(paths) // N_AGAIN] for i in range(N_AGAIN)]
    # A path has the same outcome again, after whichever other path.
    if not is_whole or any(run(program, rng, [*path.branches]) != path.outcome for path in some):
        raise NotRepeatable
    return paths


def run(program: Callable, rng: UnknownGenerator, branches: list[int]) -> Hashable:
    """Run the path with these branches. Returns its outcome."""
    WALK.begin_path(branches)
    outcome = program(rng)
    if NotFollowed.raised:
        raise NotFollowed.raised[0]
    return outcome


def distance(law: dict, other: dict) -> float:
    """The total variation distance."""
    return sum(abs(law.get(text, 0) - other.get(text, 0)) for text in {*law, *other}) / 2
