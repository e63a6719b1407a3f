"""The two algorithms step by step: every draw by script, the tests rebuilt afterwards, and a vocabulary of 50,257."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from enumeration import World
from registered import RULE_NAMES
from tiny import counting_target, decoded, one_hot, refusal

from gpt2 import softmax
from speculative.drafters import DRAFTERS
from speculative.drafters.user import UserRule
from speculative.rules import papers_chances, parse_rule
from speculative.run.observer import RecordedRandom, rebuilt_tests
from speculative.sampling import Proposal, Step, autoregressive_sampling, max_fn, sample, speculative_sampling
from speculative.support.errors import UserError

RNG = np.random.default_rng
LAST = 1 - 2**-53  # the largest number that a generator gives


def scripted(*numbers):
    """A generator that gives these numbers, and no more."""
    return SimpleNamespace(random=iter(numbers).__next__)


# ---- Steps 1 to 4 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "us", "expected"),
    [
        ([0, 0.25, 0, 0.5, 0.25, 0], (0.0, 0.2499, 0.25, 0.7499, 0.75, LAST), [1, 1, 3, 3, 4, 4]),
        ([0, 0.3, 0.3, 0.3, 0], (0.0, 0.5, LAST), [1, 2, 3]),  # the sum is not 1
        ([0, 0, 1, 0], (0.0, 0.5, LAST), [2, 2, 2]),
    ],
)
def test_sample_is_the_inverse_of_the_cumulative_distribution(p, us, expected):
    assert [sample(np.array(p, np.float32), scripted(u)) for u in us] == expected


def test_max_fn():
    np.testing.assert_allclose(max_fn(np.array([0.5, -0.2, 0.0, 1.5], np.float32)), [0.25, 0, 0, 0.75])
    assert max_fn(np.array([-0.5, 0.0], np.float32)).tolist() == [0, 0]
    assert max_fn(np.ones(3, np.float32)).dtype == np.float32


@pytest.mark.parametrize("accept", RULE_NAMES)
def test_a_number_of_zero_does_not_accept_a_token_that_the_target_excludes(accept):
    assert parse_rule(accept).accept(Proposal([5], one_hot(5)), one_hot(1, 1), scripted(0.0, 0.5)) == [1]


@pytest.mark.parametrize("accept", ["token", "block"])
def test_an_empty_residual_falls_back_to_the_target(accept):
    """p exceeds q by rounding everywhere, so nothing is left of max(0, q - p)."""
    q = np.array([[0.5, 0.5, 0]] * 3, np.float32)
    p = np.nextafter(q[:2], 1, dtype=np.float32)
    drafts = 1 if accept == "token" else 2
    rng = scripted(*[LAST] * drafts, 0.9)
    tokens = parse_rule(accept).accept(Proposal([0] * drafts, p[:drafts]), q[: drafts + 1], rng)
    assert tokens[-1] == 1


@pytest.mark.parametrize("accept", RULE_NAMES)
def test_a_draft_whose_p_is_0_is_one_clear_error(accept):
    p = one_hot(1, 1)
    line = "the drafter proposed token 2, whose p is 0: the token must be drawn from p"
    assert refusal(parse_rule(accept).accept, Proposal([1, 2], p), one_hot(1, 2, 1), RNG(0)) == line


# ---- What a drafter and a model must return --------------------------------------------------------------------------


def counting(n_rows=None, as_logits=False, dtype=np.float32, made=np.asarray):
    """A target that returns this many rows, by default a row for each token of x."""

    def model(x, n_last=1):
        rows = counting_target(x, len(x)).astype(dtype)
        rows = rows[len(rows) - (n_rows or len(x)) :]
        return made(50 * rows - 25 if as_logits else rows)

    return model


def model_as_drafter(x, n_last=1):
    return counting_target(x, max(1, n_last))


def right_drafts(x, k):
    tokens = [(int(x[-1]) + 1 + i) % 7 for i in range(k)]
    return Proposal(tokens, [*one_hot(*tokens)])


def test_a_target_that_returns_all_rows_is_cut():
    """As the blog's and picoGPT's models do."""
    for target in (counting_target, counting()):
        assert decoded(autoregressive_sampling([0], target, 9, RNG(0))) == [1, 2, 3, 4, 5, 6, 0, 1, 2]
        steps = [*speculative_sampling([0], right_drafts, target, 9, 3, RNG(0))]
        assert decoded(steps) == [1, 2, 3, 4, 5, 6, 0, 1, 2]
        assert [step.n_accepted for step in steps] == [3, 3, 0]


class Tensor(SimpleNamespace):
    """An array as PyTorch has it: its dtype has no kind."""

    def __init__(self, rows):
        super().__init__(ndim=2, shape=rows.shape, dtype="torch.float32", __len__=lambda: len(rows))


class Pair(NamedTuple):
    """What a user's drafter may return: a tuple with names."""

    tokens: list
    p: np.ndarray


ROWS = "has to return a float array of NumPy, [3, n_vocab]"
UNFIT = [
    # (drafter, target, what is said)
    (right_drafts, counting(n_rows=1), f"the model returned float32[1, 7]: model(x, n_last=3) {ROWS}"),
    (right_drafts, counting(dtype=int), f"the model returned int64[5, 7]: model(x, n_last=3) {ROWS}"),
    (right_drafts, counting(made=np.ndarray.tolist), f"the model returned list: model(x, n_last=3) {ROWS}"),
    (right_drafts, counting(made=lambda rows: rows[0]), f"the model returned float32[7]: model(x, n_last=3) {ROWS}"),
    (right_drafts, counting(as_logits=True), "perhaps logits: softmax makes them so"),
    (right_drafts, lambda x, n_last: counting_target(x, n_last) * np.nan, "not distributions"),
    (
        right_drafts,
        lambda x, n_last: Tensor(counting_target(x, n_last)),
        f"the model returned torch.float32[3, 7]: model(x, n_last=3) {ROWS}",
    ),
    (model_as_drafter, counting(), "the drafter should return (tokens, p), not array([["),
    (lambda x, k: ([1], one_hot(1), []), counting(), "the drafter should return (tokens, p), not ([1], array([["),
    (lambda x, k: ([1, 2], one_hot(1)), counting(), "gives p of shape (1, 7) for 2 tokens: each has to have its own"),
    (lambda x, k: Proposal([1, 2], one_hot(1)), counting(), "gives p of shape (1, 7) for 2 tokens: each has to have"),
    (lambda x, k: ([-1], one_hot(6)), counting(), "the drafter proposes the token -1: ids go from 0 to 6"),
    (lambda x, k: ([7], one_hot(6)), counting(), "the drafter proposes the token 7: ids go from 0 to 6"),
    (lambda x, k: ([1.5], one_hot(1)), counting(), "the drafter should return (tokens, p): [1.5] are not token ids"),
    (lambda x, k: (1, one_hot(1)), counting(), "the drafter should return (tokens, p): 'int' object is not iterable"),
    (lambda x, k: ([1] * 3, one_hot(1, 1, 1)), counting(), "the drafter proposes 3 tokens, and 2 were asked for"),
    (lambda x, k: ([1], None), counting(), "the drafter should return (tokens, p): p is object"),
    (lambda x, k: ([1], one_hot(1) * 1j), counting(), "the drafter should return (tokens, p): p is complex"),
    (lambda x, k: ([1], one_hot(1) / 9), counting(), "the drafter gives rows of p that are not distributions"),
    (lambda x, k: ([1], 2 * one_hot(1) - 1 / 7), counting(), "the drafter gives rows of p that are not distributions"),
    (lambda x, k: ([1], one_hot(1) * np.nan), counting(), "the drafter gives rows of p that are not distributions"),
    (lambda x, k: ([1], np.eye(8)[[1]]), counting(), "rows of p have 8 entries, and the model's 7: one for each id"),
    (lambda x, k: ([1], one_hot(2)), counting(), "the drafter proposed token 1, whose p is 0"),
    (
        lambda x, k: SimpleNamespace(tokens=[1], p=one_hot(1) * 5),
        counting(),
        "return (tokens, p), not namespace(",
    ),
    (lambda x, k: Pair([1], one_hot(1) * 5), counting(), "the drafter gives rows of p that are not distributions"),
]


@pytest.mark.parametrize(("draft", "target", "said"), UNFIT, ids=range(len(UNFIT)))
def test_what_cannot_be_used_is_one_line_that_says_what_is_expected(draft, target, said):
    assert said in refusal(list, speculative_sampling([0, 1, 2], draft, target, 9, 2, RNG(0)))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_drafter_may_take_go_on_and_a_model_may_return_a_matrix():
    for go_on in (lambda x, k, go_on: right_drafts(x, k), lambda x, k, go_on=None: right_drafts(x, k)):
        assert decoded(speculative_sampling([0], go_on, counting(made=np.matrix), 9, 3, RNG(0)))[-3:] == [0, 1, 2]


@pytest.mark.parametrize("K", [0, 2])
def test_a_rule_gets_arrays(K):
    def accept(proposal, q, rng):
        assert (proposal.tokens.shape, proposal.tokens.dtype.kind) == ((len(proposal.tokens),), "i")
        assert proposal.p.shape == (len(proposal.tokens), 7)
        return [*proposal.tokens, int(np.argmax(q[-1]))]

    steps = [*speculative_sampling([0], right_drafts, counting(), 9, K, RNG(0), UserRule(accept).accept)]
    assert decoded(steps) == [1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert {type(token) for step in steps for token in step.tokens} == {int}


@pytest.mark.parametrize("part", ["tokens", "p", "q"])
@pytest.mark.parametrize("rule", [lambda accept: UserRule(accept).accept, lambda accept: accept])
def test_a_rule_that_writes_to_its_arrays_is_stopped(part, rule):
    def accept(proposal, q, rng):
        given = proposal._asdict() | {"q": q}
        given[part][...] = 0
        return [*proposal.tokens, 0]

    with pytest.raises((UserError, ValueError), match="assignment destination is read-only"):
        [*speculative_sampling([0], right_drafts, counting(), 9, 2, RNG(0), rule(accept))]


# ---- The names of rules ----------------------------------------------------------------------------------------------


NO_RULES = ["", "token:1", "lenient", "lenient:", "lenient:0", "lenient:nan", "typical:1", "token+block", "block/token"]


@pytest.mark.parametrize("text", NO_RULES)
def test_a_rule_that_is_none_is_refused(text):
    assert "lenient:B, B from 1e-06 to 1; typical:E, E from 1e-06 to 0.999999; not " in refusal(parse_rule, text)


def test_a_draft_is_matched_with_the_chance_that_the_target_gives_it():
    """Rejected, it is replaced by another token: the target's own sample is that token, or the draft."""
    p, q = (np.array([row], np.float32) for row in ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]))
    rule = parse_rule("match")
    rows = np.concatenate([q, q])
    for j in range(3):
        proposal = Proposal([j], p)
        assert rule.accept(proposal, rows, scripted(q[0, j] - 1e-6, 0.0)) == [j, 0]
        rejected = rule.judge(proposal, rows, iter([float(q[0, j])]))
        others = q[0] * (np.arange(3) != j)  # [n_vocab]
        np.testing.assert_allclose(rejected.rest, others / others.sum(), rtol=1e-6)
        step = Step([j, 0], proposal, rows)
        assert rule.chances(step) == [pytest.approx(float(p[0] @ q[0]))]
        assert papers_chances(step, rule) == [0.75]
        assert papers_chances(step, parse_rule("token")) == papers_chances(step, parse_rule("block")) == []


# ---- The tests, rebuilt afterwards -----------------------------------------------------------------------------------


def random_window(rng):
    """A Proposal of up to 5 drafts and the target's rows. Some are equal, some one-hot."""
    m = int(rng.integers(6))
    n_vocab = 6
    p, q = (rng.dirichlet([0.4] * n_vocab, size=m + 1).astype(np.float32) for _ in range(2))
    kind = rng.integers(4)
    if kind == 0:
        q[:m] = p[:m]
    if kind == 1:
        q = np.eye(n_vocab, dtype=np.float32)[q.argmax(axis=-1)]
    tokens = [sample(row, rng) for row in p[:m]]
    return Proposal(tokens, p[:m]), q


@pytest.mark.parametrize("accept", RULE_NAMES)
def test_the_explanation_rebuilds_what_the_rule_did(accept):
    rule = parse_rule(accept)
    rng = RNG(0)
    for number in range(1500):
        proposal, q = random_window(rng)
        draws = RecordedRandom(RNG(number))
        tokens = rule.accept(proposal, q, draws)
        step = Step(tokens, proposal, q)
        _, last, origin, tests = rebuilt_tests(step, rule, [0.5, *draws.u])  # the drafter's numbers come before
        passed = [i for i, test in enumerate(tests, start=1) if test.passed]
        assert max(passed, default=0) == step.n_accepted
        assert [test.u for test in tests] == draws.u[:-1]
        assert sample(last, scripted(draws.u[-1])) == tokens[-1]
        assert origin == ("residual" if step.n_accepted < step.n_drafted else "q")
        for i, test in enumerate(tests):
            j = proposal.tokens[i]
            assert test.p == proposal.p[i][j]
            assert test.q == q[i][j] or accept.startswith("typical")


# ---- Over the 50,257 tokens of GPT-2, most of which are rare and together are not ------------------------------------

LARGE = 50257


def with_a_tail(seed):  # -> [n_vocab]
    """A few tokens are likely. The rare ones have more than a fifth together."""
    p = softmax(2.5 * RNG(seed).standard_normal(LARGE).astype(np.float32))
    assert 0.2 < p[p < 1e-4].sum() < 0.8
    return p


def drawn(p, u):  # [n_vocab]
    """The definition: the first token whose cumulative probability exceeds u."""
    cumulative = np.cumsum(p.astype(np.float64))
    return int(np.flatnonzero(cumulative > u * cumulative[-1])[0])


def test_a_token_of_algorithm_1_takes_exactly_one_number():
    q = with_a_tail(0)
    us = [0.0, LAST, *RNG(1).random(300)]
    steps = autoregressive_sampling([0], lambda x: q[None], len(us), scripted(*us))
    assert decoded(steps) == [drawn(q, u) for u in us]
    for model in (lambda x: q[None], counting_target):  # also at temperature 0
        rng = RecordedRandom(RNG(0))
        for n, _ in enumerate(autoregressive_sampling([0], model, 9, rng), start=1):
            assert len(rng.u) == n


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_each_draft_was_drawn_from_the_p_that_it_comes_with(monkeypatch, drafter):
    world = World(monkeypatch, n_vocab=LARGE, drafter=drafter)
    x = np.array([7, 8, 7, 8, 7])
    world.target(x[:-1])  # heads draft from its last call
    us = [0.0, LAST, *RNG(8).random(6)]
    for pair in zip(us, reversed(us), strict=True):
        proposal = world.session.drafter(scripted(*pair), target=world.target)(x, 2)
        assert [*proposal.tokens] == [drawn(p_i, u) for p_i, u in zip(proposal.p, pair, strict=True)]


@pytest.mark.parametrize("accept", ["token", "block", "lenient:1"])
def test_a_window_is_what_algorithm_2_says(accept):
    """The first number tests the draft, the second draws the token that follows or replaces it.

    Lenient acceptance with 1 is the paper's rule, by the loop that trees take.
    """
    p, q = with_a_tail(2), with_a_tail(3)
    left = np.maximum(q.astype(np.float64) - p, 0)
    us = [0.0, LAST, *RNG(8).random(30)]
    drafts = RNG(5).integers(LARGE, size=len(us))
    for j, u, then in zip(drafts.tolist(), us, reversed(us), strict=True):
        draft, target = (lambda x, k, j=j: Proposal([j], [p])), (lambda x, n_last: np.tile(q, (n_last, 1)))
        rule = parse_rule(accept).accept
        step = next(speculative_sampling([0], draft, target, 2, 1, scripted(u, then), rule))
        accepted = u * float(p[j]) < q[j]
        assert step.tokens == ([j, drawn(q, then)] if accepted else [drawn(left, then)])
