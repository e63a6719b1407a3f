"""The distribution of what the JAX engine samples, at the size where it is used: GPT-2's vocabulary of 50,257."""

import math
from functools import partial

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from speculative import filters
from speculative.engines.jax import sampling as jax_sampling
from speculative.engines.jax.sampling import block_by_block, sample, to_distribution, token_by_token

N_VOCAB = 50257
WIDTH = math.isqrt(N_VOCAB - 1) + 1  # of the stretches that sample cuts the vocabulary into
TAIL = 50000  # tokens, of RARE each: 1% together
RARE = np.float32(2e-7)


def with_a_tail(seed=0):  # -> [n_vocab]
    """A few hundred tokens that have 99%, and a tail, in random places."""
    rng = np.random.default_rng(seed)
    p = np.full(N_VOCAB, RARE, np.float64)
    p[rng.permutation(N_VOCAB)[: N_VOCAB - TAIL]] = 0.99 * rng.dirichlet(np.ones(N_VOCAB - TAIL))
    return p.astype(np.float32)


def uneven(seed=0):  # -> [n_vocab]
    """Mass that differs from stretch to stretch, and that one token, a few or all of a stretch have."""
    rng = np.random.default_rng(seed)
    shape = rng.choice([1e-3, 0.1, 100], (WIDTH, 1))
    within = rng.standard_gamma(shape, (WIDTH, WIDTH)) + 1e-30  # [WIDTH, WIDTH]
    mass = rng.dirichlet(np.full(WIDTH, 0.5))  # [WIDTH]
    p = (within / within.sum(-1, keepdims=True) * mass[:, None]).ravel()[:N_VOCAB]  # [n_vocab]
    return (p / p.sum()).astype(np.float32)


def draw(p, n, seed, sample=sample, batch_size=1000):  # -> [n]
    """n ids, some of them at a time."""
    draws = jax.jit(lambda keys: jax.lax.map(partial(sample, jnp.asarray(p)), keys, batch_size=batch_size))
    return np.asarray(draws(jax.random.split(jax.random.key(seed), n)))


def deviation(found, chance):  # [n], whether each draw is of a kind
    """The distance of their number from its mean, in standard deviations."""
    return (found.sum() - found.size * chance) / np.sqrt(found.size * chance * (1 - chance))


def mass(p, chosen):  # [n_vocab] twice
    return float(p[chosen].sum(dtype=np.float64) / p.sum(dtype=np.float64))


def chi_square(ids, p, bins=None):  # bins: [n_vocab], which of them each id is in
    """Of ids that were drawn from p, less its mean and over its deviation. Without bins, 50 of about equal probability
    are taken."""
    p = np.asarray(p, np.float64) / np.sum(p, dtype=np.float64)
    if bins is None:
        bins = np.minimum(((np.cumsum(p) - p / 2) * 50).astype(int), 49)
    expected = len(ids) * np.bincount(bins, p)  # [n_bins]
    found = np.bincount(bins[ids], minlength=len(expected))  # [n_bins]
    full = expected > 5
    return (np.sum((found - expected)[full] ** 2 / expected[full]) - full.sum() + 1) / np.sqrt(2 * (full.sum() - 1))


def test_the_shortest_waiting_times_are_as_frequent_as_they_should_be():
    """Of 4 million of them 4 are below 1e-6, and 40, 400, ... below 1e-5, 1e-4, ...; the longest likewise."""
    waiting = np.asarray(jax.jit(partial(jax_sampling.exponential, shape=(2**22,)))(jax.random.key(0)))
    shortest = np.partition(waiting, 1000)[:1000]
    assert shortest.min() > 0
    assert np.isfinite(waiting).all()
    assert len(np.unique(shortest)) == 1000
    for chance in (1e-6, 1e-5, 1e-4, 0.1):
        assert abs(deviation(waiting < -np.log1p(-chance), chance)) < 4
        assert abs(deviation(waiting > -np.log(chance), chance)) < 4


def test_every_stretch_and_every_place_in_it_is_drawn_as_often_as_it_should_be():
    p = uneven()
    ids = draw(p, 20_000, seed=1)
    for bins in (*np.divmod(np.arange(N_VOCAB), WIDTH), None):
        assert chi_square(ids, p, bins) < 4


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False], ids=["q = p but for the tail", "another q"])
@pytest.mark.parametrize("accept", [token_by_token, block_by_block])
def test_a_resampled_token_is_the_targets_over_the_whole_vocabulary(accept, alike):
    """The first of two drafts, or what is resampled. In the first case, the residual is the tail and nothing else."""
    q, p = with_a_tail(), with_a_tail(seed=5)
    if alike:
        p = np.where(q == RARE, 0, q)
        p /= p.sum()

    def first(q, key):
        draft_key, key = jax.random.split(key)
        x_draft = jnp.stack([sample(jnp.asarray(p), key) for key in jax.random.split(draft_key)])  # [2]
        accepted = accept(x_draft, jnp.stack([p, p]), jnp.stack([q, q, q]), 2, key)
        return jnp.where(accepted.kept, x_draft[0], accepted.token)

    ids = draw(q, 40_000, seed=2, sample=first, batch_size=50)
    assert abs(deviation(q[ids] == RARE, mass(q, q == RARE))) < 4
    assert chi_square(ids, q) < 4


@pytest.mark.slow
def test_the_edge_of_the_nucleus_over_the_whole_vocabulary():
    """The edge lies within the tail's neighbours; what is left is distributed as NumPy's filter says."""
    rng = np.random.default_rng(3)
    logits = (2.5 * rng.standard_normal((1, N_VOCAB))).astype(np.float32)
    [p] = np.asarray(to_distribution(jnp.asarray(logits), 0.9, top_p=0.95))
    [expected] = filters.to_distribution(logits, 0.9, top_p=0.95)
    unlike = np.flatnonzero((p > 0) != (expected > 0))
    edge = expected[expected > 0].min()
    [full] = filters.to_distribution(logits, 0.9)
    assert len(unlike) <= 2
    assert np.allclose(full[unlike], edge * 0.95, rtol=1e-3)
    ids = draw(p, 100_000, seed=4)
    assert np.all(p[ids] > 0)
    assert chi_square(ids, expected) < 4
    least = (expected > 0) & (expected < 4 * edge)  # the tokens next to the edge, each rarer than 1e-4
    assert expected[least].max() < 1e-4
    assert abs(deviation(least[ids], mass(expected, least))) < 4
