"""The cases of the check: random models of a few tokens whose laws can be written down, and the lengths."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, Generator

from speculative.filters import GREEDY

RARE = 2.0**-13  # the least of the target's probabilities above 0
SMALLEST = RARE / 2  # of the draft's


def coarse(rng, n_vocab: int, parts: int = 64) -> np.ndarray:  # -> [n_vocab]
    """A row of multiples of 1 / parts: zeros, ties and, if the parts are few, one-hot rows are among them."""
    keep = rng.random(n_vocab) < 0.7  # [n_vocab]
    keep[rng.integers(n_vocab)] = True
    return rng.multinomial(parts, keep / keep.sum()).astype(np.float32) / parts


def fine(rng, n_vocab: int, support: int | None = None, forks=1.0, octaves=13) -> np.ndarray:  # -> [n_vocab]
    """A row of multiples of 2^-16, of every size from 1 down to RARE.

    support: the number of entries above 0 in a share `forks` of the rows; the others are one-hot. octaves: log2 of the
    largest ratio of two weights."""
    n = 1 if rng.random() > forks else support or n_vocab
    weights = np.exp2(-octaves * rng.random(n))  # [n]
    counts = np.maximum(np.floor(weights / weights.sum() * 2**16), RARE * 2**16)  # [n]
    counts[counts.argmax()] += 2**16 - counts.sum()  # so that the sum is 1 to the bit
    q = np.zeros(n_vocab, np.float32)  # [n_vocab]
    q[rng.permutation(n_vocab)[:n]] = counts / 2**16
    return q


def near(q: np.ndarray, moved: float) -> np.ndarray:  # [n_vocab] -> the same
    """The row with this much moved from its largest probability to its smallest."""
    p = q.copy()
    p[q.argmax()] -= moved
    p[q.argmin()] += moved
    return p


def with_rare(rng, n_vocab: int) -> np.ndarray:  # -> [n_vocab]
    """A fine row whose smallest probability is RARE."""
    q = fine(rng, n_vocab)  # [n_vocab]
    return near(q, RARE - q.min())


def swapped(q: np.ndarray) -> np.ndarray:  # [n_vocab] -> the same
    """The row with its probabilities above 0 in the opposite order."""
    p = q.copy()
    p[q > 0] = q[q > 0][::-1]
    return p


# kind of rows: (the target's row from a generator, the draft's from a generator and the target's)
KINDS: dict[str, tuple[Callable, Callable]] = {
    "small": (fine, lambda rng, q: fine(rng, len(q))),
    "coarse": (lambda rng, n: coarse(rng, n, 4), lambda rng, q: coarse(rng, len(q), 4)),
    "near": (with_rare, lambda rng, q: near(q, RARE)),
    "surer": (with_rare, lambda rng, q: near(q, -SMALLEST)),
    "pairs": (lambda rng, n: fine(rng, n, 2, 0.6), lambda rng, q: swapped(q)),  # of few paths, for longer texts
    "chain": (lambda rng, n: fine(rng, n, 2, 0.3), lambda rng, q: swapped(q)),  # of still fewer
    "long": (lambda rng, n: fine(rng, n, 2, 0.15), lambda rng, q: swapped(q)),  # of the fewest
    # A draft that is sure of itself: residuals of several tokens in few paths.
    "sure": (lambda rng, n: coarse(rng, n, 4), lambda rng, q: GREEDY(q[None])[0]),
    # More tokens than the usual top-k keeps.
    "wide": (lambda rng, n: fine(rng, n, forks=0.05, octaves=11), lambda rng, q: GREEDY(fine(rng, len(q))[None])[0]),
}


def model_of(row: Callable) -> Callable:
    """row(*context) -> [n_vocab], as model(x, n_last=0) -> [n_last, n_vocab], by default a row for each token of x, as
    in the blog."""

    @cache  # computed once for all paths
    def rows(x):
        return np.stack([row(*x[: i + 1]) for i in range(len(x))])  # [n, n_vocab]

    return lambda x, n_last=0: rows(tuple(map(int, np.ravel(x))))[-n_last:].copy()


def generator_of(seed: int, *context: int) -> Generator:
    """A row depends on the whole text before it."""
    return Generator(PCG64([seed, *context]))


class Case(NamedTuple):
    """A pair of random models, and the lengths."""

    N: int
    K: int
    n_vocab: int
    n_prompt: int
    kind: str
    number: int

    @property
    def prompt(self) -> list[int]:
        return [1, 0, 0, 1][: self.n_prompt]

    @cache  # noqa: B019, cases are constants
    def models(self) -> tuple[Callable, Callable]:
        """The draft and the target."""
        target_row, draft_row = KINDS[self.kind]
        q = cache(lambda *context: target_row(generator_of(2 * self.number + 1, *context), self.n_vocab))
        p = cache(lambda *context: draft_row(generator_of(2 * self.number, *context), q(*context)))
        return model_of(p), model_of(q)

    @cache  # noqa: B019
    def law(self) -> dict:
        """The law of the target's first N tokens after the prompt."""
        target = self.models()[1]
        law: dict = {(): 1.0}
        for _ in range(self.N):
            rows = {text: target([*self.prompt, *text], 1)[0] for text in law}  # [n_vocab] each
            law = {(*text, j): law[text] * float(q) for text in law for j, q in enumerate(rows[text]) if q}
        return law


# Our own loop drafts N - 1 tokens at most. In the blog's a full acceptance is followed by another window if N >= K + 2,
# in ours by another draft if N >= K + 3. Each line sees a mistake that no other line sees.
LINES = [
    ((1, 1, 3, 4, "small"), 8),
    ((2, 1, 3, 2, "near"), 4),
    ((2, 1, 3, 2, "surer"), 20),
    ((3, 2, 3, 1, "coarse"), 12),
    ((2, 1, 5, 1, "small"), 4),
    ((5, 2, 3, 2, "pairs"), 12),
    ((7, 3, 2, 1, "chain"), 20),
    ((10, 4, 2, 1, "long"), 20),
    ((6, 1, 2, 1, "chain"), 8),
    ((4, 3, 3, 1, "sure"), 12),
    ((2, 1, 64, 2, "wide"), 16),
]
CASES = [Case(*line, number) for line, n in LINES for number in range(n)]
