"""The cases of the check: random models of a few tokens whose laws can be written down, and the lengths."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, Generator

from speculative.filters import GREEDY

PROMPTS = {1: [1], 2: [0, 1], 4: [1, 0, 0, 1]}
SMALLEST = 1e-4  # of the probabilities above 0


@cache
def random_model(seed: int, n_vocab: int, parts: int = 64, support: int = 0, forks: float = 1) -> Callable:
    """model(x, n_last) -> [n_last, n_vocab], by default a row for each token of x, as in the blog. A row depends on the
    whole text before it; its entries are multiples of 1 / parts, zeros among them.

    support: that many entries are above 0, in a share `forks` of the rows, of every size from 1 down to 1e-4."""

    @cache
    def row(*context):
        rng = Generator(PCG64([seed, *context]))
        if support:
            n = 1 if rng.random() > forks else support
            weights = np.exp2(-13 * rng.random(n))  # [n]
            counts = np.maximum(np.floor(weights / weights.sum() * parts), np.ceil(SMALLEST * parts))  # [n]
            counts[counts.argmax()] += parts - counts.sum()  # so that the sum is 1 to the bit
            q = np.zeros(n_vocab, np.float32)  # [n_vocab]
            q[rng.permutation(n_vocab)[:n]] = counts / parts
            return q
        keep = rng.random(n_vocab) < 0.7  # [n_vocab]
        keep[rng.integers(n_vocab)] = True
        return rng.multinomial(parts, keep / keep.sum()).astype(np.float32) / parts  # [n_vocab]

    @cache  # computed once for all paths
    def rows(x):
        return np.stack([row(*x[: i + 1]) for i in range(len(x))])  # [n, n_vocab]

    return lambda x, n_last=0: rows(tuple(map(int, np.ravel(x))))[-n_last:].copy()


class Kind(NamedTuple):
    """A kind of rows."""

    parts: int = 2**16  # probabilities are multiples of 1 / parts
    support: int | None = None  # see random_model; None is the whole vocabulary
    forks: float = 1
    changed: Callable = lambda p, q: (p, q)  # rows of the draft and the target, [n, n_vocab] twice -> the same


def near(p, q):  # [n, n_vocab] twice -> the same
    """Drafts from rows whose largest and smallest probabilities differ by 1 / 1024 from those of q."""
    i = np.arange(len(q))
    p = q.copy()  # [n, n_vocab]
    p[i, q.argmax(axis=-1)] -= 2**-10
    p[i, q.argmin(axis=-1)] += 2**-10
    return p, q


def swapped(p, q):  # [n, n_vocab] twice -> the same
    """Drafts from rows whose probabilities above 0 are those of q in the opposite order."""
    p = q.copy()  # [n, n_vocab]
    for row in p:
        row[row > 0] = row[row > 0][::-1]
    return p, q


KINDS = {
    "small": Kind(),
    "coarse": Kind(parts=4, support=0),  # zeros, ties and one-hot rows
    "near": Kind(changed=near),
    "pairs": Kind(support=2, forks=0.6, changed=swapped),  # of few paths, so that texts can be longer
    "chain": Kind(support=2, forks=0.3, changed=swapped),  # of still fewer
    "wide": Kind(changed=lambda p, q: (GREEDY(p), q)),  # more tokens than the usual top-k keeps
}


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
        return PROMPTS[self.n_prompt]

    def models(self) -> tuple[Callable, Callable]:
        """The draft and the target: model(x, n_last=0) -> distributions; by default for each token of x."""
        return models_of(self.n_vocab, self.kind, self.number)


@cache
def models_of(n_vocab: int, kind: str, number: int) -> tuple[Callable, Callable]:
    parts, support, forks, changed = KINDS[kind]
    support = n_vocab if support is None else support
    draft, target = (random_model(2 * number + i, n_vocab, parts, support, forks) for i in (0, 1))

    @cache
    def both(x):
        return changed(draft(x), target(x))  # [n, n_vocab] twice

    def model_of(i):
        return lambda x, n_last=0: both(tuple(map(int, np.ravel(x))))[i][-n_last:].copy()

    return model_of(0), model_of(1)


def cases_of(N: int, K: int, n_vocab: int, n_prompt: int, **numbers: int) -> list[Case]:
    return [Case(N, K, n_vocab, n_prompt, kind, i) for kind, n in numbers.items() for i in range(n)]


# Our own loop drafts N - 1 tokens at most. In the blog's a full acceptance is followed by another window if N >= K + 2,
# in ours by another draft if N >= K + 3. Each line sees a mistake that no other line sees.
CASES = [
    *cases_of(1, 1, 3, 4, small=8),
    *cases_of(2, 1, 3, 2, near=4),
    *cases_of(3, 2, 3, 1, coarse=12),
    *cases_of(2, 1, 5, 1, small=4),
    *cases_of(5, 2, 3, 2, pairs=12),
    *cases_of(7, 3, 2, 1, chain=20),
    *cases_of(1, 1, 64, 2, wide=2),
]


def law_of_model(model: Callable, n: int, prompt: list[int]) -> dict:
    """The law of the first n tokens after the prompt."""
    law: dict = {(): 1.0}
    for _ in range(n):
        rows = {text: model([*prompt, *text], 1)[0] for text in law}  # [n_vocab] each
        law = {(*text, j): law[text] * float(q) for text in law for j, q in enumerate(rows[text]) if q}
    return law
