"""The rules of acceptance beside the paper's: what they accept, what is drawn where nothing is, and that it shows."""

import numpy as np
import pytest
from enumeration import random_model
from test_flags import parse
from tiny import decoded, one_hot, refusal, texts

from speculative.accept import RULES, Kind, Rule, by_ratio, choose, one_by_one, probable, residual
from speculative.cli.flags import usage
from speculative.drafters.model import model_drafter, model_tree
from speculative.one_hot import OneHot
from speculative.sampling import Proposal, speculative_sampling, token_by_token
from speculative.trees import by_paths, regular, tree_speculative_sampling

RNG = np.random.default_rng


@pytest.mark.parametrize("seed", range(4))
def test_a_rule_that_changes_nothing_is_the_papers(seed):
    target, model = random_model(seed, 4), random_model(seed + 100, 4)

    def steps(accept):
        rng = RNG(seed)
        return [*speculative_sampling([1], model_drafter(model, rng), target, 40, 4, rng, accept)]

    def by_hand(proposal, q, rng):
        return one_by_one(proposal, q, rng, by_ratio, residual)

    for ours, theirs in zip(steps(by_hand), steps(token_by_token), strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.tests == theirs.tests
        assert ours.own.u == theirs.own.u
        assert np.array_equal(ours.own.q, theirs.own.q)


def test_a_plain_pair_is_a_proposal():
    def draft(x, k):
        return [1] * k, one_hot(*[1] * k)

    steps = speculative_sampling([0], draft, lambda x, n_last=1: one_hot(*[1] * n_last), 9, 4, RNG(0))
    assert decoded(steps) == [1] * 9


def test_what_the_flags_choose():
    assert choose().name == choose(lenience=1.0, typical=None).name == "token"
    assert choose(accept="block").name == "block"
    assert (choose(lenience=0.5).name, choose(lenience=0.5).value) == ("lenience", 0.5)
    assert (choose(typical=0.3).name, choose(typical=0.3).value) == ("typical", 0.3)
    assert {name for name, kind in RULES.items() if kind.flag} == {"lenience", "typical"}
    assert [choose(**values).lossless for values in ({}, {"lenience": 0.5}, {"typical": 0.3})] == [True, False, False]


# ---- A rule that is registered ---------------------------------------------------------------------------------------


def at_most_one(proposal, q, rng):
    """The first draft alone is tested: what follows it is never kept."""
    return token_by_token(Proposal(proposal.tokens[:1], proposal.p[:1]), q[: len(proposal.tokens[:1]) + 1], rng)


@pytest.fixture
def toy(monkeypatch):
    """It says nothing of its chances and has no words for the page, no trees and no twin on the device."""
    monkeypatch.setitem(RULES, "toy", Kind(lambda: Rule("toy", at_most_one)))


def test_a_rule_that_is_registered_decodes_and_shows(run, run_verify, run_json, toy, tmp_path):
    for flags in ({"K": 3}, {"K": "auto"}, {"drafter": "model/ngram", "K": "3/2"}):
        assert texts(run(accept="toy", quiet=True, **flags)) == texts(run(quiet=True, **flags))
    path = tmp_path / "run.html"
    _, document = run_json(accept="toy", temperature=1, details=True, html=str(path))
    iterations = document["speculative"]["samples"][0]["iterations"]
    assert {i["accepted"] for i in iterations} == {0, 1}
    assert {len(i["details"]["tested"]) for i in iterations} <= {0, 1}
    assert '"step":"Accept drafts by their tests"' in path.read_text(encoding="utf-8")
    assert "mean of 1 where the draft passed, else 0" in run(accept="toy", temperature=1, verbose=True)
    status, _ = run_verify(draws=40, accept="toy", temperature=1, K=3)
    assert status == 0
    assert "the rule of acceptance: token, block, toy" in usage()


def test_where_it_is_not_supported_it_is_refused(run, toy):
    assert refusal(parse, accept="toy", tree="2,1") == (
        "--accept is of no use here: toy tests a chain, and --tree has a rule of its own"
    )
    pytest.importorskip("jax")
    assert refusal(run, accept="toy", engine="jax", threads=None) == (
        "--accept toy is for --engine numpy: the loop on the device has token, block"
    )
    run(accept="toy", engine="jax", threads=None, drafter="prompt_lookup")  # whose loop is the host's


# ---- Typical acceptance ----------------------------------------------------------------------------------------------


def is_probable(q, epsilon):
    """The paper's own formula."""
    entropy = -sum(float(a) * np.log(float(a)) for a in q if a > 0)
    return [float(a) > min(epsilon, np.sqrt(epsilon) * np.exp(-entropy)) for a in q]


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.09, 0.3, 0.999999])
def test_what_is_left(epsilon):
    q = RNG(0).dirichlet([0.3] * 8, size=50).astype(np.float32)  # [50, 8]
    q = np.concatenate([q, np.full((1, 8), 1 / 8, np.float32), np.eye(8, dtype=np.float32)[:1]])
    for row, left in zip(q, probable(q, epsilon), strict=True):
        expected = np.where(is_probable(row, epsilon), row, 0)
        np.testing.assert_allclose(left, expected / expected.sum(), rtol=1e-5)
    assert probable(one_hot(3), epsilon).tolist() == one_hot(3).tolist()
    greedy = OneHot([1, 2], 7)
    assert probable(greedy, epsilon) is greedy


EPSILON = 0.2


@pytest.fixture
def tables():
    """q and p, from the last token to the next, as models."""
    q, p = RNG(0).dirichlet([0.5] * 6, size=(2, 6)).astype(np.float32)  # [6, 6] each

    def model(rows):
        return lambda x, n_last=1: rows[np.asarray(x)[len(x) - n_last :]]

    return q, model(q), model(p)


def test_a_draft_is_accepted_where_it_is_probable_and_only_there(tables):
    q, target, model = tables
    rule = choose(typical=EPSILON)
    rng = RNG(1)
    x = [0]
    outcomes = set()
    for step in speculative_sampling(x, model_drafter(model, rng), target, 600, 3, rng, rule.chain):
        for i, token in enumerate(step.tokens):
            left = is_probable(q[x[-1]], EPSILON)
            assert left[token]
            if i < step.drafted:
                assert step.tests[i].passed == left[step.proposal.tokens[i]] == (i < step.accepted)
            x.append(token)
        last = x[-len(step.tokens) - 1 :]
        rows = zip(last, step.proposal.p, strict=False)
        chances = [float(p_i[is_probable(q[token], EPSILON)].sum()) for token, p_i in rows]
        assert rule.chances(step) == pytest.approx(chances[: len(step.tests)])
        outcomes.add((step.accepted, step.drafted))
    assert outcomes >= {(0, 3), (1, 3), (2, 3), (3, 3)}


def test_in_a_tree_the_first_sibling_that_is_probable_is_accepted(tables):
    q, target, model = tables
    rng = RNG(0)
    draft = model_tree(by_paths(model), rng)
    accept = choose(typical=EPSILON).tree
    outcomes = set()
    for step in tree_speculative_sampling([0], draft, by_paths(target), 600, regular([2]), rng, accept):
        left = is_probable(q[step.proposal.tokens[0]], EPSILON)
        passing = [token for token in step.proposal.tokens[1:] if left[token]]
        assert left[step.tokens[0]]
        assert step.accepted == bool(passing)
        if passing:
            assert step.tokens[0] == passing[0]
        outcomes.add((step.accepted, len(step.tests)))
    assert outcomes == {(0, 2), (1, 1), (1, 2), (0, 0)}


@pytest.mark.parametrize("flags", [{"K": 3}, {"tree": "2,1"}, {"K": "auto"}])
def test_it_is_noted_seen_and_changes_nothing_at_temperature_0(run, run_verify, flags):
    out = run(typical=0.3, temperature=1, **flags)
    assert "Note: with typical acceptance, ε = 0.3, the speculative text is not" in " ".join(out.split())
    assert "Note: with typical" not in run(temperature=1, **flags)
    plain, speculative = texts(run(typical=0.3, quiet=True, **flags))
    assert plain == speculative
    status, out = run_verify(draws=40, typical=0.9, temperature=9, **flags)
    assert status == 1
    assert "FAILED  speculative against the target" in out
    assert "NOT lossless" in out
