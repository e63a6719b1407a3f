"""filters.py and the steps of sampling.py in jax.numpy: from logits to a distribution, from that to a token.

A token of probability 1e-12 is drawn that often. A vocabulary of 50,257 needs that: each token of its tail counts for
little, all of them for much, and a random number of 23 bits never draws a token whose probability is below 1e-7.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from speculative.filters import CUTS, Filters

# ---- From logits to a distribution -----------------------------------------------------------------------------------


def to_distribution(logits, filters: Filters):  # [n, n_vocab] -> [n, n_vocab]
    """Filters.__call__ for shapes that must not depend on the number of candidates.

    Probabilities are summed in float32, in NumPy in float64: a token on the very edge of the nucleus may differ.
    """
    if filters.temperature == 0:
        likeliest = jnp.argmax(logits, axis=-1)  # [n]
        return jax.nn.one_hot(likeliest, logits.shape[-1], dtype=logits.dtype)
    logits = top_k_of(logits, filters.top_k)
    temperature = min(max(filters.temperature, 2.0**-126), 2.0**126)
    largest = jnp.max(logits, axis=-1, keepdims=True)  # [n, 1]
    p = jax.nn.softmax((logits - largest) / temperature)  # [n, n_vocab]
    for name, keeps in JAX_CUTS.items():
        value = getattr(filters, name)
        if value is not None:
            p = jnp.where(keeps(p, value, jnp), p, 0)
            p /= sum_of(p)
    return p


def top_k_of(logits, top_k: int | None):  # [n, n_vocab] -> [n, n_vocab]
    """The top_k largest logits of each row; the others become -infinity."""
    if top_k is None or top_k >= logits.shape[-1]:
        return logits
    largest, _ = lax.top_k(logits, top_k)  # [n, top_k]
    return jnp.where(logits >= largest[:, -1:], logits, -jnp.inf)


def sum_of(rows):  # [n, n_vocab] -> [n, 1]
    return jnp.sum(rows, axis=-1, keepdims=True)


def nucleus_edge(p, top_p):  # [n, n_vocab] -> [n, 1]
    """The smallest probability in each row's nucleus: the largest that has top_p above it and at it.

    Floats that are not negative are ordered as the integers that their bits spell. So the edge's bits are found by
    bisection, the highest first: 31 sums over the row, where sorting it takes several times as long.
    """
    enough = top_p * sum_of(p)  # [n, 1]

    def set_bit(i, edge):  # [n, 1]
        higher = edge | (1 << (30 - i))
        above = jnp.where(p >= float_of(higher), p, 0)  # [n, n_vocab]
        return jnp.where(sum_of(above) >= enough, higher, edge)

    zeros = jnp.zeros((len(p), 1), jnp.int32)
    edge = float_of(lax.fori_loop(0, 31, set_bit, zeros))  # [n, 1]
    return jnp.fmin(edge, jnp.max(p, axis=-1, keepdims=True))  # where top_p is 0, nothing at all would be enough


def float_of(bits):  # int32 -> float32
    return lax.bitcast_convert_type(bits, jnp.float32)


# The filters on probabilities, in the order of NumPy's: the edge of the nucleus is found by bits.
JAX_CUTS = CUTS | {"top_p": lambda p, top_p, xp: p >= nucleus_edge(p, top_p)}


# ---- From a distribution to a token ----------------------------------------------------------------------------------


def uniform(key, shape: tuple):  # -> [*shape]
    """Random numbers between 0 and 1, which are as fine near 0 as a float32 is, down to 2^-40."""
    high, low = jax.random.bits(key, (2, *shape), jnp.uint32).astype(jnp.float32)  # [*shape] each
    return high * 2.0**-32 + (low + 0.5) * 2.0**-64


def sample(p, key, temperature: float = 1.0):  # [n_vocab], need not sum to 1 -> id
    """One id from the distribution p; never one of probability 0.

    The vocabulary is cut into √n_vocab stretches of equal length: one of them is drawn by its sum, then an id within
    it. So a few hundred random numbers are enough. Mode "high" has twice the bits of the default.
    """
    if temperature == 0:  # p is one-hot
        return jnp.argmax(p).astype(jnp.int32)
    first, second = jax.random.split(key)
    draw = partial(jax.random.categorical, mode="high")
    width = math.isqrt(len(p) - 1) + 1
    n_more = width * width - len(p)
    stretches = jnp.pad(p, (0, n_more)).reshape(width, width)
    sums = jnp.sum(stretches, axis=-1)  # [width]
    i = draw(first, jnp.log(sums))
    j = draw(second, jnp.log(stretches[i]))
    return (i * width + j).astype(jnp.int32)


# ---- Rules of acceptance ---------------------------------------------------------------------------------------------


class Accepted(NamedTuple):
    """The verdict of a rule on a window of K drafts, of which the first k may be accepted."""

    n: jax.Array  # number of drafts that are accepted
    rest: jax.Array  # [n_vocab], the distribution of the token after them, not normalised
    alpha: jax.Array  # [K], the chance that one more draft is accepted at each place


def of_drafts(rows, drafts):  # [K or K + 1, n_vocab], [K] -> [K]
    """The probability of each draft in its row."""
    places = jnp.arange(len(drafts))  # [K]
    return rows[places, drafts]


def overlap(p, q):  # [K, n_vocab] twice -> [K]
    return jnp.sum(jnp.minimum(p, q), axis=-1)


def lenient(b: float) -> Callable:
    """rules.Lenient: token by token, with u from [0, b). b = 1 is the paper's rule."""

    def accept(drafts, p, q, k, u):  # [K], [K, n_vocab], [K + 1, n_vocab], a number, [K]
        p_drafts = of_drafts(p, drafts)  # [K]
        q_drafts = of_drafts(q, drafts)  # [K]
        is_accepted = u * b * p_drafts < q_drafts  # [K], strict: at u = 0, q = 0 must not pass
        is_allowed = jnp.arange(len(drafts)) < k  # [K]
        passed = (is_accepted & is_allowed).astype(jnp.int32)  # [K]
        n = jnp.sum(jnp.cumprod(passed))  # those before the first that does not pass
        alpha = overlap(p, q[:-1] / b)  # [K]
        return Accepted(n, rest_after(n, k, p, q), alpha)

    return accept


def block_by_block(drafts, p, q, k, u):  # [K], [K, n_vocab], [K + 1, n_vocab], a number, [K]
    """rules.Block: the last draft that passes its test is accepted, and all before it."""
    p_drafts = of_drafts(p, drafts)  # [K]
    q_drafts = of_drafts(q, drafts)  # [K]
    w = block_weights(q_drafts / p_drafts)  # [K + 1], of no draft, of the first, ...
    weighted = w[:, None] * q  # [K + 1, n_vocab]
    h = block_tests(w, p, q, k)  # [K]
    number = 1 + jnp.arange(len(drafts))  # [K], of each draft
    passed = (u < h) & (number <= k)  # [K]
    n = jnp.max(jnp.where(passed, number, 0), initial=0)
    before = w[:-1]  # [K]
    alpha = overlap(p, weighted[:-1]) / before  # [K]
    alpha = jnp.where(before > 0, alpha, 0)
    return Accepted(n, rest_after(n, k, p, weighted), alpha)


def block_tests(w, p, q, k):  # [K + 1], [K, n_vocab], [K + 1, n_vocab], a number -> [K]
    """The h of rules.block_chances, of the first draft, of the second, ... Of the k drafts that may be accepted, the
    last one's is w."""
    w = w[1:]  # [K], of each draft
    p_after = jnp.pad(p[1:], ((0, 1), (0, 0)))  # [K, n_vocab], at the place after it, if it is not the last
    left = jnp.maximum(w[:, None] * q[1:] - p_after, 0)  # [K, n_vocab]
    s = jnp.sum(left, axis=-1)  # [K]
    is_certain = (s == 0) & (w == 1)  # [K]: p and q are equal there
    h = jnp.where(is_certain, 1.0, s / (s + (1 - w)))  # [K]
    number = 1 + jnp.arange(len(p))  # [K], of each draft
    return jnp.where(number < k, h, w)


def block_weights(ratios):  # [K] -> [K + 1]
    """1, and after each draft the product of the ratios so far, never more than 1."""

    def times(w, ratio):
        w = jnp.minimum(1.0, w * ratio)
        return w, w

    _, w = lax.scan(times, jnp.float32(1.0), ratios)  # [K]
    return jnp.append(jnp.float32(1.0), w)


def rest_after(n, k, p, q):  # a number twice, [K, n_vocab], [K + 1, n_vocab] -> [n_vocab]
    """max(0, q - p) after a rejection, or q if that is empty by rounding; q if all k drafts are accepted."""
    of_rejected = jnp.pad(p, ((0, 1), (0, 0)))[n]  # [n_vocab]
    p = jnp.where(n < k, of_rejected, 0)  # [n_vocab]
    residual = jnp.maximum(q[n] - p, 0)  # [n_vocab]
    return jnp.where(jnp.any(residual > 0), residual, q[n])


# {name in speculative.rules.RULES: function from the rule's number to accept(drafts, p, q, k, u)}
RULES = {"token": lambda value: lenient(1.0), "lenient": lenient, "block": lambda value: block_by_block}
