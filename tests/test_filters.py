"""The filters: what each keeps, against plain definitions, and that the loop's output is still the target's exactly."""

import importlib
import itertools
import pickle
import types
import warnings

import numpy as np
import pytest
from enumeration import distance_from_target, random_model, remembered
from hypothesis import given
from hypothesis import strategies as st
from tiny import value_for

from speculative.cli.flags import all_flags
from speculative.drafters.model import model_drafter
from speculative.filters import Filters, to_distribution
from speculative.one_hot import OneHot
from speculative.sampling import max_fn, residual, sample, speculative_sampling


@st.composite
def logits(draw):
    """[n, n_vocab] float32 with ties, -inf, and spans of all sizes; at least one finite logit a row."""
    n, n_vocab = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    number = st.one_of(st.integers(-3, 3), st.floats(-(2.0**100), 2.0**100, width=32), st.just(-np.inf))
    rows = draw(st.lists(st.lists(number, min_size=n_vocab, max_size=n_vocab), min_size=n, max_size=n))
    rows = np.array(rows, np.float32)
    rows[np.arange(n), draw(st.integers(0, n_vocab - 1))] = draw(st.integers(-3, 3))
    return rows


temperatures = st.one_of(st.just(0), st.floats(0, 1e300), st.floats(0.1, 10))
top_ks = st.one_of(st.none(), st.integers(1, 15))
shares = st.one_of(st.none(), st.floats(0, 1), st.sampled_from([0.5, 0.25, 1]))


@given(logits(), temperatures, top_ks, shares, shares)
def test_every_row_is_a_distribution_of_its_own(x, temperature, top_k, top_p, min_p):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = np.asarray(to_distribution(x, temperature, top_k, top_p, min_p))
    assert (p.dtype, p.shape) == (np.float32, x.shape)
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(axis=-1), 1, atol=1e-6)
    assert (p[x == -np.inf] == 0).all()
    alone = [to_distribution(row[None], temperature, top_k, top_p, min_p)[0] for row in x]
    assert np.array_equal(p, np.stack(alone))
    if temperature == 0:
        assert np.array_equal(p, np.eye(x.shape[1])[x.argmax(axis=-1)])


@given(logits(), st.integers(1, 15))
def test_top_k_keeps_the_largest_and_their_ties(x, top_k):
    kept = to_distribution(x, 1e30, top_k) > 0  # so hot that what is kept does not vanish
    for row, row_kept in zip(x, kept, strict=True):
        edge = sorted(row)[-min(top_k, len(row))]
        assert (row_kept == (row >= edge) & (row > -np.inf)).all()


@given(logits(), temperatures.filter(bool), top_ks, st.floats(0, 1))
def test_top_p_keeps_the_fewest_that_are_enough_and_their_ties(x, temperature, top_k, top_p):
    before = to_distribution(x, temperature, top_k)
    after = to_distribution(x, temperature, top_k, top_p)
    for p, q in zip(before.astype(float), after.astype(float), strict=True):
        kept = (q > 0) | ((p > 0) & (p >= p[q > 0].min()))
        edge = p[kept].min()
        assert p[kept].sum() >= top_p - 1e-6
        assert p[p > edge].sum() < top_p + 1e-6 or edge == p.max()
        np.testing.assert_allclose(q, np.where(kept, p, 0) / p[kept].sum(), atol=1e-6)


@given(logits(), temperatures.filter(bool), shares, st.floats(0, 1))
def test_min_p_keeps_what_has_enough_of_the_largest(x, temperature, top_p, min_p):
    before = to_distribution(x, temperature, None, top_p)
    after = to_distribution(x, temperature, None, top_p, min_p)
    for p, q in zip(before, after, strict=True):
        kept = np.where(p >= np.float32(min_p) * p.max(), p, 0)
        np.testing.assert_allclose(q, kept / kept.sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(0.5), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
        (Filters(1, 2), [2 / 3, 1 / 3, 0, 0]),
        (Filters(1, 3), [1 / 2, 1 / 4, 1 / 8, 1 / 8]),  # a tie stays
        (Filters(1, None, 0.7), [2 / 3, 1 / 3, 0, 0]),
        (Filters(1, 2, 0.6), [1, 0, 0, 0]),  # top-p is taken of what top-k left: of two, 0.5 is 2/3
        (Filters(1, min_p=0.5), [2 / 3, 1 / 3, 0, 0]),  # a share of exactly min_p is enough
        (Filters(0.5, min_p=0.25), [4 / 5, 1 / 5, 0, 0]),  # of what temperature made
        (Filters(0.5, None, 0.7), [1, 0, 0, 0]),  # and of what temperature made: 16/22 is enough where 0.5 was not
    ],
)
def test_filters_are_applied_one_after_the_other(filters, expected):
    x = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    np.testing.assert_allclose(filters(x), [expected], atol=1e-6)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
@pytest.mark.parametrize(("top_p", "edge"), [(0.5, 0.5), (0.75, 0.25), (0.875, 0.125), (1.0, 0.125)])
def test_a_nucleus_of_exactly_top_p_is_enough(engine, top_p, edge):
    """These probabilities and their sums are exact in binary."""
    if engine == "jax":
        pytest.importorskip("jax")
    module = "speculative.filters" if engine == "numpy" else "speculative.engines.jax.sampling"
    p = np.array([[0.125, 0.5, 0.125, 0.25]], np.float32)
    assert importlib.import_module(module).nucleus_edge(p, top_p).tolist() == [[edge]]


def test_a_large_vocabulary_is_cut_as_a_full_sort_would():
    x = np.random.default_rng(0).normal(0, 3, (3, 50257)).astype(np.float32)
    p = to_distribution(x)
    for top_p in (0.1, 0.5, 0.9, 0.999):
        for row, kept in zip(p, to_distribution(x, 1, None, top_p) > 0, strict=True):
            order = np.argsort(-row)
            n_kept = np.searchsorted(np.cumsum(row[order], dtype=np.float64), top_p) + 1
            assert set(np.flatnonzero(kept)) == set(order[:n_kept])


ALONE = [Filters(**{name: value_for(all_flags()[name])}) for name in Filters._fields]
FILTERS = [*itertools.product((0, 0.5, 1, 1.7), (None, 1, 2), (None, 0.5, 0.9)), *ALONE]


@pytest.mark.parametrize("filters", ALONE)
def test_every_filter_has_an_effect_and_a_twin_for_jax(filters):
    logits = np.random.default_rng(0).normal(0, 2, (3, 40)).astype(np.float32)
    p = filters(logits)
    assert np.abs(p - Filters()(logits)).max() > 0.01
    pytest.importorskip("jax")
    from speculative.engines.jax import sampling

    np.testing.assert_allclose(sampling.to_distribution(logits, *filters), p, rtol=2e-5)


def filtered(model, filters):
    def call(x, n_last):
        with np.errstate(divide="ignore"):
            return to_distribution(np.log(model(x, n_last)), *filters)

    return remembered(call)


@pytest.mark.parametrize("filters", FILTERS)
def test_the_output_is_the_targets_under_every_filter(filters):
    """With the same filter on both sides, and with another on the draft's: a draft temperature is no more than that."""
    target = filtered(random_model(1, 3), filters)
    for draft_filters in (filters, (0.3, None, None)):
        draft = filtered(random_model(1001, 3), draft_filters)
        decode = lambda rng, draft=draft: speculative_sampling([1], model_drafter(draft, rng), target, 4, 2, rng)  # noqa: E731
        assert distance_from_target(decode, target, [1], 4) < 1e-6


def test_one_hot_rows_are_what_the_arrays_are():
    """In all that the samplers and the measuring do with rows, down to the random numbers they take."""
    ids, n_vocab = [3, 0, 9], 10
    rows, arrays = OneHot(ids, n_vocab), np.eye(n_vocab, dtype=np.float32)[ids]
    p = np.random.default_rng(0).dirichlet(np.ones(n_vocab)).astype(np.float32)
    assert np.array_equal(rows, arrays)
    assert (np.asarray(rows).dtype, rows.shape) == (np.float32, arrays.shape)
    assert (rows.sum(), rows[1].argmax()) == (3, 0)
    assert np.array_equal(pickle.loads(pickle.dumps(rows)), arrays)
    assert np.array_equal(np.stack([*rows]), arrays)
    assert np.array_equal(np.array([*rows[:2]]), arrays[:2])
    for row, array in zip(rows, arrays, strict=True):
        assert len(row) == n_vocab
        assert [float(row[j]) for j in range(n_vocab)] == array.tolist() == [*row]
        results = [[one - p, p - one, one / 0.5] for one in (row, array)]
        for a, b in zip(*results, strict=True):
            assert (type(a), a.dtype) == (np.ndarray, np.float32)
            assert np.array_equal(a, b)
        assert np.array_equal(max_fn(row), array)
        for other_row, other in zip(rows, arrays, strict=True):
            assert np.array_equal(row - other_row, array - other)
            assert np.array_equal((row - other_row) * 2, (array - other) * 2)
            assert np.array_equal(max_fn(row - other_row), max_fn(array - other))
            assert np.array_equal(residual(row, other_row), residual(array, other))
        for u in (0.0, 0.3, 1 - 2**-53):
            drawn = [sample(q, types.SimpleNamespace(random=lambda u=u: u)) for q in (row, array)]
            assert drawn[0] == drawn[1]
            assert type(drawn[0]) is int
        for side, u in itertools.product(("left", "right"), (-0.5, 0.0, 0.5, 1.0, 2.0)):
            assert np.searchsorted(np.cumsum(row), u, side=side) == np.searchsorted(np.cumsum(array), u, side=side)
    for wrong in (n_vocab, -n_vocab - 1):
        with pytest.raises(IndexError):
            rows[0][wrong]
