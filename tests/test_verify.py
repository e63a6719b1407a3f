"""--verify must be able to fail: the accept rule, the residual and the cache are broken on purpose, one at a time."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from speculative.drafters import Drafter
from speculative.drafters.model import model_drafter, model_tree
from speculative.filters import to_distribution
from speculative.measure.check_sampling import count_drafts
from speculative.measure.decoders import OWN, Check, Decoders
from speculative.measure.goodness_of_fit import BINS, LEVEL, detectable, p_flat, place
from speculative.measure.verify import ABOUT, show, verify
from speculative.rules import below, one_by_one, parse_rule
from speculative.sampling import Proposal, autoregressive_sampling, residual, speculative_sampling, token_by_token
from speculative.trees import regular

N_VOCAB = 50
PROMPTS = [list(range(1, 12)), [7, 7, 3, 7, 7, 3, 9, 8, 2, 1, 40, 6]]


class Table:
    """A model with a table from the last token to the distribution of the next."""

    def __init__(self, rows):  # [n_vocab, n_vocab]
        self.rows = rows

    def __call__(self, x, n_last=1):  # [n] -> [n_last, n_vocab]
        return self.rows[np.asarray(x)[len(x) - n_last :]]


class Blurred(Table):
    """Rows depend on their number."""

    def __call__(self, x, n_last=1):
        rows = super().__call__(x, n_last)
        return np.nextafter(rows, 1, dtype=np.float32) if n_last > 1 else rows


class Stale(Table):
    """The cache cannot be rolled back: rejected tokens stay until it is emptied, and change all rows."""

    n = 0

    def forget(self):
        self.n = 0

    def __call__(self, x, n_last=1):
        too_many = max(0, self.n - (len(x) - n_last))
        self.n = len(x) + too_many
        return super().__call__((np.asarray(x) + too_many) % N_VOCAB, n_last)


def decoders_of(target, draft, accept=token_by_token, own_K=3, **options):
    def speculative(x, N, K, rng):
        return speculative_sampling(x, model_drafter(draft, rng), target, N, own_K if K == OWN else K, rng, accept)

    def autoregressive(x, N, rng):
        return autoregressive_sampling(x, target, N, rng)

    return Decoders(target, lambda rng: Drafter(model_drafter(draft, rng)), autoregressive, speculative, **options)


def decoders(temperature, model=Table, **options):
    """A target, and a draft that is similar to it."""
    logits, noise = np.random.default_rng(1).standard_normal((2, N_VOCAB, N_VOCAB), np.float32)
    target, draft = (to_distribution(table, temperature) for table in (logits, logits + noise))
    return decoders_of(model(target), Table(draft), **options)


def run(K=3, draws=200, decoders=decoders, **broken):
    return {check.name: check for check in verify(partial(decoders, **broken), 1.0, PROMPTS, K, 20, draws=draws)}


def failed(checks):
    return {name for name, check in checks.items() if not check.passed}


@pytest.mark.parametrize(("K", "n_tokens"), [(3, 8), ("auto", 10)])
def test_it_passes_if_nothing_is_broken(K, n_tokens):
    checks = run(K, own_name=str(K))
    assert len(checks) == 5
    assert failed(checks) == set()
    assert f"200 draws of {n_tokens} tokens" in checks["speculative against the target"].detail
    assert f"K = 1, 2, 4, 8, {K}" in checks["greedy"].detail


def wrong(test=below, rest=residual):
    """The paper's rule with another test, or another distribution after a rejection."""
    return partial(one_by_one, test=test, rest=rest)


def stale_bonus(proposal, q, rng):
    """The bonus is drawn from the row before the last."""
    return token_by_token(proposal, np.concatenate([q[:-1], q[-2:-1]]) if len(q) > 1 else q, rng)


@pytest.mark.parametrize(
    ("accept", "seen_by"),
    [
        (wrong(test=lambda u, ratio: u < 0.9), "speculative against the target"),
        (wrong(test=lambda u, ratio: u * ratio < 1), "speculative against the target"),
        (wrong(rest=lambda q, p: q), "speculative against the target"),
        (wrong(rest=lambda q, p: residual(p, q)), "speculative against the target"),
        (parse_rule("lenient:0.3").accept, "speculative against the target"),
        (stale_bonus, "greedy"),
    ],
)
def test_it_sees_a_broken_rule(accept, seen_by):
    assert seen_by in failed(run(accept=accept))


def test_it_sees_a_stale_cache_and_rows_that_depend_on_their_number():
    assert {"greedy", "rows"} <= failed(run(model=Stale))
    checks = run(model=Blurred)
    assert failed(checks) == {"rows"}
    assert "prompt 1, 2 rows, cached" in checks["rows"].detail


@pytest.mark.parametrize("margin", [1e-4, 0.1])
def test_greedy_texts_may_part_only_at_nearly_tied_logits(margin):
    """An engine with rows that depend on their number: margin lies between the two best logits of a row alone."""
    logits = 3 * np.random.default_rng(3).standard_normal((N_VOCAB, N_VOCAB)).astype(np.float32)
    last = PROMPTS[0][-1]
    first, second = np.argsort(-logits[last])[:2]
    logits[last, second] = logits[last, first] - margin
    rounded = logits.copy()
    rounded[last, second] += 2 * margin  # the row as computed in a window

    def decoders(temperature):
        alone, in_window = (Table(to_distribution(table, temperature)) for table in (logits, rounded))

        def target(x, n_last=1):
            return (alone if n_last == 1 else in_window)(x, n_last)

        return decoders_of(target, alone, logits=Table(logits), rounding=1e-3)

    checks = run(draws=25, decoders=decoders)
    greedy = checks["greedy"]
    assert "rows" not in checks
    assert greedy.passed == (margin < 1e-3)
    assert ("5 texts part, where" if greedy.passed else "at new token 1, where the two best logits") in greedy.detail


def test_it_stops_after_the_time_and_not_before_the_fewest_draws():
    checks = list(verify(decoders, 1.0, PROMPTS, 1, 4, draws=10**6, seconds=0))
    assert "over 25 draws" in checks[2].detail


def test_place_respects_the_order_and_its_ties():
    q = np.array([0.1, 0.4, 0.0, 0.4, 0.1], np.float32)
    half = SimpleNamespace(random=lambda: 0.5)
    assert [place(token, q, q, half) for token in range(5)] == pytest.approx([0.85, 0.2, 1.0, 0.6, 0.95])
    rising = np.arange(5)
    assert [place(token, q, rising, half) for token in range(5)] == pytest.approx([0.95, 0.7, 1.0, 0.3, 0.05])


def test_the_p_value_and_the_detectable_difference():
    """For 2 degrees of freedom, the chance of x or more is exp(-x / 2). A shift that should show in 95 % does."""
    assert p_flat(np.array([10, 20, 30])) == pytest.approx(np.exp(-10 / 2))
    n, rng = 2000, np.random.default_rng(0)
    d = detectable(n)
    shifted = np.full(BINS, 1 / BINS) + np.where(np.arange(BINS) % 2, 1, -1) * 2 * d / BINS
    assert np.abs(shifted - 1 / BINS).sum() / 2 == pytest.approx(d)
    found = np.mean([2 * p_flat(rng.multinomial(n, shifted)) < LEVEL for _ in range(1000)])
    assert 0.92 < found < 0.98


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
def test_drafts_are_tested_against_their_p(propose, honest):
    """400 proposals, each of its own distributions."""
    counts, rng = np.zeros(BINS, int), np.random.default_rng(1)
    for _ in range(400):
        count_drafts(counts, propose(rng), rng)
    assert (p_flat(counts) > LEVEL) == honest


def test_the_summary_says_which_shift_it_excludes():
    exact = Check("greedy", True, "equal")
    drawn = Check("speculative against the target", True, "even", 0.046)
    other = Check("autoregressive against the target", True, "even", 0.09)
    for checks, passed, line in (
        ([exact], True, "no loss found."),
        ([exact, drawn, other], True, "no loss found; a shift above 4.6% would have shown."),
        ([exact, drawn._replace(passed=False), other], False, "NOT lossless, for the reasons above."),
    ):
        lines = []
        assert show(checks, print=lines.append) == passed
        said = [f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}" for check in checks]
        assert lines == [f"Verify\n------\n{ABOUT}", *said, f"Summary: {line}"]
