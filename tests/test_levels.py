"""The costs of a level, and what is said of the target's own copy, from a run without it."""

import numpy as np
import pytest
from tiny import counting_target, one_hot

from speculative.drafters import Drafter
from speculative.drafters.base import Proposal
from speculative.drafters.level import level
from speculative.measure import levels
from speculative.measure.figures import figures
from speculative.measure.recorder import Recorder
from speculative.sampling import speculative_sampling
from speculative.stop import cut

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
    assert 1 < inner < outer
    assert found.K > found.inner_K > 0


def test_it_is_said_where_it_is_more_and_where_memory_bounds_the_target():
    line = levels.advice(FIGURES, 0.25, 1.6e9, 6.2e9)
    assert line.startswith("--drafter self/model --K ")
    assert line.endswith(", for 1.6 GB more memory.")
    assert levels.advice(FIGURES, 0.25, 1e6, 4e6) is None
    assert levels.advice(FIGURES | {"speedup_without_prefill": 2.0, "predicted_blog": 6.0}, 0.25, 1.6e9, 6.2e9) is None
    assert levels.advice(FIGURES | {"better_K": {"gain": 0.1}}, 0.25, 1.6e9, 6.2e9) == line
    assert levels.advice(FIGURES | {"better_K": {"gain": 1.0}}, 0.25, 1.6e9, 6.2e9) is None
    for missing in ({"busy": True}, {"c": None}, {"alpha": None}, {"tree": True}):
        assert levels.advice(FIGURES | missing, 0.25, 1.6e9, 6.2e9) is None


def test_the_prefill_is_in_no_cost_of_a_level():
    """The level's model and its drafter read a prompt of 5 tokens in their first calls, which take 7 s more; then they
    draft 4 tokens, in two windows."""
    seconds, first, rng = 0.0, {"middle", "inside"}, np.random.default_rng(0)
    recorder = Recorder(clock=lambda: seconds)

    def takes(who, cost):
        nonlocal seconds
        seconds += cost + 7 * (who in first)
        first.discard(who)

    def middle(x, n_last=1):
        takes("middle", 0.1)
        return counting_target(x, n_last)

    def inside(x, k):
        takes("inside", 0.01 * k)
        token = (int(x[-1]) + 1) % 7
        return Proposal([token], one_hot(token), ["inside"])

    drafter = recorder.drafter(Drafter(level("middle", middle, inside, 1, rng, recorder.level)))
    list(recorder.watch(speculative_sampling(range(5), drafter.chain, recorder.target(counting_target), 5, 4, rng)))
    [found] = figures(Recorder(), recorder)["levels"]
    assert found["calls"] == 2
    assert found["scoring"] == pytest.approx(7 + 2 * 0.1)
    assert found["t_row"] == pytest.approx(0.1)
    assert found["t_draft"] == pytest.approx(0.01)
    assert found["beta"] == pytest.approx(1)
    assert found["predicted_seconds"] == pytest.approx((0.1 + 0.01) / 2)


@pytest.mark.parametrize(("n", "calls"), [(1, [1]), (3, [3]), (4, [3, 1]), (5, [3, 2]), (6, [3, 3])])
def test_what_a_stop_cuts_is_cut_from_the_figures_of_a_level(n, calls):
    """Six drafts, in two windows of the level: two tokens of the drafter inside, and one of the level's own."""
    rng = np.random.default_rng(0)
    recorder = Recorder()

    def inside(x, k):
        tokens = [(int(x[-1]) + 1 + i) % 7 for i in range(k)]
        return Proposal(tokens, one_hot(*tokens), ["inside"] * k)

    drafter = recorder.drafter(Drafter(level("middle", counting_target, inside, 2, rng, recorder.level)))
    steps = speculative_sampling([0], drafter.chain, recorder.target(counting_target), 7, 6, rng)
    list(recorder.watch(cut(step, n) for step in steps))
    f = figures(Recorder(), recorder)
    [found] = f["levels"]
    assert f["drafted"] == found["tokens"] == n
    assert [len(call.step.tokens) for call in recorder.iterations[0].levels["middle"]] == calls
    assert found["drafted"] == sum(min(call, 2) for call in calls)
    assert found["accepted"] == found["drafted"]
    assert all(len(call.alpha) == call.step.drafted for call in recorder.iterations[0].levels["middle"])
