"""--verify can fail: the rule, the residual, the cache and the drafts are broken on purpose, one at a time."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import chisquare
from tiny import plant

from speculative.drafters.model import model_tree
from speculative.engines.network import CachedNetwork, Network
from speculative.engines.numpy_engine import NumpyEngine
from speculative.report.record import Difference
from speculative.run.greedy import greedy_difference
from speculative.run.session import Session
from speculative.verify import checks
from speculative.verify.sampled import BINS, LEVEL, detectable, place, places_of_drafts, sampled_check


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


CHANCE = "rng.random() < ratio(q[i], p[i], j)"
LENGTH = "self.forget()  # so"
STALE = f"n_cached = len(self.contents.tokens); x = x if n_cached <= n else x[::-1]; {LENGTH}"
HELD = "self.contents.tokens"
REJECTED = f"len(x) == len({HELD}) and not np.any(x[-n_last:] == {HELD}[-n_last:])"
STALE_AFTER_A_REJECTION = f"x = x[::-1] if {REJECTED} else x; {LENGTH}"
BESIDE_OTHERS = "results[0].logits[:] *= 1.0001 if len(texts) > 1 else 1; return results"
SAMPLED = "speculative against the target"
BROKEN = [
    # (where, what stands there, what stands there by mistake, the check that sees it, options)
    ("sampling:token_by_token", CHANCE, "rng.random() < 0.9", SAMPLED, {}),
    ("sampling:token_by_token", "residual(q[i], p[i])", "q[i]", SAMPLED, {}),
    ("sampling:token_by_token", "sample(q[-1], rng)", "sample(q[max(0, len(q) - 2)], rng)", "greedy", {}),
    ("engines.network:CachedNetwork.rows", LENGTH, STALE, "greedy", {}),
    ("engines.network:CachedNetwork.rows", LENGTH, STALE, "rows", {}),
    ("engines.network:CachedNetwork.rows", LENGTH, STALE_AFTER_A_REJECTION, "rows", {}),
    (
        "engines.model:Model.__call__",
        "return self.end(",
        "return (1.0001 if n_last > 1 else 1) * self.end(",
        "rows",
        {},
    ),
    ("engines.model:Model.score_tree", "return self.end(", "return 1.0001 * self.end(", "rows", {"tree": "2,1"}),
    ("engines.c.forward:CompiledPass.together", "return results", BESIDE_OTHERS, "rows", {}),
    ("drafters.model:model_drafter", "sample(p_i, rng)", "sample(p_i**2, rng)", "drafts against the drafter's p", {}),
]


@pytest.mark.parametrize(("place", "old", "new", "seen_by", "options"), BROKEN)
def test_it_sees_what_is_broken(run_verify, monkeypatch, place, old, new, seen_by, options):
    plant(monkeypatch, place, old, new)
    draws = 150 if "against" in seen_by else 10  # the others do not sample
    status, out = run_verify(draws=draws, temperature=9.0, **options)
    assert status == 1
    assert lines_of(out)[seen_by][0] == "FAILED"
    assert "Summary: NOT lossless" in out


def test_it_sees_a_rule_that_is_not_lossless(run_verify):
    status, out = run_verify(draws=40, accept="typical:0.9", temperature=9.0, n_tokens_to_generate=1)
    assert status == 1
    assert lines_of(out)[SAMPLED][0] == "FAILED"


def test_a_staged_drafter_drafts_from_its_p_whatever_the_rule(run_verify):
    _, out = run_verify(draws=100, accept="typical:0.9", temperature=9.0, drafter="int8/model", K="4/2")
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
    assert [place(token, q, q, half) for token in range(5)] == pytest.approx([0.85, 0.2, 1.0, 0.6, 0.95])
    assert [place(token, q, np.arange(5), half) for token in range(5)] == pytest.approx([0.95, 0.7, 1.0, 0.3, 0.05])


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
    places = [place for _ in range(400) for place in places_of_drafts(propose(rng), rng)]
    assert sampled_check("drafts", places).passed == honest
