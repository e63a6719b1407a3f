"""The law of a random program: every path that its random numbers can take, and its probability, exact up to LEAST.

A law is {outcome: probability}. A comparison of a random number, or a choice, is a fork of walks.py. check.py asks with
this whether a sampler is lossless.
"""

from collections import defaultdict
from collections.abc import Callable

from speculative.laws.traced import TracedRandom
from speculative.laws.uniform import NotFollowed
from speculative.laws.walks import WALK
from speculative.support.errors import UserError

EXACT = 1e-6  # the distance of two laws that differ by rounding in float32
N_AGAIN = 4  # paths that are taken again


class NotAll(NotFollowed):
    """The same path does not give the same outcome again."""

    def __init__(self) -> None:
        super().__init__(
            "it behaves differently on the same ones, so it keeps state between calls, or "
            "some of its random numbers are not from NumPy, Python or PyTorch"
        )


class TooManyPaths(UserError):
    """More than were asked for."""


def law_of(program: Callable, most: float = float("inf"), reseeds: bool = True) -> dict:
    """program(rng) -> an outcome -> {outcome: its probability}. Raises UserError."""
    WALK.start(reseeds)
    rng = TracedRandom()

    def outcome(branches):
        WALK.begin(branches)
        return program(rng)

    law: dict = defaultdict(float)
    paths: list[tuple] = []  # (its branches, its outcome)
    while WALK.left:
        if len(paths) >= most:
            raise TooManyPaths(f"a case has more than {most:,} paths")
        result = outcome(WALK.left.pop())
        paths.append((WALK.branches, result))
        law[result] += WALK.weight
    # A path has the same outcome again, after whichever other path, and the chances of all are the whole.
    again = [paths[i * len(paths) // N_AGAIN] for i in range(N_AGAIN)]
    if abs(sum(law.values()) - 1) > EXACT or any(outcome([*branches]) != result for branches, result in again):
        raise NotAll
    return dict(law)


def distance(law: dict, other: dict) -> float:
    """The total variation distance."""
    return sum(abs(law.get(text, 0) - other.get(text, 0)) for text in {*law, *other}) / 2
