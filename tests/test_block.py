"""Block verification: its law, exactly and over a whole vocabulary; what it keeps; and mistakes that are seen."""

import itertools
import json
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from enumeration import distance_from_target, output_distribution, random_model, remembered, total_variation
from test_flags import parse
from tiny import python, refusal

from speculative.accept import choose
from speculative.block import BlockTest, block_by_block, chance_to_pass
from speculative.drafters import first_of
from speculative.drafters.level import level
from speculative.drafters.lookup import prompt_lookup
from speculative.drafters.model import model_drafter
from speculative.one_hot import OneHot
from speculative.sampling import Accepted, Proposal, residual, speculative_sampling, token_at, token_by_token

RNG = np.random.default_rng
BLOCK = choose(accept="block")


def smooth_model(seed, n_vocab):
    """Every token is possible, and no probability is a round number."""

    def model(x, n_last):
        contexts = [x[max(0, i - 1) : i + 1] for i in range(len(x) - n_last, len(x))]
        rows = [RNG([seed, *map(int, context)]).dirichlet(np.ones(n_vocab)) for context in contexts]
        return np.stack(rows).astype(np.float32)  # [n_last, n_vocab]

    return remembered(model)


def chain(model, rng, accept):
    return model_drafter(model(1000), rng)


def two_levels(model, rng, accept):
    return level("a", model(1000), model_drafter(model(2000), rng), 2, rng, accept=accept)


def three_levels(model, rng, accept):
    inner = level("b", model(2000), model_drafter(model(3000), rng), 1, rng, accept=accept)
    return level("a", model(1000), inner, 1, rng, accept=accept)


def lookup_or_model(model, rng, accept):
    return first_of(prompt_lookup(3), model_drafter(model(1000), rng))


def equal_but_for_the_last(model, rng, accept):
    """p is q itself up to a draw that the target would not make so often."""
    target = model(0)
    other = model(1000)
    return model_drafter(lambda x, n_last=1: target(x, n_last) if len(x) < 3 else other(x, n_last), rng)


def loss(accept, drafter, model, seed, K, N):
    """Total variation between what is decoded with the rule and the target's own N tokens."""

    def seeded(offset):
        return model(seed + offset, 3)

    def decode(rng):
        draft = drafter(seeded, rng, accept)
        return speculative_sampling([1, 2, 1], draft, seeded(0), N, K, rng, accept)

    return distance_from_target(decode, seeded(0), [1, 2, 1], N)


CASES = [
    *((chain, K, K + 1) for K in (1, 2, 3)),
    (two_levels, 2, 3),
    (three_levels, 2, 3),
    (lookup_or_model, 2, 4),
    (equal_but_for_the_last, 3, 4),
]


@pytest.mark.parametrize(("drafter", "K", "N"), CASES)
@pytest.mark.parametrize(("model", "seed"), [(random_model, 1), (smooth_model, 0)])
def test_the_law_is_the_targets_exactly(seed, model, drafter, K, N):
    assert loss(block_by_block, drafter, model, seed, K, N) < 1e-6


# ---- Mistakes --------------------------------------------------------------------------------------------------------


def mass(q, p):
    return float(np.sum(np.maximum(q - p, 0)))


def by_hand(next_w=lambda w, ratio: min(1.0, w * ratio), h=chance_to_pass, at=0, row=0, stops=False):
    """block_by_block, of parts that can be wrong: how w grows, h, whose w the residual has, counted from the last draft
    that is kept, whose p h has, counted from the place after the draft, and whether a failure ends the test."""

    def accept(proposal, q, rng):
        x_draft, p, _ = proposal
        m = len(x_draft)
        w = [1.0]
        kept = 0
        for i, j in enumerate(x_draft, start=1):
            w.append(next_w(w[-1], float(q[i - 1][j]) / float(p[i - 1][j])))
            if rng.random() < (h(w[i], q[i], p[i + row]) if i < m else w[i]):
                kept = i
            elif stops:
                break
        left = residual(w[kept + at] * q[kept], p[kept]) if kept < m else q[m]  # [n_vocab]
        return Accepted([*x_draft[:kept], token_at(rng.random(), left)], [])

    return accept


MISTAKES = {
    "h without 1 - w": {"h": lambda w, q, p: float(mass(w * q, p) > 0)},
    "w is not capped at 1": {"next_w": lambda w, ratio: w * ratio},
    "the residual with the w before": {"at": -1},
    "the first failure ends the test": {"stops": True},
    "the p of the row before": {"row": -1},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_seen(mistake):
    losses = [loss(by_hand(**MISTAKES[mistake]), chain, smooth_model, seed, 2, 3) for seed in range(2)]
    assert max(losses) > 1e-3


def test_without_a_mistake_nothing_is_seen():
    assert loss(by_hand(), chain, smooth_model, 0, 2, 3) < 1e-6


# ---- What it keeps ---------------------------------------------------------------------------------------------------


def kept(accept, seed, K):
    """{how many drafts of a first window are kept: the exact chance}"""
    target, model = smooth_model(seed, 3), smooth_model(seed + 1000, 3)
    return output_distribution(
        lambda rng: next(speculative_sampling([1], model_drafter(model, rng), target, K + 1, K, rng, accept)).accepted
    )


@pytest.mark.parametrize("seed", range(4))
def test_it_keeps_no_fewer_than_token_by_token_and_mostly_more(seed):
    mean = {}
    for accept in (token_by_token, block_by_block):
        mean[accept] = [sum(n * chance for n, chance in kept(accept, seed, K).items()) for K in (1, 2, 3)]
    assert mean[block_by_block][0] == pytest.approx(mean[token_by_token][0])  # a window of one draft has one test
    assert mean[block_by_block][1] > mean[token_by_token][1]
    assert mean[block_by_block][2] > mean[token_by_token][2]


@pytest.mark.parametrize("seed", range(3))
def test_its_chances_are_the_shares_that_are_kept_at_each_place(seed):
    """Of those that kept what is before it; and a longer window keeps as much of its beginning."""
    target, model = smooth_model(seed, 3), smooth_model(seed + 1000, 3)
    K = 3

    def program(rng):
        step = next(speculative_sampling([1], model_drafter(model, rng), target, K + 1, K, rng, block_by_block))
        return step.accepted, tuple(BLOCK.chances(step))

    of = output_distribution(program)
    shorter = kept(block_by_block, seed, K - 1)
    for i in range(K):
        reached = sum(chance for (n, _), chance in of.items() if n >= i)
        passed = sum(chance for (n, _), chance in of.items() if n > i)
        expected = sum(chance * alpha[i] for (n, alpha), chance in of.items() if n >= i)
        assert passed == pytest.approx(expected)
        if i < K - 1:
            assert sum(chance for n, chance in shorter.items() if n > i) == pytest.approx(passed)
        assert passed < reached


def test_it_keeps_a_window_whose_first_draft_token_by_token_rejects():
    """p and q of two drafts of token 0: the first is half as likely to the target, the second twice as likely."""
    p = np.array([[0.8, 0.2], [0.4, 0.6]], np.float32)
    q = np.array([[0.4, 0.6], [0.8, 0.2], [0.5, 0.5]], np.float32)
    proposal = Proposal([0, 0], p)
    numbers = [0.6, 0.9, 0.1]

    def rng():
        return SimpleNamespace(random=iter(numbers).__next__)

    assert token_by_token(proposal, q, rng()).tokens == [1]
    accepted = block_by_block(proposal, q, rng())
    assert accepted.tokens == [0, 0, 0]
    assert [test.w for test in accepted.tests] == pytest.approx([0.5, 1.0])
    assert [test.h for test in accepted.tests] == [0.0, pytest.approx(1.0)]
    assert [test.passed for test in accepted.tests] == [False, True]


@pytest.mark.parametrize("m", range(5))
def test_it_takes_a_number_a_draft_and_one_more(m):
    rows = smooth_model(0, 4)(np.array([1] * 9), 9)
    rng = RNG(0)
    block_by_block(Proposal([2] * m, rows[:m]), rows[4 : 5 + m], rng)
    again = RNG(0)
    again.random(m + 1)
    assert rng.random() == again.random()


def test_where_p_and_q_are_equal_all_is_kept():
    """Nothing is left of q then, and w is 1: 0 / 0."""
    rows = smooth_model(0, 4)(np.array([1] * 6), 6)
    for seed in range(50):
        accepted = block_by_block(Proposal([2] * 5, rows[:5]), rows, RNG(seed))
        assert len(accepted.tokens) == 6


def test_a_residual_that_rounding_empties_falls_back_to_the_target():
    q = np.array([[0.5, 0.5, 0]] * 3, np.float32)
    p = np.nextafter(q[:2], 1, dtype=np.float32)
    numbers = [1 - 2**-53, 1 - 2**-53, 0.9]
    accepted = block_by_block(Proposal([0, 0], p), q, SimpleNamespace(random=iter(numbers).__next__))
    assert accepted.tokens[-1] == 1


@pytest.mark.parametrize("rows", [OneHot, lambda ids, n_vocab: np.asarray(OneHot(ids, n_vocab))])
@pytest.mark.parametrize("drafts", [*itertools.product((1, 2), repeat=3)])
def test_at_temperature_0_it_is_token_by_token(drafts, rows):
    q = rows(np.array([1, 2, 1, 0]), 4)
    for p in (rows(np.array(drafts), 4), smooth_model(0, 4)(np.array([1] * 3), 3)):
        for seed in range(5):
            expected = token_by_token(Proposal(drafts, p), q, RNG(seed)).tokens
            assert block_by_block(Proposal(drafts, p), q, RNG(seed)).tokens == expected


def test_a_window_is_the_targets_over_a_whole_vocabulary():
    """The first two tokens, of 50,257 each: how often they are of the tail, and of bins of equal mass."""
    n_vocab = 50_257
    rng = RNG(0)
    logits = 2.5 * rng.standard_normal((2, 3, n_vocab))
    q, p = (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).astype(np.float32)  # [3, n_vocab] each
    p = (0.7 * q + 0.3 * p).astype(np.float32)
    n = 2_000
    places = np.empty((n, 2))
    cumulative = np.cumsum(q, axis=-1, dtype=np.float64)  # [3, n_vocab]
    for i in range(n):
        x_draft = [token_at(rng.random(), row) for row in p[:2]]
        tokens = block_by_block(Proposal(x_draft, p[:2]), q, rng).tokens
        if len(tokens) == 1:
            tokens.append(token_at(rng.random(), q[1]))
        for place, token in enumerate(tokens[:2]):
            below = cumulative[place, token] - q[place, token]
            places[i, place] = (below + rng.random() * q[place, token]) / cumulative[place, -1]
    counts = np.histogram2d(*places.T, bins=8, range=[[0, 1]] * 2)[0]
    assert np.sum((counts - n / 64) ** 2 / (n / 64)) < 63 + 4 * np.sqrt(2 * 63)


# ---- On the device ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("K", "k"), [(1, 1), (2, 2), (3, 3), (3, 2)])
def test_the_law_on_the_device_is_the_targets_exactly(K, k):
    """Of each window that can be drafted, each way in which its tests can end. Of K drafts only k count."""
    jax = pytest.importorskip("jax")
    from speculative.engines.jax import sampling

    target, draft = random_model(0, 3), smooth_model(1000, 3)
    key = jax.random.key(0)

    @jax.jit
    def run(x_draft, p, q, u):
        normalised = lambda left, key: left / left.sum()  # noqa: E731
        return sampling.block_by_block(x_draft, p, q, k, key, normalised, lambda key, shape: u)

    law = defaultdict(float)
    for window, fails in itertools.product(*(itertools.product(range(n), repeat=K) for n in (3, 2))):
        p, q = draft(np.array([1, *window[:-1]]), K), target(np.array([1, *window]), K + 1)
        accepted = run(np.array(window), p, q, (1 - 2**-24) * np.array(fails, np.float32))  # u is 0, or nearly 1
        h = np.asarray(accepted.tests.h, float)[:k]
        weight = np.prod(p[range(K), window]) * np.prod(np.abs(np.array(fails[:k]) - h)) / 2 ** (K - k)
        kept = window[: int(accepted.kept)]
        for text in itertools.product(range(3), repeat=k + 1):
            if text[: len(kept)] == kept:  # what comes after the token of its own is the target's
                rest = target(np.array([1, *text[:-1]]), k + 1)[range(k + 1), text][len(kept) + 1 :]
                law[text] += weight * float(accepted.token[text[len(kept)]]) * float(np.prod(rest))
    texts = itertools.product(range(3), repeat=k + 1)
    expected = {x: float(np.prod(target(np.array([1, *x[:-1]]), k + 1)[range(k + 1), x])) for x in texts}
    assert total_variation(law, expected) < 1e-5


@pytest.mark.parametrize("k", [4, 3, 1, 0])
@pytest.mark.parametrize("seed", range(6))
def test_the_device_tests_as_numpy_does(seed, k):
    """Of 4 drafts only k count."""
    jax = pytest.importorskip("jax")
    from speculative.engines.jax import sampling

    rows = smooth_model(seed, 5)(np.array([1, 2, 3, 1, 2, 3, 1, 4, 2]), 9)
    p, q = rows[:4], rows[4:]
    x_draft = np.array([token_at(u, row) for u, row in zip(RNG(seed).random(4), p, strict=True)])
    u = RNG(seed + 100).random(5)
    ours = block_by_block(Proposal(x_draft[:k], p[:k]), q[: k + 1], SimpleNamespace(random=iter(u).__next__))

    def sample(left, key):
        return left / left.sum()

    key = jax.random.key(0)
    theirs = sampling.block_by_block(x_draft, p, q, k, key, sample, lambda key, shape: u[:4].astype(np.float32))
    assert theirs.kept == len(ours.tokens) - 1
    for name in BlockTest._fields:
        expected = [getattr(test, name) for test in ours.tests]
        np.testing.assert_allclose(np.asarray(getattr(theirs.tests, name))[:k], expected, rtol=1e-5)
    np.testing.assert_allclose(theirs.token, ours.own.q / ours.own.q.sum(), rtol=1e-4, atol=1e-6)


# ---- From the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [4, "auto"])
def test_what_is_said_of_it(run, tmp_path, K):
    out = run(accept="block", temperature=1, verbose=True, K=K, json=str(tmp_path / "run.json"), details=True)
    assert "mean of Σ min(p / w, q), by block" in out
    written = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    [sample] = written["speculative"]["samples"]
    for iteration in sample["iterations"]:
        tested = iteration["details"]["tested"]
        assert len(tested) == iteration["drafted"]
        assert [test["passed"] for test in tested] == [test["u"] < test["h"] for test in tested]
        last = max([i for i, test in enumerate(tested, start=1) if test["passed"]], default=0)
        assert iteration["accepted"] == last
        assert len(iteration["alpha"]) == min(last + 1, iteration["drafted"])


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"accept": "blok"}, "--accept must be one of token, block (did you mean block?), not 'blok'"),
        ({"tree": "2,1"}, "--accept is of no use here: block tests a chain, and --tree has a rule of its own"),
        ({"tree": "auto"}, "--accept is of no use here: block tests a chain, and --tree has a rule of its own"),
        ({"lenience": 0.5}, "--accept is of no use here: --lenience is another rule, and a window is accepted by one"),
        ({"typical": 0.3}, "--accept is of no use here: --typical is another rule, and a window is accepted by one"),
    ],
)
def test_what_does_not_go_with_it_is_said(flags, line):
    assert refusal(parse, **{"accept": "block"} | flags) == line


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_verify_finds_no_loss_on_the_bundled_pair(engine):
    result = python("main.py", "--demo", "--accept=block", "--temperature=1", f"--engine={engine}", "--verify")
    assert result.returncode == 0, result.stdout
    assert "passed  speculative against the target" in result.stdout
