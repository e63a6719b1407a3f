"""K that chooses itself, on a clock that only moves when a draft or the target says how long it took."""

from itertools import islice

import numpy as np
import pytest
from enumeration import distance_from_target, random_model
from hypothesis import example, given, settings
from hypothesis import strategies as st

from speculative.drafters.base import NOTHING, Proposal
from speculative.drafters.model import model_drafter
from speculative.engines.plain import common_prefix
from speculative.lookahead import AutoK, decode_chain
from speculative.sampling import speculative_sampling

N_VOCAB = 5
PROMPT = [0] * 8


class World:
    """A target that counts, greedily, and a draft that is right where `right` says so, with the time that they take.

    In units of the target's time for one row: `row` for each further row, `draft` for each token drafted, and `feed`
    for each token that the draft had not seen, where it is more than two behind.
    """

    def __init__(self, right, draft=0.1, row=0.04, feed=0.0, noise=lambda: 1.0, proposes=lambda place: True):
        self.right, self.draft_time, self.row, self.feed = right, draft, row, feed
        self.noise, self.proposes = noise, proposes
        self.now, self.fed, self.prefill = 0.0, np.empty(0, int), 0.0
        self.asked, self.ks = [], []  # each k that the draft was called with; that was drafted in the last auto()

    def draft(self, x, k):
        self.asked.append(k)
        if k == 0:
            return NOTHING
        n_behind = len(x) - common_prefix(self.fed, x)
        self.prefill = self.prefill or self.feed * len(PROMPT)
        self.now += self.noise() * (self.draft_time * k + self.feed * n_behind * (n_behind > 2))
        self.fed = x
        if not self.proposes(len(x)):
            return NOTHING
        tokens = [(int(x[-1]) + 1 + i + (not self.right(len(x) + i))) % N_VOCAB for i in range(k)]
        self.fed = np.append(x, tokens)
        return Proposal(tokens, np.eye(N_VOCAB, dtype=np.float32)[tokens])

    def target(self, x, n_last=1):
        self.now += self.noise() * (1 + self.row * (n_last - 1))
        return np.eye(N_VOCAB, dtype=np.float32)[(np.asarray(x[len(x) - n_last :]) + 1) % N_VOCAB]

    def fixed(self, N, K):
        """The time for N tokens with this K, the draft's prefill of the prompt apart."""
        list(speculative_sampling(PROMPT, self.draft, self.target, N, K, np.random.default_rng(0)))
        return self.now - self.prefill

    def auto(self, N, auto=None):
        """The time for N tokens, the draft's prefill of the prompt apart; self.ks are the K that were chosen."""
        auto = auto or AutoK(clock=lambda: self.now)
        steps = list(auto.decode(PROMPT, self.draft, self.target, N, np.random.default_rng(0)))
        assert [t for s in steps for t in s.tokens] == [(i + 1) % N_VOCAB for i in range(N)]
        self.ks = [s.drafted for s in steps]
        return self.now - self.prefill


def best_fixed(N, **world):
    return min(World(**world).fixed(N, K) for K in range(11))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.lists(st.booleans(), min_size=1, max_size=9),
)
@example([False], 1.0, 0.04, 0.0, [True])
@example([False], 1.0, 0.04, 1.0, [True])
@example([True] + [False] * 9, 0.3, 1.0, 0.1, [True])
@example([False], 1.0, 0.0, 0.0, [False])
@example([False], 0.5, 0.04, 0.0, [False])
@example([False], 1.0, 1.0, 0.0, [True])
def test_hardly_slower_than_autoregressive_decoding_whatever_the_drafter(script, draft, row, feed, proposes):
    """At least 0.96 of its speed, also with a draft as dear as the target. Where in addition a window of two rows takes
    nearly twice the time of one, the three windows that measure this weigh more. What proposes nothing now and then
    is a lookup, and cheap."""
    draft = draft if all(proposes) else draft / 10
    world = World(
        lambda place: script[place % len(script)],
        draft,
        row,
        feed * draft,
        proposes=lambda place: proposes[place % len(proposes)],
    )
    assert world.auto(256) <= max(256 / 0.96, 1.03 * 256 + 3 * (draft + row))


@pytest.mark.parametrize("length", [64, 128, 256])
@pytest.mark.parametrize("begins", [0, 1])
@pytest.mark.parametrize(("draft", "row", "feed"), [(0.0001, 0.03, 0), (0.1, 0.04, 0.02), (0.25, 0.05, 0.02)])
def test_where_the_text_changes_no_fixed_k_is_faster(length, begins, draft, row, feed):
    """Acceptance flips from 0 to 1 and back: nothing is right for one stretch, everything for the next."""
    world = {"right": lambda place: (place // length) % 2 == begins, "draft": draft, "row": row, "feed": feed}
    assert World(**world).auto(4 * length) <= best_fixed(4 * length, **world)


@pytest.mark.parametrize("begins", [0, 1])
def test_it_recovers(begins):
    """In the last quarter of a stretch where everything is right K is high, and where nothing is right mostly 0."""
    right = lambda place: (place // 128) % 2 == begins  # noqa: E731
    world, place = World(right), len(PROMPT)
    auto = AutoK(clock=lambda: world.now)
    high, low = [], []
    for step in auto.decode(PROMPT, world.draft, world.target, 768, np.random.default_rng(0)):
        if place % 128 > 96:
            (high if right(place) else low).append(step.drafted)
        place += len(step.tokens)
    assert np.median(high) >= 8
    assert np.median(low) == 0 and np.mean(low) < 0.5


@pytest.mark.parametrize("alpha", [0, 0.3, 0.6, 0.8, 0.95, 1])
@pytest.mark.parametrize(("draft", "row"), [(0.0001, 0.03), (0.1, 0.04), (0.3, 0.04), (0.1, 0.75)])
def test_close_to_the_best_fixed_k_where_nothing_changes(alpha, draft, row):
    right = (np.random.default_rng(0).random(2000) < alpha).tolist()
    world = {"right": lambda place: right[place], "draft": draft, "row": row}
    assert World(**world).auto(1024) <= 1.06 * best_fixed(1024, **world)


def test_what_was_learned_stays_for_the_next_decode():
    world = World(lambda place: True)
    auto = AutoK(clock=lambda: world.now)
    world.auto(100, auto)
    world.fed = np.empty(0, int)
    world.auto(100, auto)
    assert world.ks[0] == 16


def test_the_draft_is_not_called_for_a_k_of_0():
    world = World(lambda place: False, draft=1.0)
    world.auto(200)
    assert 0 not in world.asked
    assert 1 < len(world.asked) < 15


def test_a_drafter_that_seldom_proposes_but_well_is_used():
    """What it costs to ask is little, and what counts is acceptance where something was proposed."""
    world = {
        "right": lambda place: True,
        "draft": 0.001,
        "row": 0.03,
        "proposes": lambda place: place % 20 == 0,
    }
    assert World(**world).auto(1024) <= 1.05 * best_fixed(1024, **world)


def test_single_slow_calls_change_nothing():
    """One call in twenty takes ten times as long: medians do not see it, unless it is more than one of the first."""
    high = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        world = World(lambda place: True, noise=lambda rng=rng: 10.0 if rng.random() < 0.05 else 1.0)
        world.auto(1024)
        high += np.mean(world.ks) > 7
    assert high >= 18


def test_a_prompt_of_a_token_does_not_hide_what_catching_up_takes(monkeypatch):
    monkeypatch.setattr(f"{__name__}.PROMPT", [0])
    assert World(lambda place: False, draft=1.0, feed=0.3).auto(512) <= 512 / 0.95


@pytest.mark.parametrize(("N", "steps"), [(10, None), (2, None), (50, 1), (50, 2)])
def test_many_short_decodes_do_not_pay_for_a_window_each(N, steps):
    """Nor those that are left before their end, as where a text to stop at is found."""
    world = World(lambda place: False, draft=4.0)
    auto, n_tokens = AutoK(clock=lambda: world.now), 0
    for _ in range(300):
        world.fed = np.empty(0, int)
        decoder = auto.decode(PROMPT, world.draft, world.target, N, np.random.default_rng(0))
        n_tokens += sum(len(step.tokens) for step in islice(decoder, steps))
    assert world.now <= 1.05 * n_tokens


def test_a_drafter_that_still_knows_the_prompt_does_not_make_catching_up_seem_free():
    """As where several samples are decoded from one prompt."""
    world = World(lambda place: False, draft=1.0, feed=0.5)
    auto = AutoK(clock=lambda: world.now)
    for _ in range(20):
        world.fed = world.fed[: len(PROMPT)]
        world.auto(40, auto)
    assert world.now <= 1.05 * 800 + world.prefill


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.9])
def test_a_drafter_whose_tokens_cost_more_the_more_they_are(alpha):
    """All but the first cost as much as the target's: in proportion to the first they would be cheap."""
    right = (np.random.default_rng(0).random(600) < alpha).tolist()
    world = World(lambda place: right[place])
    draft = world.draft

    def dear(x, k):
        world.now += 0.9 * max(0, k - 1)
        return draft(x, k)

    world.draft = dear
    assert world.auto(512) <= 1.1 * 512


def test_a_drafter_with_two_prices():
    """As prompt_lookup+model: cheap and wrong at most places, elsewhere as dear as the target and often right."""
    cheap, right = (np.random.default_rng(seed).random(600) < share for seed, share in ((1, 0.6), (0, 0.8)))
    world = World(lambda place: right[place] and not cheap[place], draft=0.0)
    draft = world.draft

    def priced(x, k):
        world.now += 0.01 if cheap[len(x)] else 1.0 * k
        return draft(x, k)

    world.draft = priced
    assert world.auto(512) <= 1.15 * 512  # with what the median says it is 1.36


def test_a_clock_that_does_not_move():
    auto = AutoK(clock=lambda: 0.0)
    world = World(lambda place: True)
    assert world.auto(64, auto) > 0


# The output distribution, computed and not sampled


@pytest.mark.parametrize(("seed", "N"), [(0, 5), (2, 5), pytest.param(1, 6, marks=pytest.mark.slow)])
def test_the_output_is_the_targets_exactly(seed, N):
    """K depends on what was accepted before, and takes every value from 0 to 3 on some path."""
    target, model = random_model(seed, 3), random_model(seed + 1000, 3)
    seen = set()

    def decode(rng):
        now = [0.0]

        def timed(function, seconds):
            def call(x, *args, **kwargs):
                now[0] += seconds
                return function(x, *args, **kwargs)

            return call

        draft = model_drafter(model, rng)
        auto = AutoK(K_max=3, clock=lambda: now[0])
        auto.first_draft = 0.1, 1
        for cost, seconds in [(auto.windows[1], 1.0), (auto.windows[2], 1.02), (auto.draft, 0.1), (auto.draft, 0.1)]:
            cost.add(seconds)
        auto.tested, auto.accepted = [1.0, 0.0, 0.0], [0.8, 0.0, 0.0]
        steps = decode_chain([1], timed(draft, 0.1), timed(target, 1.0), N, auto, rng)
        for step in steps:
            seen.add(step.drafted)
            yield step

    assert distance_from_target(decode, target, [1], N) < 1e-6
    assert seen == {0, 1, 2, 3}


def test_taking_back_an_improbable_token_is_seen():
    """What the docstring warns of: the drafter looks at the token it drew, and keeps it only if p is high enough."""
    target, model = random_model(1, 3), random_model(1001, 3)

    def decode(rng):
        def draft(x, k):
            tokens, p, _ = model_drafter(model, rng)(x, k)
            kept = [i for i in range(k) if p[i][tokens[i]] < 0.3][:1] or [k]
            return Proposal(tokens[: kept[0]], p[: kept[0]])

        return speculative_sampling([1], draft, target, 4, 2, rng)

    assert distance_from_target(decode, target, [1], 4) > 1e-3


def test_a_long_prompt_does_not_keep_it_from_drafting():
    """Reading the prompt takes the draft longer than all that may be lost on windows."""
    world = World(lambda place: True, feed=2.0)
    world.auto(100)
    assert max(world.ks[:4]) > 0 and world.ks[6] == 16


def test_rejected_drafts_are_read_anew_when_the_drafter_catches_up():
    world = World(lambda place: False, draft=0.1, feed=0.02)
    auto = AutoK(clock=lambda: world.now)
    world.auto(200, auto)
    assert auto.feed() == pytest.approx(0.02, rel=0.1)
    assert auto.draft() == pytest.approx(0.1)


def test_an_interrupted_row_is_not_believed():
    """Else it makes windows seem to pay that do not. A row takes no longer than a window."""
    interrupted = iter([1.0, 1.0, 5.0])  # the first draft and target, and then the plain step
    world = World(lambda place: place % 5 < 3, draft=0.1, row=0.75, noise=lambda: next(interrupted, 1.0))
    world.auto(256)
    assert np.mean(world.ks[12:]) < 2  # 1 is best; with a row of 5 all ten would seem to pay


@pytest.mark.parametrize(("call", "wrong"), [*((call, 0) for call in range(8)), *((call, 20) for call in range(1, 8))])
def test_a_call_that_stalls_does_not_end_drafting(call, wrong):
    """Draft and target by turns, the first row between: any of the first calls takes a hundred times as long. Where the
    first tokens are also drafted wrong, there is a stretch to catch up on. (If the very first call of the draft stalls
    then, its prefill, reading seems too dear to try again.)"""
    factors = iter([1.0] * call + [100.0])
    world = World(lambda place: place >= len(PROMPT) + wrong, feed=0.02, noise=lambda: next(factors, 1.0))
    world.auto(256)
    assert max(world.ks[: 30 + 2 * wrong]) >= 5
