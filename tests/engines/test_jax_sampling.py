"""The steps of the loop on JAX: its rules against the NumPy engine's, its draws at the size of GPT-2's vocabulary."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from speculative.engines.jax.sampling import RULES, sample
from speculative.rules import parse_rule
from speculative.sampling import Proposal, Step

# ---- Rules -----------------------------------------------------------------------------------------------------------

K = 4
N_VOCAB_OF_RULES = 4


def windows(n):
    """Drafts [n, K] from p [n, K, n_vocab], q [n, K + 1, n_vocab], how many count [n], and random numbers [n, K]: with
    zeros in p and q, drafts with equal p and q, and a u of 0."""
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(N_VOCAB_OF_RULES), (n, 2 * K + 1))
    rows *= rng.random(rows.shape) < 0.8
    rows = rows + (rows.sum(-1, keepdims=True) == 0)
    rows = (rows / rows.sum(-1, keepdims=True)).astype(np.float32)
    p = rows[:, :K]
    q = rows[:, K:]
    q[:, :K] = np.where(rng.random((n, K, 1)) < 0.2, p, q[:, :K])
    x_draft = (rng.random((n, K, 1)) > np.cumsum(p, axis=-1)).sum(-1).clip(0, N_VOCAB_OF_RULES - 1)
    x_draft = np.where(np.take_along_axis(p, x_draft[..., None], -1)[..., 0] > 0, x_draft, p.argmax(-1))
    u = rng.random((n, K)) * (rng.random((n, K)) < 0.9)
    return x_draft, p, q, rng.integers(K + 1, size=n), u.astype(np.float32)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_decides_as_that_of_numpy(name):
    """The same drafts, the same distribution after them, the same chances. (Enumeration proves NumPy's rules.)"""
    number = 0.6
    rule = parse_rule(f"{name}:{number}" if name == "lenient" else name)
    cases = windows(1000)
    found = jax.tree.map(np.asarray, jax.jit(jax.vmap(RULES[name](number)))(*cases))
    accepted = set()
    for i, (x_draft, p, q, k, u) in enumerate(zip(*cases, strict=True)):
        proposal = Proposal(x_draft[:k].tolist(), p[:k])
        rng = SimpleNamespace(random=iter([*u.tolist()[:k], 0.5, 0.5]).__next__)
        tokens = rule.accept(proposal, q[: k + 1], rng)
        n = len(tokens) - 1
        step = Step(tokens, proposal, q[: k + 1])
        last = rule.judge(proposal, q[: k + 1], iter(u.tolist())).rest
        assert found.n[i] == n
        rest = found.rest[i] / found.rest[i].sum()
        np.testing.assert_allclose(rest, last / np.sum(last), rtol=1e-3, atol=1e-6)
        chances = rule.chances(step)
        np.testing.assert_allclose(found.alpha[i][: len(chances)], chances, rtol=1e-4, atol=1e-6)
        accepted.add((k, n))
    assert len(accepted) == (K + 1) * (K + 2) / 2


# ---- Draws -----------------------------------------------------------------------------------------------------------

N_VOCAB = 50257
WIDTH = math.isqrt(N_VOCAB - 1) + 1  # of the stretches that sample cuts the vocabulary into


def uneven(seed=0):  # -> [n_vocab]
    """Mass that differs from stretch to stretch, and that one token, a few or all of a stretch have."""
    rng = np.random.default_rng(seed)
    shape = rng.choice([1e-3, 0.1, 100], (WIDTH, 1))
    within = rng.standard_gamma(shape, (WIDTH, WIDTH)) + 1e-30  # [WIDTH, WIDTH]
    mass = rng.dirichlet(np.full(WIDTH, 0.5))  # [WIDTH]
    p = (within / within.sum(-1, keepdims=True) * mass[:, None]).ravel()[:N_VOCAB]  # [n_vocab]
    return (p / p.sum()).astype(np.float32)


def chi_square(ids, p, bins):  # bins: [n_vocab], the bin of each id
    """Of ids that were drawn from p, less its mean and over its deviation."""
    expected = len(ids) * np.bincount(bins, p)  # [n_bins]
    found = np.bincount(bins[ids], minlength=len(expected))  # [n_bins]
    full = expected > 5
    return (np.sum((found - expected)[full] ** 2 / expected[full]) - full.sum() + 1) / np.sqrt(2 * (full.sum() - 1))


@pytest.mark.parametrize("n", [8_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_every_stretch_and_every_place_in_it_is_drawn_as_often_as_it_should_be(n):
    p = uneven()
    draws = jax.jit(lambda keys: jax.lax.map(partial(sample, jnp.asarray(p)), keys, batch_size=1000))
    ids = np.asarray(draws(jax.random.split(jax.random.key(1), n)))
    for bins in np.divmod(np.arange(N_VOCAB), WIDTH):
        assert chi_square(ids, p, bins) < 4
