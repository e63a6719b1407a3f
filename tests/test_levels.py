"""What is said of the target's own copy, from a run without it."""

import pytest

from speculative.measure import levels

FIGURES = {"busy": False, "tree": False, "c": 0.024, "alpha": 0.6, "beta": {5: 1.1, 17: 1.6}}
FIGURES |= {"speedup_without_prefill": 2.0, "predicted_blog": 2.2, "better_K": None}


def test_the_copy_is_predicted_by_the_formula_of_each_level():
    found = levels.with_copy(FIGURES, row=0.25)
    a, K = 0.6, found.inner_K
    inner = sum(a**i for i in range(K + 1)) / (K * 0.024 / 0.25 + 1 + (K * 0.025))
    a, K = 19 / 20, found.K
    beta = 1 + K * 0.025 if K < 5 else 1.1 + (K - 4) * (0.5 / 12)
    outer = sum(a**i for i in range(K + 1)) / (K * 0.25 / inner + beta)
    assert found.speedup == pytest.approx(outer * 2.0 / 2.2)
    assert 1 < inner < outer and found.K > found.inner_K > 0


def test_it_is_said_where_it_is_more_and_where_memory_bounds_the_target():
    line = levels.advice(FIGURES, 0.25, 1.6e9, 6.2e9)
    assert line.startswith("--drafter self/model --K ") and line.endswith(", for 1.6 GB more memory.")
    assert levels.advice(FIGURES, 0.25, 1e6, 4e6) is None
    assert levels.advice(FIGURES | {"speedup_without_prefill": 2.0, "predicted_blog": 6.0}, 0.25, 1.6e9, 6.2e9) is None
    assert levels.advice(FIGURES | {"better_K": {"gain": 0.1}}, 0.25, 1.6e9, 6.2e9) == line
    assert levels.advice(FIGURES | {"better_K": {"gain": 1.0}}, 0.25, 1.6e9, 6.2e9) is None
    for missing in ({"busy": True}, {"c": None}, {"alpha": None}, {"tree": True}):
        assert levels.advice(FIGURES | missing, 0.25, 1.6e9, 6.2e9) is None
