"""The costs of a level, and what is said of the target's own copy, from a run without it."""

import numpy as np
import pytest
from tiny import N_VOCAB, decoded, one_hot

from speculative.drafters import Drafter
from speculative.drafters.base import Proposal
from speculative.drafters.level import level
from speculative.measure import levels, report
from speculative.measure.figures import figures
from speculative.measure.recorder import Recorder
from speculative.sampling import autoregressive_sampling, speculative_sampling
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


def runs(N, K, inner_K, x=(0,), right=99, but=None, prefill=0.0, n=99):
    """(plain, speculative) Recorders. The target counts, and takes 1 s a call; so does the level, but after the token
    `but`, and takes 0.1 s; the drafter inside it takes 0.01 s a token, of which the first `right` of a proposal are
    right. The first call of each takes `prefill` seconds more. Steps are cut to n tokens."""
    now, called, rng = 0.0, set(), np.random.default_rng(0)

    def takes(who, seconds):
        nonlocal now
        now += seconds + prefill * (who not in called)
        called.add(who)

    def counts(who, seconds, but=None):
        def model(x, n_last=1):
            takes(who, seconds)
            return one_hot(*[(int(t) + 1 + (t == but)) % N_VOCAB for t in x[len(x) - n_last :]])

        return model

    def inside(x, k):
        takes("inside", 0.01 * k)
        tokens = [(int(x[-1]) + 1 + i + (i >= right)) % N_VOCAB for i in range(k)]
        return Proposal(tokens, one_hot(*tokens), ["inside"] * k)

    plain, recorder = Recorder(clock=lambda: now), Recorder(clock=lambda: now)
    list(plain.watch(autoregressive_sampling(x, plain.target(counts("plain", 1.0)), N, rng)))
    drafter = recorder.drafter(
        Drafter(level("middle", counts("middle", 0.1, but), inside, inner_K, rng, recorder.level))
    )
    steps = speculative_sampling(x, drafter.chain, recorder.target(counts("target", 1.0)), N, K, rng)
    list(recorder.watch(cut(step, min(n, len(step.tokens))) for step in steps))
    return plain, recorder


def test_what_each_level_did():
    """The level is wrong about one token in 7; the drafter inside is right twice, then wrong."""
    plain, recorder = runs(14, 4, 3, right=2, but=5)
    assert decoded(i.step for i in recorder.iterations) == [i % N_VOCAB for i in range(1, 15)]
    first = recorder.iterations[0]
    [calls] = first.levels.values()
    assert first.by == ["inside", "inside", "middle", "middle"]
    assert [i.step for i in calls] == [([1, 2, 3], 3, 2), ([4], 0, 0)]
    assert [i.alpha for i in calls] == [[1.0, 1.0, 0.0], []]
    assert [(i.scoring, i.drafting) for i in calls] == [pytest.approx((0.1, 0.03)), pytest.approx((0.1, 0.0))]
    assert (first.drafting, first.scoring) == pytest.approx((0.23, 1.0))

    f = figures(plain, recorder)
    [middle] = f["levels"]
    calls = [i for iteration in recorder.iterations for i in iteration.levels["middle"]]
    assert (middle["name"], middle["calls"]) == ("middle", len(calls))
    assert middle["tokens"] == f["drafted"] == sum(len(i.step.tokens) for i in calls)
    assert middle["accepted"] == sum(i.step.accepted for i in calls)
    assert middle["scoring"] == pytest.approx(0.1 * len(calls))
    assert (middle["t_row"], middle["c"], middle["beta"]) == pytest.approx((0.1, 0.1, 1.0))
    expected = (middle["drafted"] * 0.01 + len(calls) * 0.1) / middle["tokens"]  # the time of its parts, a token
    assert [middle["predicted_seconds"], f["t_draft"]] == pytest.approx([expected] * 2)
    assert sum(n for _, n in f["by_proposer"].values()) == sum(f["met_by_position"])
    assert f["best_K"] >= 4
    assert f["predicted_best"] < 1.5 * f["predicted_blog"]
    rows = {name: value for name, value, _ in report.table(f)}
    assert rows["level: middle"].startswith(f"r {middle['r']:.2f}, {middle['tokens'] / len(calls):.1f} tokens a call")


def test_the_prefill_is_in_no_cost_of_a_level():
    """It is read in the first calls; then 4 tokens are drafted, in two windows."""
    [found] = figures(*runs(5, 4, 1, x=range(5), prefill=7.0))["levels"]
    assert found["calls"] == 2
    assert found["scoring"] == pytest.approx(7 + 2 * 0.1)
    assert (found["t_row"], found["t_draft"], found["beta"]) == pytest.approx((0.1, 0.01, 1))
    assert found["predicted_seconds"] == pytest.approx((0.1 + 0.01) / 2)


@pytest.mark.parametrize(("n", "calls"), [(1, [1]), (3, [3]), (4, [3, 1]), (5, [3, 2]), (6, [3, 3])])
def test_what_a_stop_cuts_is_cut_from_the_figures_of_a_level(n, calls):
    """Six drafts, in two windows of the level: two tokens of the drafter inside, and one of the level's own."""
    plain, recorder = runs(7, 6, 2, n=n)
    f = figures(plain, recorder)
    [found] = f["levels"]
    assert f["drafted"] == found["tokens"] == n
    assert [len(call.step.tokens) for call in recorder.iterations[0].levels["middle"]] == calls
    assert found["drafted"] == found["accepted"] == sum(min(call, 2) for call in calls)
    assert all(len(call.alpha) == call.step.drafted for call in recorder.iterations[0].levels["middle"])
