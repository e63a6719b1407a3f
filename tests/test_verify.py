"""--verify must be able to fail: the accept rule, the residual and the cache are broken on purpose, one at a time."""

import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from speculative.accept import Rule, by_ratio, choose, one_by_one, residual

from speculative import sampling
from speculative.drafters import Drafter
from speculative.drafters.model import model_drafter, model_tree
from speculative.filters import to_distribution
from speculative.lookahead import AutoK
from speculative.measure import sampled
from speculative.measure.decoders import Check, Choice, Decoders
from speculative.measure.uniform import BINS, LEVEL, alike, detectable, flat, place
from speculative.measure.verify import ABOUT, show, verify
from speculative.sampling import Proposal, token_by_token
from speculative.trees import regular

N_VOCAB = 50
PROMPTS = [list(range(1, 12)), [7, 7, 3, 7, 7, 3, 9, 8, 2, 1, 40, 6]]


class Table:
    """A model that goes by a table from the last token to the next, which takes no time."""

    def __init__(self, rows):  # [n_vocab, n_vocab]
        self.rows = rows

    def __call__(self, x, n_last=1):  # [n] -> [n_last, n_vocab]
        return self.rows[np.asarray(x)[len(x) - n_last :]]


class Blurred(Table):
    """Whose rows depend on their number."""

    def __call__(self, x, n_last=1):
        rows = super().__call__(x, n_last)
        return np.nextafter(rows, 1, dtype=np.float32) if n_last > 1 else rows


class Stale(Table):
    """With a cache that cannot be rolled back: tokens that were rejected stay (but for emptying it) and change all."""

    n = 0

    def forget(self):
        self.n = 0

    def __call__(self, x, n_last=1):
        too_many = max(0, self.n - (len(x) - n_last))
        self.n = len(x) + too_many
        return super().__call__((np.asarray(x) + too_many) % N_VOCAB, n_last)


def chains_of(model):
    """Decoders.make_drafter."""
    return lambda rng: Drafter(model_drafter(model, rng))


def decoders(temperature, model=Table, **options):
    """A target and a draft that is like it."""
    logits, noise = np.random.default_rng(1).standard_normal((2, N_VOCAB, N_VOCAB), np.float32)
    target, draft = (to_distribution(table, temperature) for table in (logits, logits + noise))
    return Decoders(model(target), chains_of(Table(draft)), **options)


def run(K=3, draws=200, decoders=decoders, **broken):
    checks = verify(partial(decoders, **broken), 1.0, PROMPTS, K, 20, draws=draws, clock=lambda: 0.0)
    return {check.name: check for check in checks}


def failed(checks):
    return {name for name, check in checks.items() if not check.passed}


@pytest.mark.parametrize(("K", "name", "n_tokens"), [(3, "3", 8), (Choice("auto", AutoK), "auto", 10)])
def test_it_passes_where_nothing_is_broken(K, name, n_tokens):
    checks = run(K)
    assert len(checks) == 6
    assert failed(checks) == set()
    assert f"200 draws of {n_tokens} tokens" in checks["speculative against the target"].detail
    assert f"K = 1, 2, 4, 8, {name}" in checks["greedy"].detail


def wrong(test=by_ratio, rest=residual):
    """The paper's rule but for its test, or for what is left after a rejection."""
    return Rule("wrong", partial(one_by_one, test=test, rest=rest))


def stale_bonus(proposal, q, rng):
    """The bonus is drawn from the row before the last."""
    return token_by_token(proposal, np.concatenate([q[:-1], q[-2:-1]]) if len(q) > 1 else q, rng)


@pytest.mark.parametrize(
    ("rule", "seen_by"),
    [
        (wrong(test=lambda u, p, q: sampling.Test(u, p, q, u < 0.9)), "speculative against the target"),
        (wrong(test=lambda u, p, q: sampling.Test(u, p, q, u * q < p)), "speculative against the target"),
        (wrong(rest=lambda q, p: q), "speculative against the target"),
        (wrong(rest=lambda q, p: residual(p, q)), "speculative against the target"),
        (Rule("wrong", stale_bonus), "greedy"),
    ],
)
def test_it_sees_a_broken_rule(rule, seen_by):
    assert seen_by in failed(run(rule=rule))


def test_it_sees_lenience_a_stale_cache_and_rows_that_depend_on_their_number():
    assert "speculative against the target" in failed(run(rule=choose(lenience=0.3)))
    assert {"greedy", "rows"} <= failed(run(model=Stale))
    checks = run(model=Blurred)
    assert failed(checks) == {"rows"}
    assert "prompt 1, 2 rows, cached" in checks["rows"].detail


@pytest.mark.parametrize("margin", [1e-4, 0.1])
def test_greedy_texts_may_part_where_rounding_can_bring_it_about_and_nowhere_else(margin):
    """An engine whose rows depend on their number: margin lies between the two best logits of a row alone."""
    logits = 3 * np.random.default_rng(3).standard_normal((N_VOCAB, N_VOCAB)).astype(np.float32)
    last = PROMPTS[0][-1]
    first, second = np.argsort(-logits[last])[:2]
    logits[last, second] = logits[last, first] - margin
    rounded = logits.copy()
    rounded[last, second] += 2 * margin  # what a window of several rows makes of it

    def decoders(temperature):
        alone, in_window = (Table(to_distribution(table, temperature)) for table in (logits, rounded))

        def target(x, n_last=1):
            return (alone if n_last == 1 else in_window)(x, n_last)

        return Decoders(target, chains_of(alone), logits=Table(logits), rounding=1e-3)

    checks = run(draws=25, decoders=decoders)
    greedy = checks["greedy"]
    assert "rows" not in checks
    assert greedy.passed == (margin < 1e-3)
    said = "5 texts part, where" if greedy.passed else "at new token 1, where the two best logits are 0.1 apart"
    assert said in greedy.detail


def test_it_stops_when_the_time_is_up():
    ticks = itertools.count(0.0)
    checks = list(verify(decoders, 1.0, PROMPTS, 1, 4, draws=10**6, seconds=40, clock=lambda: next(ticks)))
    draws = int(checks[2].detail.split(" over ")[1].split()[0])
    assert 200 < draws < 230
    assert detectable(4 * draws) > sampled.SHIFT  # slow models get five times as long
    few = np.ones((2, 2, BINS), int)
    assert detectable(BINS) > sampled.SHIFT > detectable(1000 * BINS)
    assert sampled.goes_on(59, 60, 1000 * few)
    assert not sampled.goes_on(60, 60, 1000 * few)
    assert sampled.goes_on(299, 60, few)
    assert not sampled.goes_on(300, 60, few)


def test_place_respects_the_order_and_its_ties():
    q = np.array([0.1, 0.4, 0.0, 0.4, 0.1], np.float32)
    half = SimpleNamespace(random=lambda: 0.5)
    assert [place(token, q, q, half) for token in range(5)] == pytest.approx([0.85, 0.2, 1.0, 0.6, 0.95])
    rising = np.arange(5)
    assert [place(token, q, rising, half) for token in range(5)] == pytest.approx([0.95, 0.7, 1.0, 0.3, 0.05])


def test_p_values_against_known_ones():
    """For 2 degrees of freedom, the chance of x or more is exp(-x / 2)."""
    assert flat(np.array([10, 20, 30])) == pytest.approx(np.exp(-10 / 2))
    assert alike(np.array([10, 20, 30]), np.array([30, 20, 10])) == pytest.approx(np.exp(-20 / 2))


def test_the_detectable_difference_is_detected():
    """Simulated: places that are off by just that much are found in about 95 of 100 verifications."""
    n, rng = 2000, np.random.default_rng(0)
    d = detectable(n)
    shifted = np.full(BINS, 1 / BINS) + np.where(np.arange(BINS) % 2, 1, -1) * 2 * d / BINS
    assert np.abs(shifted - 1 / BINS).sum() / 2 == pytest.approx(d)
    found = np.mean([2 * flat(rng.multinomial(n, shifted)) < 1e-4 for _ in range(1000)])
    assert 0.92 < found < 0.98


# ---- Drafts against the p that they come with ------------------------------------------------------------------------


def random_rows(rng, n):
    rows = rng.random((n, 20)) ** 3
    return rows / rows.sum(axis=1, keepdims=True)


def chain(rng):
    return model_drafter(lambda x, n_last=1: random_rows(rng, n_last), rng)([1, 2], 4)


def tree(rng):
    return model_tree(lambda x, tree, nodes: random_rows(rng, len(nodes)), rng)([1, 2], regular((3, 2)))


def one_p_for_all_siblings(rng):
    found = tree(rng)
    for node, parent in enumerate(found.parents[1:], start=1):
        found.p[node] = found.p[found.children[parent][0]]
    return found


def others_p(rng):
    tokens = chain(rng).tokens
    return Proposal(tokens, random_rows(rng, len(tokens)))


@pytest.mark.parametrize(
    ("propose", "honest"), [(chain, True), (tree, True), (one_p_for_all_siblings, False), (others_p, False)]
)
def test_drafts_are_held_against_the_p_that_they_come_with(propose, honest):
    """400 proposals, each of its own distributions."""
    counts, rng = np.zeros(BINS, int), np.random.default_rng(1)
    for _ in range(400):
        sampled.count_drafts(counts, propose(rng), rng)
    assert (flat(counts) > LEVEL) == honest


# ---- The verdict -----------------------------------------------------------------------------------------------------


def test_the_verdict_says_what_it_excludes():
    exact = Check("greedy", True, "equal")
    drawn = Check("speculative against the target", True, "even", 0.046)
    of_both = Check("speculative against autoregressive", True, "alike", 0.09)
    for checks, passed, line in (
        ([exact], True, "no loss found."),
        ([exact, drawn, of_both], True, "no loss found; a shift above 4.6% would have shown."),
        ([exact, drawn._replace(passed=False), of_both], False, "NOT lossless, for the reasons above."),
    ):
        lines = []
        assert show(checks, print=lines.append) == passed
        said = [f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}" for check in checks]
        assert lines == [f"Verify\n------\n{ABOUT}", *said, f"Verdict: {line}"]
