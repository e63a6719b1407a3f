"""The cases of the check: random models of a few tokens whose laws can be written down, and the lengths.

First random rows of probabilities, and the kinds of them that a target and its draft model have.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, Generator

from speculative.filters import GREEDY

RARE = 2.0**-13  # the least of the target's probabilities above 0
SMALLEST = RARE / 2  # the least of the draft's


def coarse(rng, n_vocab, parts=64):  # -> [n_vocab]
    """A row of multiples of 1 / parts: zeros, ties and, if the parts are few, one-hot rows are among them."""
    keep = rng.random(n_vocab) < 0.7  # [n_vocab]
    keep[rng.integers(n_vocab)] = True
    return rng.multinomial(parts, keep / keep.sum()).astype(np.float32) / parts


def fine(rng, n_vocab, support=None, unsure=1.0, octaves=13):  # -> [n_vocab]
    """A row of multiples of 2^-16, of every size from 1 down to RARE.

    support: the number of entries above 0 in the share `unsure` of the rows; the others are one-hot.
    octaves: log2 of the largest ratio of two weights."""
    is_sure = rng.random() > unsure
    n = 1 if is_sure else support or n_vocab
    weights = np.exp2(-octaves * rng.random(n))  # [n]
    weights /= weights.sum()
    counts = np.floor(weights * 2**16)  # [n]
    counts = np.maximum(counts, RARE * 2**16)
    counts[counts.argmax()] += 2**16 - counts.sum()  # so that the sum is 1 to the bit
    tokens = rng.permutation(n_vocab)[:n]  # [n]
    q = np.zeros(n_vocab, np.float32)  # [n_vocab]
    q[tokens] = counts / 2**16
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
    """The row with its two largest probabilities exchanged: of such a draft few tokens are rejected, and those are
    replaced by few."""
    p = q.copy()
    first, second = np.argsort(-q, kind="stable")[:2]
    p[[first, second]] = q[[second, first]]
    return p


# ---- Kinds of rows ---------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """How the rows of a case are made."""

    target: Callable  # target(rng, n_vocab) -> q [n_vocab]
    draft: Callable  # draft(rng, q) -> p [n_vocab]
    offsets: tuple[int, ...] | None = None  # tokens after the prompt; at other positions p and q are one-hot


def mostly_sure(unsure: float) -> Kind:
    """Rows of two tokens in the share `unsure`, else of one: of few paths, for longer texts."""
    return Kind(partial(fine, support=2, unsure=unsure), lambda rng, q: swapped(q))


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
    "pairs": mostly_sure(0.6),
    "chain": mostly_sure(0.3),
    "long": mostly_sure(0.15),
    "longest": mostly_sure(0.1),
    # A draft that is sure of itself: residuals of several tokens in few paths.
    "sure": Kind(partial(coarse, parts=4), lambda rng, q: likeliest(q)),
    # A choice that comes late in a window.
    "third": Kind(fine, like(fine), (2,)),
    # More tokens than the usual top-k keeps: to replace a draft, as bonus token, and to draft.
    "wide": Kind(partial(fine, unsure=0.05, octaves=11), lambda rng, q: likeliest(fine(rng, len(q)))),
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


class Line(NamedTuple):
    """Cases of the same lengths and the same kind, whose models are different."""

    N: int
    K: int
    n_vocab: int
    n_prompt: int
    kind: str  # one of KINDS
    n_cases: int
    sees: str  # where a mistake may be that no other line sees
    first: int | None = None  # the number of a case that sees it in few paths, beside 0, 1, 2 ...

    def cases(self) -> "list[Case]":
        numbers = range(self.n_cases) if self.first is None else (self.first, *range(self.n_cases - 1))
        return [Case(self, number) for number in numbers]


class Case(NamedTuple):
    """A pair of random models, with the lengths of its line."""

    line: Line
    number: int

    @property
    def N(self) -> int:
        return self.line.N

    @property
    def K(self) -> int:
        return self.line.K

    @property
    def n_vocab(self) -> int:
        return self.line.n_vocab

    @property
    def prompt(self) -> list[int]:
        return [1, 0, 0, 1][: self.line.n_prompt]

    def size(self) -> tuple[int, int, int, int]:
        """By which a case is smaller than another: N, then K, the vocabulary and the number of texts."""
        return self.N, self.K, self.n_vocab, len(self.law())

    @cache  # noqa: B019, cases are constants
    def models(self) -> tuple[Callable, Callable]:
        """The draft and the target."""
        kind = KINDS[self.line.kind]

        def is_sure(context):
            return kind.offsets is not None and len(context) - self.line.n_prompt not in kind.offsets

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


# Our own loop drafts N - 1 tokens at most. In the blog's a full acceptance is followed by another window if N >= K + 2,
# in ours by another draft if N >= K + 3. The first line's prompt is longer than N + K tokens: see AsBlogs.
LINES = [
    Line(N=1, K=1, n_vocab=3, n_prompt=4, kind="small", n_cases=8, sees="a prompt of several tokens"),
    Line(N=2, K=1, n_vocab=3, n_prompt=2, kind="near", n_cases=4, sees="nearly equal rows, the draft less sure"),
    Line(N=2, K=1, n_vocab=3, n_prompt=2, kind="surer", n_cases=20, sees="nearly equal rows, the draft surer"),
    Line(N=3, K=2, n_vocab=3, n_prompt=1, kind="coarse", n_cases=12, sees="drafts of probability 0 to the target"),
    Line(N=2, K=1, n_vocab=5, n_prompt=1, kind="small", n_cases=4, sees="a fourth token of a vocabulary"),
    Line(N=5, K=2, n_vocab=3, n_prompt=2, kind="pairs", n_cases=12, sees="a third token after a full acceptance"),
    Line(N=7, K=3, n_vocab=2, n_prompt=1, kind="chain", n_cases=20, sees="the third draft after a full acceptance"),
    Line(N=10, K=4, n_vocab=2, n_prompt=1, kind="long", n_cases=20, sees="the fourth draft of a window"),
    Line(N=6, K=1, n_vocab=2, n_prompt=1, kind="chain", n_cases=8, sees="a third full acceptance"),
    Line(
        N=4,
        K=3,
        n_vocab=3,
        n_prompt=1,
        kind="sure",
        n_cases=12,
        sees="the third residual of a draft that is sure",
        first=141,
    ),
    Line(N=2, K=1, n_vocab=64, n_prompt=2, kind="wide", n_cases=16, sees="a residual of more than 50 tokens", first=36),
    Line(N=3, K=2, n_vocab=3, n_prompt=1, kind="full", n_cases=4, sees="the second residual, of several tokens"),
    Line(N=4, K=3, n_vocab=3, n_prompt=1, kind="third", n_cases=8, sees="the third residual, of several tokens"),
    Line(N=9, K=6, n_vocab=2, n_prompt=1, kind="longest", n_cases=12, sees="the sixth draft of a window", first=113),
    Line(N=2, K=1, n_vocab=64, n_prompt=2, kind="bonus", n_cases=2, sees="a bonus token among more than 50"),
    Line(N=1, K=1, n_vocab=64, n_prompt=2, kind="drafts", n_cases=2, sees="a draft among more than 50"),
]
CASES = [case for line in LINES for case in line.cases()]


def interleaved(cases: list[Case]) -> list[Case]:
    """The case with the fewest texts of each line, after Line.first, and so on up to the one with the most: the first
    half of all has the first half of each line. Those with one or two texts, which show little, come last.

    Of a line a with 2 cases and a line b with 4, the smallest first: a0 b0 b1 a1 b2 b3, because 0, 0, 1/4, 1/2, 1/2 and
    3/4 of the line come before them.
    """

    def size(case):
        n_texts = len(case.law())
        return n_texts < 3, case.number != case.line.first, n_texts

    shares: dict = {}  # the share of its line's cases that come before a case
    for _, group in groupby(cases, key=lambda case: case.line):
        growing = sorted(group, key=size)
        shares |= {case: n_before / len(growing) for n_before, case in enumerate(growing)}
    return sorted(shares, key=shares.__getitem__)
