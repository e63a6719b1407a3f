"""The experts that a window touches: formula, count, and every window there is."""

from itertools import combinations, product

import numpy as np
import pytest

from benchmarks import experts
from speculative.errors import UserError


@pytest.mark.parametrize(("E", "k", "n_rows"), [(4, 2, 1), (4, 2, 3), (5, 1, 4), (3, 3, 2)])
def test_the_formula_is_the_mean_over_every_window(E, k, n_rows):
    windows = product(combinations(range(E), k), repeat=n_rows)
    touched = [len({expert for row in window for expert in row}) for window in windows]
    assert experts.expected_experts(E, k, n_rows) == pytest.approx(np.mean(touched))


def test_the_count_follows_the_formula():
    counted = experts.count_experts(8, 2, 5, 4000, np.random.default_rng(0))
    standard_error = counted.std() / 4000**0.5
    assert abs(counted.mean() - experts.expected_experts(8, 2, 5)) < 4 * standard_error
    assert counted.min() >= 2 and counted.max() <= 8


def test_the_table(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["experts", "--experts", "8", "--rows", "1", "5", "--windows", "50"])
    experts.main()
    _, one, five = capsys.readouterr().out.splitlines()
    assert one.split() == ["8", "1", "2.000", "2.000", "0.00", "1.00"] and five.split()[:3] == ["8", "5", "6.102"]


def test_more_experts_a_row_than_there_are(monkeypatch):
    monkeypatch.setattr("sys.argv", ["experts", "--k", "9"])
    with pytest.raises(UserError, match="--k must be at most"):
        experts.main()
