"""--verify can fail: the rule, the residual, the cache and the drafts are broken on purpose, one at a time."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from speculative.drafters import Drafter
from speculative.drafters.model import model_drafter, model_tree
from speculative.filters import to_distribution
from speculative.measure import check_sampling
from speculative.measure.decoders import OWN, Check, Decoders
from speculative.measure.goodness_of_fit import BINS, LEVEL, detectable, p_flat, place
from speculative.measure.verify import check_nodes, show, verify
from speculative.rules import one_by_one, parse_rule
from speculative.sampling import Proposal, autoregressive_sampling, residual, speculative_sampling, token_by_token
from speculative.trees import by_paths, regular

N_VOCAB = 50
PROMPTS = [list(range(1, 12)), [7, 7, 3, 7, 7, 3, 9, 8, 2, 1, 40, 6]]


class Table:
    """A model that goes by a table from the last token to the next."""

    def __init__(self, rows):  # [n_vocab, n_vocab]
        self.rows = rows

    def __call__(self, x, n_last=1):  # [n] -> [n_last, n_vocab]
        return self.rows[np.asarray(x)[len(x) - n_last :]]

    def tree(self, x, tree, nodes=None):
        return by_paths(self)(x, tree, nodes)


class Blurred(Table):
    """Rows that depend on their number."""

    def __call__(self, x, n_last=1):
        rows = super().__call__(x, n_last)
        return np.nextafter(rows, 1, dtype=np.float32) if n_last > 1 else rows


class Stale(Table):
    """A cache in which rejected tokens stay, until it is emptied, and change all rows after them."""

    n = 0

    def forget(self):
        self.n = 0

    def __call__(self, x, n_last=1):
        too_many = max(0, self.n - (len(x) - n_last))
        self.n = len(x) + too_many
        return super().__call__((np.asarray(x) + too_many) % N_VOCAB, n_last)


class StaleAfterARejection(Table):
    """A cache that keeps the last token of a window whose every token was rejected."""

    held = ()

    def forget(self):
        self.held = ()

    def __call__(self, x, n_last=1):
        x = np.asarray(x)
        before = np.array(self.held)
        rows = super().__call__(x, n_last)
        if len(before) == len(x) and n_last > 1 and not np.any(before[-n_last:] == x[-n_last:]):
            rows = np.nextafter(rows, 1, dtype=np.float32)
        self.held = tuple(x.tolist())
        return rows


class WrongNode(Table):
    """The last node of a tree has a row that is off by one bit."""

    def tree(self, x, tree, nodes=None):
        rows = super().tree(x, tree, nodes).copy()
        rows[-1] = np.nextafter(rows[-1], 1, dtype=np.float32)
        return rows


def decoders(temperature, model=Table, accept=token_by_token, like=1.0, **about):
    """A target, and a draft that is like it."""
    logits, noise = np.random.default_rng(1).standard_normal((2, N_VOCAB, N_VOCAB), np.float32)
    target, draft = (to_distribution(table, temperature) for table in (logits, logits + like * noise))
    target = model(target)

    def drafter(rng):
        return Drafter(model_drafter(Table(draft), rng), model_tree(Table(draft).tree, rng))

    def speculative(x, N, K, rng):
        return speculative_sampling(x, drafter(rng).chain, target, N, 3 if K == OWN else K, rng, accept)

    return Decoders(target, drafter, partial(autoregressive, target), speculative, **about)


def autoregressive(target, x, N, rng):
    return autoregressive_sampling(x, target, N, rng)


def run(K=3, draws=200, decoders=decoders, **broken):
    checks = verify(partial(decoders, **broken), 1.0, PROMPTS, K, 20, draws=draws)
    return {check.name: check for check in checks}


def failed(checks):
    return {name for name, check in checks.items() if not check.passed}


@pytest.mark.parametrize(("K", "n_tokens"), [(3, 8), ("auto", 10)])
def test_it_passes_if_nothing_is_broken(K, n_tokens):
    checks = run(K, own_name=str(K))
    assert len(checks) == 5
    assert failed(checks) == set()
    assert f"200 draws of {n_tokens} tokens" in checks["speculative against the target"].detail
    assert f"K = 1, 2, 4, 8, {K}" in checks["greedy"].detail


def wrong(test=lambda u, ratio: u < ratio, rest=residual):
    return partial(one_by_one, test=test, rest=rest)


def stale_bonus(proposal, q, rng):
    """The bonus is drawn from the row before the last."""
    return token_by_token(proposal, np.concatenate([q[:-1], q[-2:-1]]) if len(q) > 1 else q, rng)


@pytest.mark.parametrize(
    ("broken", "seen_by"),
    [
        ({"accept": wrong(test=lambda u, ratio: u < 0.9)}, "speculative against the target"),
        ({"accept": wrong(test=lambda u, ratio: u * ratio < 1)}, "speculative against the target"),
        ({"accept": wrong(rest=lambda q, p: q)}, "speculative against the target"),
        ({"accept": wrong(rest=lambda q, p: residual(p, q))}, "speculative against the target"),
        ({"accept": parse_rule("lenient:0.3").accept}, "speculative against the target"),
        ({"accept": stale_bonus}, "greedy"),
        ({"model": Stale}, "greedy"),
        ({"model": Stale}, "rows"),
        ({"model": Blurred}, "rows"),
        ({"model": StaleAfterARejection}, "rows"),
    ],
)
def test_it_sees_what_is_broken(broken, seen_by):
    assert seen_by in failed(run(**broken))


@pytest.mark.parametrize(("model", "passed"), [(Table, True), (WrongNode, False)])
def test_it_sees_a_node_whose_row_is_off_by_a_bit(model, passed):
    assert check_nodes(decoders(1.0, model), PROMPTS, regular([2, 1])).passed == passed


@pytest.mark.parametrize("margin", [1e-4, 0.1])
def test_greedy_texts_may_part_only_where_rounding_can_bring_it_about(margin):
    """An engine whose rows depend on their number: margin lies between the two best logits of a row alone."""
    logits = 3 * np.random.default_rng(3).standard_normal((N_VOCAB, N_VOCAB)).astype(np.float32)
    last = PROMPTS[0][-1]
    first, second = np.argsort(-logits[last])[:2]
    logits[last, second] = logits[last, first] - margin
    rounded = logits.copy()
    rounded[last, second] += 2 * margin

    def of(temperature):
        alone, in_window = (Table(to_distribution(table, temperature)) for table in (logits, rounded))

        def target(x, n_last=1):
            return (alone if n_last == 1 else in_window)(x, n_last)

        def speculative(x, N, K, rng):
            draft = model_drafter(alone, rng)
            return speculative_sampling(x, draft, target, N, 3 if K == OWN else K, rng)

        make = lambda rng: Drafter(model_drafter(alone, rng))  # noqa: E731
        both = Decoders(target, make, partial(autoregressive, target), speculative)
        return both._replace(logits=Table(logits), rounding=1e-3)

    checks = run(draws=25, decoders=of)
    assert "rows" not in checks
    assert checks["greedy"].passed == (margin < 1e-3)
    said = "where the two best logits are 0.1 apart"
    assert (said in checks["greedy"].detail) == (not checks["greedy"].passed)


def test_it_stops_when_the_time_is_up_and_not_before_the_fewest_draws():
    checks = list(verify(decoders, 1.0, PROMPTS, 1, 4, draws=10**6, seconds=0))
    assert "over 25 draws" in checks[2].detail


# ---- The statistics --------------------------------------------------------------------------------------------------


def test_place_respects_the_order_and_its_ties():
    q = np.array([0.1, 0.4, 0.0, 0.4, 0.1], np.float32)
    half = SimpleNamespace(random=lambda: 0.5)
    assert [place(token, q, q, half) for token in range(5)] == pytest.approx([0.85, 0.2, 1.0, 0.6, 0.95])
    assert [place(token, q, np.arange(5), half) for token in range(5)] == pytest.approx([0.95, 0.7, 1.0, 0.3, 0.05])


def test_the_p_value_against_a_known_one():
    """For 2 degrees of freedom, the chance of x or more is exp(-x / 2)."""
    assert p_flat(np.array([10, 20, 30])) == pytest.approx(np.exp(-10 / 2))


def test_the_detectable_difference_is_detected():
    """Places that are off by just that much are found in about 95 of 100 simulated verifications."""
    n, rng = 2000, np.random.default_rng(0)
    shifted = np.full(BINS, 1 / BINS) + np.where(np.arange(BINS) % 2, 1, -1) * 2 * detectable(n) / BINS
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
def test_drafts_are_compared_with_the_p_that_they_come_with(propose, honest):
    counts, rng = np.zeros(BINS, int), np.random.default_rng(1)
    for _ in range(400):
        check_sampling.count_drafts(counts, propose(rng), rng)
    assert (p_flat(counts) > LEVEL) == honest


def test_the_verdict():
    exact = Check("greedy", True, "all equal")
    drawn = Check("speculative against the target", True, "p = 0.3", 0.046)
    for checks, passed, line in (
        ([exact], True, "no loss found."),
        ([exact, drawn], True, "no loss found; a shift above 4.6% would have shown."),
        ([exact, drawn._replace(passed=False)], False, "NOT lossless, for the reasons above."),
    ):
        lines = []
        assert show(checks, print=lines.append) == passed
        assert lines[-1].endswith(f": {line}")
        assert len([one for one in lines if one.startswith(("passed  ", "FAILED  "))]) == len(checks)


@pytest.mark.parametrize("flags", [{}, {"temperature": 0.8, "K": "auto"}, {"tree": "2,1"}, {"drafter": "int8/model"}])
def test_verify_of_a_session(run_verify, flags):
    status, out = run_verify(n_tokens_to_generate=1, **flags)
    assert status == 0
    assert ": no loss found" in out
    status, out = run_verify(draws=40, accept="typical:0.9", **flags | {"temperature": 9.0})
    assert status == 1
    assert "FAILED  speculative against the target" in out
