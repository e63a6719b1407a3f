"""The formulas against the figures that their papers print."""

import pytest

from benchmarks.theory import leviathan_speedup
from speculative.lookahead.costs import costs_by_rows, line_through
from speculative.report.figures import blog_speedup, leviathan_tokens


@pytest.mark.parametrize(
    ("r", "c", "speedup"),
    [
        (0.80, 1.8 / 14.1, 2.65),  # Chinchilla: ms for a drafted token and for one of the target (its tables 1 and 2)
        (0.62, 1.8 / 14.1, 2.05),
        (0.8125, 0.163, 2.46),  # toyllm's GPT-2 XL, and its prediction
    ],
)
def test_the_blogs_formula_gives_the_published_speedups(r, c, speedup):
    assert blog_speedup(r, 4, c) == pytest.approx(speedup, abs=0.005)
    assert blog_speedup(r, 4, c, beta=1.5) == pytest.approx(speedup * (4 * c + 1) / (4 * c + 1.5), abs=0.005)


TABLE_1 = [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)]


@pytest.mark.parametrize(("alpha", "K", "speedup"), TABLE_1)
def test_leviathans_formula_gives_table_1(alpha, K, speedup):
    assert leviathan_speedup(alpha, K, c=0) == pytest.approx(speedup, abs=0.005)


def test_the_formulas_hold_at_their_limits():
    assert (leviathan_tokens(1, 5), leviathan_tokens(0, 5)) == (6, 1)


def test_costs_between_those_that_were_measured_lie_on_a_line():
    cost = line_through({1: 1.0, 5: 1.4, 9: 3.0})
    assert [cost(rows) for rows in (1, 3, 5, 7, 9, 11)] == pytest.approx([1.0, 1.2, 1.4, 2.2, 3.0, 3.5])
    assert line_through({1: 1.0})(7) == 1.0
    assert line_through({5: 2.0, 9: 1.0})(1) == 1.0
    assert line_through({1: 1.0, 2: 0.5})(9) == 0.5  # more rows are never cheaper than those measured


def test_a_cost_is_the_mean_of_the_calls_that_were_not_interrupted():
    calls = [(5, 2.0), (1, 1.0), (1, 30.0), (5, 2.2), (5, 2.4), (1, 1.2), (5, 60.0), (2, 0.0)]
    assert costs_by_rows(calls) == pytest.approx({1: 1.1, 2: 0.0, 5: 2.2})
    assert [*costs_by_rows(calls)] == [1, 2, 5]
