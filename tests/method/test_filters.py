"""The filters: what each keeps, by hand; that rows are distributions; a large vocabulary; the same on JAX."""

import itertools
import warnings

import numpy as np
import pytest

from speculative.filters import Filters


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(0.5), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
        (Filters(1, 3), [1 / 2, 1 / 4, 1 / 8, 1 / 8]),  # a tie stays
        (Filters(1, None, 0.75), [2 / 3, 1 / 3, 0, 0]),  # exactly top_p is enough
        (Filters(1, None, 0.875), [1 / 2, 1 / 4, 1 / 8, 1 / 8]),  # ties with the last of the nucleus stay
        (Filters(1, 2, 0.6), [1, 0, 0, 0]),  # of the tokens that top-k kept
        (Filters(1, None, 0.6, 0.4), [2 / 3, 1 / 3, 0, 0]),  # min-p comes last: before top-p it would leave one token
        (Filters(1, min_p=0.5), [2 / 3, 1 / 3, 0, 0]),  # exactly min_p is enough
        (Filters(1, eta=0.3), [2 / 3, 1 / 3, 0, 0]),  # more than min(0.3, sqrt(0.3) e**-1.213) = 0.163
        (Filters(2, None, 0.6), [2**0.5 / (1 + 2**0.5), 1 / (1 + 2**0.5), 0, 0]),  # after the temperature
        (Filters(0.5, 3, 0.9, 0.2), [4 / 5, 1 / 5, 0, 0]),
    ],
)
def test_what_each_filter_keeps(filters, expected):
    x = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    np.testing.assert_allclose(filters(x), [expected], atol=1e-6)


def test_every_row_is_a_distribution_of_its_own():
    """Logits with ties, -inf and spans of all sizes, at temperatures of all sizes."""
    rng = np.random.default_rng(0)
    choices = ([0, 1e-300, 0.1, 1, 10, 1e300], [None, 1, 2, 15], [None, 0, 0.25, 0.7, 1], [None, 0, 0.25, 0.7, 1])
    for filters in itertools.product(*choices):
        x = rng.integers(-3, 4, (3, rng.integers(1, 13))).astype(np.float32) * 2.0 ** int(rng.integers(-9, 99))
        x[rng.random(x.shape) < 0.2] = -np.inf
        x[:, rng.integers(x.shape[1])] = 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            p = Filters(*filters)(x)
        assert (p.dtype, p.shape) == (np.float32, x.shape)
        np.testing.assert_allclose(p.sum(axis=-1), 1, atol=1e-6)
        assert (p >= 0).all()
        assert (p[x == -np.inf] == 0).all()
        assert np.array_equal(p, [Filters(*filters)(row[None])[0] for row in x])
        if filters[0] == 0:
            assert np.array_equal(p, np.eye(x.shape[1])[x.argmax(axis=-1)])


def test_a_large_vocabulary_is_cut_as_a_full_sort_would():
    x = np.random.default_rng(0).normal(0, 3, (3, 50257)).astype(np.float32)
    p = Filters()(x)
    for top_p in (0.1, 0.5, 0.9, 0.999):
        for row, kept in zip(p, Filters(top_p=top_p)(x) > 0, strict=True):
            order = np.argsort(-row)
            n_kept = np.searchsorted(np.cumsum(row[order], dtype=np.float64), top_p) + 1
            assert set(np.flatnonzero(kept)) == set(order[:n_kept])


def test_jax_has_the_same():
    pytest.importorskip("jax")
    from speculative.engines.jax.sampling import to_distribution

    x = np.random.default_rng(0).normal(0, 1.5, (100, 9)).astype(np.float32)
    for filters in itertools.product([0.7, 1.7], [None, 4], [None, 0.83], [None, 0.21]):
        np.testing.assert_allclose(to_distribution(x, Filters(*filters)), Filters(*filters)(x), rtol=2e-4, atol=1e-6)
