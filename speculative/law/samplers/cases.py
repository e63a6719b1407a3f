"""The cases of the check: random models of a few tokens whose laws can be written down, and the lengths."""

from collections.abc import Callable
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, Generator

from speculative.law.samplers.rows import KINDS, one_hot


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
    kind: str  # of KINDS
    n_cases: int
    sees: str  # where a mistake may be that no other line sees

    def cases(self) -> "list[Case]":
        return [Case(self, number) for number in range(self.n_cases)]


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
    Line(N=4, K=3, n_vocab=3, n_prompt=1, kind="sure", n_cases=12, sees="the third residual of a draft that is sure"),
    Line(N=2, K=1, n_vocab=64, n_prompt=2, kind="wide", n_cases=16, sees="a residual of more than 50 tokens"),
    Line(N=3, K=2, n_vocab=3, n_prompt=1, kind="full", n_cases=4, sees="the second residual, of several tokens"),
    Line(N=4, K=3, n_vocab=3, n_prompt=1, kind="third", n_cases=8, sees="the third residual, of several tokens"),
    Line(N=9, K=6, n_vocab=2, n_prompt=1, kind="longest", n_cases=12, sees="the sixth draft of a window"),
    Line(N=2, K=1, n_vocab=64, n_prompt=2, kind="bonus", n_cases=2, sees="a bonus token among more than 50"),
    Line(N=1, K=1, n_vocab=64, n_prompt=2, kind="drafts", n_cases=2, sees="a draft among more than 50"),
]
CASES = [case for line in LINES for case in line.cases()]


def interleaved(cases: list[Case]) -> list[Case]:
    """The case with the fewest texts of each line, and so on up to the one with the most: the first half of all has the
    first half of each line. Those with one or two texts, which show little, come last.

    Of a line a with 2 cases and a line b with 4, the smallest first: a0 b0 b1 a1 b2 b3, because 0, 0, 1/4, 1/2, 1/2 and
    3/4 of the line come before them.
    """

    def size(case):
        n_texts = len(case.law())
        return n_texts < 3, n_texts

    shares: dict = {}  # of its line that come before it
    for _, group in groupby(cases, key=lambda case: case.line):
        growing = sorted(group, key=size)
        shares |= {case: n_before / len(growing) for n_before, case in enumerate(growing)}
    return sorted(shares, key=shares.__getitem__)
