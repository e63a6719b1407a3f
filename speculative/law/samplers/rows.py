"""Random rows of probabilities, and the kinds of them that a target and its draft model have."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from speculative.filters import GREEDY

RARE = 2.0**-13  # the least of the target's probabilities above 0
SMALLEST = RARE / 2  # of the draft's


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
