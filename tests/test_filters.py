"""The filters: what each keeps, against plain definitions, and that the loop's output is still the target's exactly."""

import itertools
import pickle
import types
import warnings

import numpy as np
import pytest
from enumeration import distance_from_target, output_distribution, random_model, remembered
from hypothesis import given
from hypothesis import strategies as st

from speculative.drafters.base import Proposal
from speculative.drafters.model import model_drafter
from speculative.filters import GREEDY, Filters, to_distribution
from speculative.one_hot import OneHot
from speculative.sampling import max_fn, sample, speculative_sampling


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
top_ps = st.one_of(st.none(), st.floats(0, 1), st.sampled_from([0.5, 0.25, 1]))


@given(logits(), temperatures, top_ks, top_ps)
def test_every_row_is_a_distribution_of_its_own(x, temperature, top_k, top_p):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = np.asarray(to_distribution(x, temperature, top_k, top_p))
    assert p.dtype == np.float32 and p.shape == x.shape
    assert (p >= 0).all() and np.allclose(p.sum(axis=-1), 1, atol=1e-6)
    assert (p[x == -np.inf] == 0).all()
    assert all((p[i] == to_distribution(x[i : i + 1], temperature, top_k, top_p)[0]).all() for i in range(len(x)))


@given(logits(), top_ks, top_ps)
def test_temperature_0_is_one_hot_whatever_the_filters(x, top_k, top_p):
    p = to_distribution(x, 0, top_k, top_p)
    assert (np.sort(p, axis=-1)[:, :-1] == 0).all()
    assert (np.argmax(p, axis=-1) == np.argmax(x, axis=-1)).all()


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


def test_by_hand():
    x = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    np.testing.assert_allclose(to_distribution(x, 0.5), [[16 / 22, 4 / 22, 1 / 22, 1 / 22]], atol=1e-6)
    np.testing.assert_allclose(to_distribution(x, 1, 2), [[2 / 3, 1 / 3, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(to_distribution(x, 1, 3), [[0.5, 0.25, 0.125, 0.125]], atol=1e-6)  # a tie stays
    np.testing.assert_allclose(to_distribution(x, 1, None, 0.7), [[2 / 3, 1 / 3, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(to_distribution(x, 1, None, 0), [[1, 0, 0, 0]], atol=1e-6)
    # top-p is taken of what top-k left: of all four, 0.5 would not be enough for 0.6, but of two it is 2/3
    np.testing.assert_allclose(to_distribution(x, 1, 2, 0.6), [[1, 0, 0, 0]], atol=1e-6)
    # and of what temperature made: 16/22 is enough where 0.5 was not
    np.testing.assert_allclose(to_distribution(x, 0.5, None, 0.7), [[1, 0, 0, 0]], atol=1e-6)


def test_a_large_vocabulary_is_cut_as_a_full_sort_would():
    x = np.random.default_rng(0).normal(0, 3, (3, 50257)).astype(np.float32)
    p = to_distribution(x)
    for top_p in (0.1, 0.5, 0.9, 0.999):
        for row, kept in zip(p, to_distribution(x, 1, None, top_p) > 0, strict=True):
            order = np.argsort(-row)
            n_kept = np.searchsorted(np.cumsum(row[order], dtype=np.float64), top_p) + 1
            assert set(np.flatnonzero(kept)) == set(order[:n_kept])


@given(logits(), temperatures, top_ks, top_ps)
def test_as_one_value_they_are_the_same(x, temperature, top_k, top_p):
    filters = Filters(temperature, top_k, top_p)
    assert np.array_equal(filters(x), to_distribution(x, temperature, top_k, top_p))
    assert filters._asdict() == {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    assert np.array_equal(Filters()(x), to_distribution(x)) and np.array_equal(GREEDY(x), to_distribution(x, 0))


# The output distribution, computed and not sampled

FILTERS = list(itertools.product((0, 0.5, 1, 1.7), (None, 1, 2), (None, 0.5, 0.9)))


def filtered(model, *filters):
    def call(x, n_last):
        with np.errstate(divide="ignore"):
            return to_distribution(np.log(model(x, n_last)), *filters)

    return remembered(call)


def distance(draft_model, reported_model, target, K=2, N=4):
    """Total variation of the output from the target's, where drafts from one model are reported as another's."""

    def decode(rng):
        def draft(x, k):
            tokens = model_drafter(draft_model, rng)(x, k).tokens
            return Proposal(tokens, reported_model(np.append(x, tokens).astype(int), k + 1)[:k])

        return speculative_sampling([1], draft, target, N, K, rng)

    return distance_from_target(decode, target, [1], N)


@pytest.mark.parametrize("filters", FILTERS)
def test_the_output_is_the_targets_under_every_filter(filters):
    """With the same filter on both sides, and with another on the draft's: a draft temperature is no more than that."""
    target, draft = random_model(1, 3), random_model(1001, 3)
    for draft_filters in (filters, (0.3, None, None)):
        p = filtered(draft, *draft_filters)
        assert distance(p, p, filtered(target, *filters)) < 1e-6


@pytest.mark.parametrize("filters", [(0.5, None, None), (1, 2, None), (1, None, 0.5)])
def test_a_filter_on_one_side_of_the_ratio_only_is_seen(filters):
    target, draft = random_model(1, 4), random_model(1002, 4)
    p, unfiltered = filtered(draft, *filters), filtered(draft)
    assert distance(p, unfiltered, filtered(target, *filters)) > 1e-3


def test_lenience():
    """At 1 it is not there, below 1 it is: u is from [0, lenience), so a draft passes with min(1, q / (lenience p))."""
    q, p = np.array([[0.25, 0.75]], np.float32), np.array([[0.75, 0.25]], np.float32)
    target = lambda x, n_last: np.repeat(q, n_last, axis=0)  # noqa: E731

    def first_token(lenience):
        def program(rng):
            draft = model_drafter(lambda x: p, rng)
            return next(speculative_sampling([0], draft, target, 2, 1, rng, lenience=lenience)).tokens[0]

        return output_distribution(program)[0]

    assert first_token(1.0) == pytest.approx(0.25)
    assert first_token(0.5) == pytest.approx(0.5)  # 0.75 * min(1, 0.25 / (0.5 * 0.75))
    assert first_token(0.25) == pytest.approx(0.75)


def test_one_hot_rows_are_what_the_arrays_are():
    """In all that the samplers and the measuring do with rows, down to the random numbers they take."""
    ids, n_vocab = [3, 0, 9], 10
    rows, arrays = OneHot(ids, n_vocab), np.eye(n_vocab, dtype=np.float32)[ids]
    p = np.random.default_rng(0).dirichlet(np.ones(n_vocab)).astype(np.float32)
    assert np.array_equal(rows, arrays) and np.asarray(rows).dtype == np.float32 and rows.shape == arrays.shape
    assert rows.sum() == 3 and rows[1].argmax() == 0 and pickle.loads(pickle.dumps(rows)).shape == rows.shape
    assert np.array_equal(np.stack([*rows]), arrays) and np.array_equal(np.array([*rows[:2]]), arrays[:2])
    for row, array in zip(rows, arrays, strict=True):
        assert len(row) == n_vocab and [float(row[j]) for j in range(n_vocab)] == array.tolist() == [*row]
        pairs = [
            (row - p, array - p),
            (p - row, p - array),
            (row / 0.5, array / 0.5),
            (row - rows[0], array - arrays[0]),
        ]
        for a, b in pairs:
            assert type(a) is np.ndarray and a.dtype == np.float32 and np.array_equal(a, b)
        assert np.array_equal(max_fn(row - p), max_fn(array - p)) and np.array_equal(max_fn(row), array)
        for u in (0.0, 0.3, 1 - 2**-53):
            drawn = [sample(q, types.SimpleNamespace(random=lambda u=u: u)) for q in (row, array)]
            assert drawn[0] == drawn[1] and type(drawn[0]) is int
        for side in ("left", "right"):
            for u in (-0.5, 0.0, 0.5, 1.0, 2.0):
                assert np.searchsorted(np.cumsum(row), u, side=side) == np.searchsorted(np.cumsum(array), u, side=side)
    for wrong in (n_vocab, -n_vocab - 1):
        with pytest.raises(IndexError):
            rows[0][wrong]
