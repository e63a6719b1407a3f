"""--verify can fail: the rule, the residual, the cache and the drafts are broken on purpose, one at a time."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import wrong_twins
from mistakes import Mistakes, make
from scipy.stats import chisquare

from speculative import sampling
from speculative.drafters import model
from speculative.drafters.model import model_tree
from speculative.engines.c.forward import CompiledPass
from speculative.engines.model import Model
from speculative.engines.network import CachedNetwork, Network, common_prefix
from speculative.engines.plain import NumpyEngine
from speculative.report.record import Difference
from speculative.run.greedy import greedy_difference
from speculative.run.session import Session
from speculative.verify import checks
from speculative.verify.sampled import BINS, LEVEL, detectable, quantile, quantiles_of_drafts, sampled_check


def lines_of(out):
    """{check: (passed or FAILED, its detail)}"""
    return {name: (status, detail) for status, name, detail in re.findall("^(passed|FAILED)  (.*?): (.*)$", out, re.M)}


@pytest.mark.parametrize(
    ("flags", "own"),
    [
        ({"K": 4}, ""),
        ({"K": "auto", "temperature": 0.8}, ", auto"),
        ({"tree": "2,1"}, ", tree 2,1"),
        ({"drafter": "int8/model", "K": "3/2"}, ", 3/2"),
    ],
)
def test_it_passes_if_nothing_is_broken(run_verify, flags, own):
    status, out = run_verify(n_tokens_to_generate=1, **flags)
    found = lines_of(out)
    assert status == 0
    assert {status for status, _ in found.values()} == {"passed"}
    assert len(found) == 5
    assert f"K = 1, 2, 4, 8{own})" in found["greedy"][1]
    assert ": no loss found; a shift above" in out


SAMPLED = "speculative against the target"
GREEDY, ROWS = ("greedy", {}), ("rows", {})  # a check, and the options with which it sees a mistake
mistakes = Mistakes()
# The right ones, which wrong twins call.
rows, score_tree, call_model = CachedNetwork.rows, Model.score_tree, Model.__call__
together = CompiledPass.together


mistakes.plant((SAMPLED, {}), sampling, "token_by_token")(wrong_twins.accepts_nine_of_ten)
mistakes.plant((SAMPLED, {}), sampling, "residual")(wrong_twins.draws_from_q_after_a_rejection)
mistakes.plant(GREEDY, sampling, "token_by_token")(wrong_twins.draws_the_bonus_token_from_the_row_before)
mistakes.plant(("drafts against the drafter's p", {}), model, "model_drafter")(wrong_twins.draws_from_p_squared)


@mistakes.plant(GREEDY, CachedNetwork, "rows")
@mistakes.plant(ROWS, CachedNetwork, "rows")
def reads_backwards_if_tokens_were_dropped(self, x, n_last=1):
    held = self.contents.tokens
    goes_on = len(held) <= min(common_prefix(held, x), len(x) - n_last)
    return rows(self, x if goes_on else x[::-1], n_last)


@mistakes.plant(ROWS, CachedNetwork, "rows")
def never_looks_for_rejected_tokens(self, x, n_last=1):
    self.contents.tokens = np.array(x[: len(self.contents.tokens)])
    return rows(self, x, n_last)


@mistakes.plant(ROWS, CachedNetwork, "rows")
def reads_backwards_after_a_rejection(self, x, n_last=1):
    held = self.contents.tokens
    is_rejected = len(x) == len(held) and not np.any(np.equal(x[-n_last:], held[-n_last:]))
    return rows(self, x[::-1] if is_rejected else x, n_last)


@mistakes.plant(ROWS, Model, "__call__")
def rounds_the_rows_of_a_window(self, x, n_last=1):
    return (1.0001 if n_last > 1 else 1) * call_model(self, x, n_last)


@mistakes.plant(("rows", {"tree": "2,1"}), Model, "score_tree")
def rounds_the_rows_of_a_tree(self, x, tree, nodes=None):
    return 1.0001 * score_tree(self, x, tree, nodes)


@mistakes.plant(ROWS, CompiledPass, "together")
def rounds_the_rows_beside_other_texts(self, texts):
    results = together(self, texts)
    if len(texts) > 1:
        results[0].logits[:] *= 1.0001
    return results


@pytest.mark.parametrize("mistake", mistakes, ids=lambda mistake: f"{mistake}-{mistake.seen_by[0]}")
def test_it_sees_what_is_broken(mistake, run_verify, monkeypatch):
    make(monkeypatch, mistake)
    check, options = mistake.seen_by
    draws = 100 if "against" in check else 10  # the others do not sample
    status, out = run_verify(draws=draws, temperature=9.0, **options)
    assert status == 1
    assert lines_of(out)[check][0] == "FAILED"
    assert "Summary: NOT lossless" in out


def test_it_sees_a_rule_that_is_not_lossless(run_verify):
    status, out = run_verify(draws=40, accept="typical:0.9", temperature=9.0, n_tokens_to_generate=1)
    assert status == 1
    assert lines_of(out)[SAMPLED][0] == "FAILED"


def test_a_staged_drafter_drafts_from_its_p_whatever_the_rule(run_verify):
    _, out = run_verify(draws=60, accept="typical:0.9", temperature=9.0, drafter="int8/model", K="4/2")
    assert lines_of(out)["drafts against the drafter's p"][0] == "passed"


@pytest.mark.parametrize(("said", "status"), [("rounding can change their order.", 0), ("a defect, as 1 is more.", 1)])
def test_greedy_texts_may_part_if_rounding_explains_it(run_verify, monkeypatch, said, status):
    monkeypatch.setattr(checks, "greedy_difference", lambda *texts: Difference(said, bool(status)))
    found, out = run_verify(n_tokens_to_generate=1)
    assert (found, lines_of(out)["greedy"][1].partition(" K = 2")[0]) == (status, f"K = 1: {said}")


@pytest.mark.parametrize(
    ("exact", "kind", "is_defect"), [(False, CachedNetwork, 0), (True, CachedNetwork, 1), (True, Network, 0)]
)
def test_rounding_explains_nothing_if_rows_are_equal_to_the_bit(monkeypatch, exact, kind, is_defect):
    """As those of a user's function, a Network, need not be."""
    monkeypatch.setattr(NumpyEngine, "exact", exact)
    network = object.__new__(kind)
    network.logits = lambda x: np.array([[0, 1, 1.0001]])
    options = SimpleNamespace(dtype="float32")
    session = SimpleNamespace(engine=NumpyEngine(), models={"target": network}, options=options)
    session.exact = Session.exact.fget(session)
    difference = greedy_difference(session, [[5]], [[[2]], [[1]]])
    assert difference.is_defect == is_defect
    assert ("a defect" if is_defect else "rounding can change their order") in difference.text


def test_it_stops_when_the_time_is_up_and_not_before_the_fewest_draws(run_verify):
    _, out = run_verify(draws=10**6, limits={"seconds": 0}, n_tokens_to_generate=1)
    assert "over 250 tokens" in out


# ---- The statistics --------------------------------------------------------------------------------------------------


def test_place_respects_the_order_and_its_ties():
    q = np.array([0.1, 0.4, 0.0, 0.4, 0.1], np.float32)
    half = SimpleNamespace(random=lambda: 0.5)
    assert [quantile(token, q, q, half) for token in range(5)] == pytest.approx([0.85, 0.2, 1.0, 0.6, 0.95])
    assert [quantile(token, q, np.arange(5), half) for token in range(5)] == pytest.approx([0.95, 0.7, 1.0, 0.3, 0.05])


def test_the_detectable_difference_is_detected():
    """Places that are off by just that much are found in about 95 of 100 simulated verifications."""
    n, rng = 2000, np.random.default_rng(0)
    shifted = np.full(BINS, 1 / BINS) + np.where(np.arange(BINS) % 2, 1, -1) * 2 * detectable(n) / BINS
    found = np.mean([2 * chisquare(rng.multinomial(n, shifted)).pvalue < LEVEL for _ in range(1000)])
    assert 0.92 < found < 0.98


def random_rows(rng, n):
    rows = rng.random((n, 20)) ** 3
    return rows / rows.sum(axis=1, keepdims=True)


def tree(rng):
    return model_tree(lambda x, tree, nodes: random_rows(rng, len(nodes)), rng)([1, 2], (3, 2))


def one_p_for_all_siblings(rng):
    found = tree(rng)
    for node, parent in enumerate(found.parents[1:], start=1):
        found.p[node] = found.p[found.children[parent][0]]
    return found


@pytest.mark.parametrize(("propose", "honest"), [(tree, True), (one_p_for_all_siblings, False)])
def test_drafts_of_a_tree_are_compared_with_the_p_that_they_come_with(propose, honest):
    rng = np.random.default_rng(1)
    quantiles = [drawn for _ in range(400) for drawn in quantiles_of_drafts(propose(rng), rng)]
    assert sampled_check("drafts", quantiles).passed == honest
