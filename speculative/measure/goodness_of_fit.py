"""Tests whether tokens follow their distributions, though each of them has another distribution q.

Each token is mapped to a place between 0 and 1, uniform if the token was drawn from q (the probability integral
transform). All places are counted in one histogram; a chi-square test says how far it is from flat.
"""

import numpy as np

BINS = 20  # of the histogram of places
LEVEL = 1e-4  # a check fails below this p-value: by chance in one verification of 3,000
POWER = 0.95  # with which the smallest detectable difference would have been seen


def count_place(histogram: np.ndarray, token: int, q: np.ndarray, order: np.ndarray, rng) -> None:
    """Count a token, drawn from q [n_vocab], in the histogram [BINS] of places."""
    histogram[min(int(place(token, q, order, rng) * BINS), BINS - 1)] += 1


def place(token: int, q: np.ndarray, order: np.ndarray, rng) -> float:  # q, order [n_vocab] -> between 0 and 1
    """The place of a token drawn from q, in the vocabulary by falling order, ties by id. 1 if q excludes it."""
    if q[token] == 0:
        return 1.0
    before = order > order[token]  # [n_vocab]
    before[:token] |= order[:token] == order[token]
    return (float(q[before].sum(dtype=np.float64)) + rng.random() * float(q[token])) / float(q.sum(dtype=np.float64))


def p_flat(counts: np.ndarray) -> float:  # [n_bins] -> p-value
    """The chance of counts at least this far from equal, if all bins are equally probable (Pearson 1900)."""
    from scipy.special import chdtrc

    expected = counts.sum() / len(counts)
    return float(chdtrc(len(counts) - 1, np.sum((counts - expected) ** 2) / expected))


def detectable(n: float) -> float:
    """The smallest total variation distance of the places from uniform that n draws show with POWER at LEVEL.

    A shift by total variation d adds at least n (2d)^2 to the statistic: the least if it is spread evenly over the
    bins. LEVEL is halved, as there are two orders.
    """
    from scipy.special import chdtri, chndtrinc

    noncentrality = chndtrinc(chdtri(BINS - 1, LEVEL / 2), BINS - 1, 1 - POWER)
    return float(np.sqrt(noncentrality / n) / 2)
