"""The formulas against the figures that their papers print."""

from types import SimpleNamespace

import numpy as np
import pytest

from speculative.costs import Cost, best_k, line_through
from speculative.measure import machine
from speculative.measure.analysis import (
    acceptance_chance,
    blog_speedup,
    ceiling,
    largest_beta,
    leviathan_operations,
    leviathan_speedup,
    leviathan_tokens,
    matching_chance,
)


@pytest.mark.parametrize(("r", "speedup"), [(0.80, 2.65), (0.62, 2.05)])
def test_the_blogs_formula_on_chinchilla(r, speedup):
    """K = 4, 1.8 ms for a drafted token and 14.1 ms for a token of the target (their tables 1 and 2)."""
    assert blog_speedup(r, 4, c=1.8 / 14.1) == pytest.approx(speedup, abs=0.005)


def test_the_blogs_formula_on_gpt2_xl():
    """toyllm's r of 0.8125 at K = 4, and the 2.46x that it predicts; so c was 0.163."""
    assert blog_speedup(0.8125, 4, c=0.163) == pytest.approx(2.46, abs=0.005)


@pytest.mark.parametrize(
    ("alpha", "K", "operations", "speedup"),
    [
        *((0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44)),
        *((0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86)),
    ],
)
def test_leviathans_table_1(alpha, K, operations, speedup):
    assert leviathan_operations(alpha, K) == pytest.approx(operations, abs=0.006)
    assert leviathan_speedup(alpha, K, c=0) == pytest.approx(speedup, abs=0.005)
    assert leviathan_tokens(alpha, K) == pytest.approx((1 - alpha ** (K + 1)) / (1 - alpha))


def test_limits():
    assert leviathan_tokens(1, 5) == 6 and leviathan_tokens(0, 5) == 1
    assert best_k([0.7] * 3, 0, lambda rows: 1.0) == (3, pytest.approx(leviathan_tokens(0.7, 3)))
    assert best_k([0.5, 1.0, 0.2], 0, lambda rows: 1.0) == (3, pytest.approx(1 + 0.5 + 0.5 + 0.1))
    assert blog_speedup(1, 4, 0.1, beta=1.5) == pytest.approx(5 / 1.9)


def test_the_largest_beta_is_where_it_stops_paying():
    beta = largest_beta(2 / 3, 5, 0.01)
    assert beta == pytest.approx(2.69, abs=0.005)
    assert leviathan_speedup(2 / 3, 5, 0.01, beta) == pytest.approx(1)


def test_the_best_k():
    flat = lambda rows: 1.0  # noqa: E731
    assert best_k([0.9] * 16, 0.0, flat)[0] == 16  # free drafts: as many as there may be
    K, speedup = best_k([0.8] * 16, 0.1, flat)
    by_hand = [leviathan_speedup(0.8, K, 0.1) for K in range(17)]
    assert speedup == pytest.approx(max(by_hand)) and by_hand.index(max(by_hand)) == K > 1
    assert best_k([0.2] * 16, 0.3, flat) == (0, 1.0)
    assert best_k([0.9] * 16, 0.01, lambda rows: float(rows)) == (0, 1.0)


def test_acceptance_and_matching():
    p = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], np.float32)
    q = np.array([[0.25, 0.25, 0.5], [0.0, 1.0, 0.0]], np.float32)
    assert acceptance_chance(p, q).tolist() == [0.5, 1.0]
    assert acceptance_chance(p, q).tolist() == (1 - np.abs(p - q).sum(axis=-1) / 2).tolist()  # 1 - TVD
    assert matching_chance(p, q).tolist() == [0.25, 1.0]


def test_ceiling_and_bandwidth(monkeypatch):
    assert ceiling(6.23e9, 58e9) == pytest.approx(9.31, abs=0.005)
    ticks = iter([0.0, 4.0, 5.0, 5.5, 6.0, 9.0])  # three readings of 4, 0.5 and 3 seconds
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert machine.read_bandwidth(n_bytes=2**20, repeats=3) == 2**20 / 0.5


def test_lines():
    cost = line_through({1: 1.0, 5: 1.4, 9: 3.0})
    assert [cost(rows) for rows in (1, 3, 5, 7, 9, 11)] == pytest.approx([1.0, 1.2, 1.4, 2.2, 3.0, 3.5])
    assert line_through({1: 1.0})(7) == 1.0
    assert line_through({1: 1.0, 2: 0.5})(9) == 0.5  # more rows are never cheaper than those measured


def test_a_cost_is_the_mean_without_the_longest():
    cost = Cost()
    assert cost() == 0
    cost.add(30.0, 3)
    assert cost() == 10
    cost.add(1.0)
    assert cost() == 1
    cost.add(6.0, 2)
    assert cost() == pytest.approx((1 + 6) / 3)
    for _ in range(20):  # of which the last 20 are kept
        cost.add(2.0)
    assert cost() == 2
