"""The cases of the check: random models of a few tokens whose laws can be written down, and the lengths."""

from collections.abc import Callable
from functools import cache, partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, Generator

from speculative.filters import GREEDY

RARE = 2.0**-13  # the least of the target's probabilities above 0
SMALLEST = RARE / 2  # of the draft's


def coarse(rng, n_vocab, parts=64):  # -> [n_vocab]
    """A row of multiples of 1 / parts: zeros, ties and, if the parts are few, one-hot rows are among them."""
    keep = rng.random(n_vocab) < 0.7  # [n_vocab]
    keep[rng.integers(n_vocab)] = True
    return rng.multinomial(parts, keep / keep.sum()).astype(np.float32) / parts


def fine(rng, n_vocab, support=None, forks=1.0, octaves=13):  # -> [n_vocab]
    """A row of multiples of 2^-16, of every size from 1 down to RARE.

    support: the number of entries above 0 in a share `forks` of the rows; the others are one-hot. octaves: log2 of the
    largest ratio of two weights."""
    is_sure = rng.random() > forks
    n = 1 if is_sure else support or n_vocab
    weights = np.exp2(-octaves * rng.random(n))  # [n]
    weights /= weights.sum()
    counts = np.floor(weights * 2**16)  # [n]
    counts = np.maximum(counts, RARE * 2**16)
    counts[counts.argmax()] += 2**16 - counts.sum()  # so that the sum is 1 to the bit
    places = rng.permutation(n_vocab)[:n]
    q = np.zeros(n_vocab, np.float32)  # [n_vocab]
    q[places] = counts / 2**16
    return q


def near(q, moved):  # [n_vocab] -> the same
    """The row with this much moved from its largest probability to its smallest."""
    p = q.copy()
    p[q.argmax()] -= moved
    p[q.argmin()] += moved
    return p


def with_rare(rng, n_vocab):  # -> [n_vocab]
    """A fine row whose smallest probability is RARE."""
    q = fine(rng, n_vocab)  # [n_vocab]
    return near(q, RARE - q.min())


def swapped(q):  # [n_vocab] -> the same
    """The row with its probabilities above 0 in the opposite order."""
    p = q.copy()
    p[q > 0] = q[q > 0][::-1]
    return p


def one_hot(rng, n_vocab):  # -> [n_vocab]
    """A row that is sure of a random token."""
    return np.eye(n_vocab, dtype=np.float32)[rng.integers(n_vocab)]


def likeliest(q):  # [n_vocab] -> the same
    return GREEDY(q[None])[0]


def exchanged(q):  # [n_vocab] -> the same
    """The row with its two largest probabilities in each other's place: a draft's p, of which few tokens are rejected,
    and those are replaced by few."""
    p = q.copy()
    first, second = np.argsort(-q, kind="stable")[:2]
    p[[first, second]] = q[[second, first]]
    return p


# ---- Kinds of rows ---------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """How the rows of a case are made."""

    target: Callable  # target(rng, n_vocab) -> q [n_vocab]
    draft: Callable  # draft(rng, q) -> p [n_vocab]
    offsets: tuple[int, ...] | None = None  # tokens after the prompt; if there are fewer or more, p and q are one-hot


def few_forks(forks: float) -> Kind:
    """Two tokens with this chance, else one: of few paths, for longer texts."""
    return Kind(partial(fine, support=2, forks=forks), lambda rng, q: swapped(q))


def like(row: Callable, **options) -> Callable:
    """The draft's row as another row of this kind."""
    return lambda rng, q: row(rng, len(q), **options)


KINDS: dict[str, Kind] = {
    "small": Kind(fine, like(fine)),
    "coarse": Kind(partial(coarse, parts=4), like(coarse, parts=4)),
    "near": Kind(with_rare, lambda rng, q: near(q, RARE)),
    "surer": Kind(with_rare, lambda rng, q: near(q, -SMALLEST)),
    # Two residuals of several tokens in one window.
    "full": Kind(fine, like(fine), (0, 1)),
    "pairs": few_forks(0.6),
    "chain": few_forks(0.3),
    "long": few_forks(0.15),
    "longest": few_forks(0.1),
    # A draft that is sure of itself: residuals of several tokens in few paths.
    "sure": Kind(partial(coarse, parts=4), lambda rng, q: likeliest(q)),
    # A choice that comes late in a window.
    "third": Kind(fine, like(fine), (2,)),
    # More tokens than the usual top-k keeps: to replace a draft, as bonus token, and to draft.
    "wide": Kind(partial(fine, forks=0.05, octaves=11), lambda rng, q: likeliest(fine(rng, len(q)))),
    "bonus": Kind(partial(fine, octaves=11), lambda rng, q: likeliest(q), (1,)),
    "drafts": Kind(partial(fine, octaves=11), lambda rng, q: exchanged(q), (0,)),
}


# ---- Cases -----------------------------------------------------------------------------------------------------------


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
        kind = KINDS[self.kind]

        def is_sure(context):
            return kind.offsets is not None and len(context) - self.n_prompt not in kind.offsets

        @cache
        def q(*context):
            rng = generator_of(2 * self.number + 1, *context)
            return one_hot(rng, self.n_vocab) if is_sure(context) else kind.target(rng, self.n_vocab)

        @cache
        def p(*context):
            rng = generator_of(2 * self.number, *context)
            return q(*context) if is_sure(context) else kind.draft(rng, q(*context))

        return model_of(p), model_of(q)

    @cache  # noqa: B019
    def law(self) -> dict:
        """The law of the target's first N tokens after the prompt."""
        target = self.models()[1]
        law: dict = {(): 1.0}
        for _ in range(self.N):
            longer = {}
            for text, weight in law.items():
                q = target([*self.prompt, *text], 1)[0]  # [n_vocab]
                for j in np.flatnonzero(q):
                    longer[(*text, int(j))] = weight * float(q[j])
            law = longer
        return law

    @property
    def line(self) -> tuple:
        """What it has in common with the other cases of its line."""
        return self[:5]


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
    ((3, 2, 3, 1, "full"), 4),
    ((4, 3, 3, 1, "third"), 8),
    ((9, 6, 2, 1, "longest"), 12),
    ((2, 1, 64, 2, "bonus"), 2),
    ((1, 1, 64, 2, "drafts"), 2),
]
CASES = [Case(*line, number) for line, n in LINES for number in range(n)]


def in_rounds(cases: list[Case]) -> list[Case]:
    """The case with the fewest texts of each line, and so on up to the one with the most: after the first half of all
    come the halves of all lines. Those with one or two texts, which show little, come last."""

    def size(case):
        n_texts = len(case.law())
        return n_texts < 3, n_texts

    shares: dict[Case, float] = {}  # of its line that come before it
    for _, group in groupby(cases, key=lambda case: case.line):
        line = sorted(group, key=size)
        shares |= {case: i / len(line) for i, case in enumerate(line)}
    return sorted(shares, key=shares.__getitem__)
