"""K that chooses itself, on a clock that only moves when a draft or the target says how long it took."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from tiny import decoded, one_hot

from speculative import lookahead
from speculative.drafters.base import always, until_unsure
from speculative.engines.model import Call
from speculative.lookahead import AutoK
from speculative.measure.predictions import Known, Measured, Replay
from speculative.sampling import Proposal, speculative_sampling

N_VOCAB = 5


@dataclass
class Simulation:
    """A target that counts, greedily, and a drafter that is right where `right` says so, with the time they take."""

    right: Callable[[int], bool]
    draft_time: float = 0.1  # of a draft token, in units of the target's time for one row
    row: float = 0.04  # of each further row
    catch_up: float = 0.0  # of a token that the drafter has not read, if there are more than two
    noise: Callable[[], float] = lambda: 1.0
    proposes: Callable[[int], bool] = lambda place: True

    def __post_init__(self):
        self.now = 0.0
        self.log = []
        self.n_read = 0  # tokens that the drafter has read

    def perf_counter(self):
        return self.now

    def draft(self, x, k, go_on=always):
        k = until_unsure([1.0] * k, go_on)
        unread = len(x) - self.n_read
        self.n_read = len(x)
        self.now += self.noise() * (self.draft_time * k + self.catch_up * unread * (unread > 2))
        if not self.proposes(len(x)):
            return Proposal([], [])
        tokens = [(int(x[-1]) + 1 + i + (not self.right(len(x) + i))) % N_VOCAB for i in range(k)]
        return Proposal(tokens, one_hot(*tokens, n_vocab=N_VOCAB), margins=[1.0] * k)

    def __call__(self, x, n_last=1):
        """The target, whose log an AutoK reads."""
        seconds = self.noise() * (1 + self.row * (n_last - 1))
        self.log.append(Call(self.now, seconds, n_last, n_last))
        self.now += seconds
        return one_hot(*[(int(token) + 1) % N_VOCAB for token in x[len(x) - n_last :]], n_vocab=N_VOCAB)


@pytest.fixture
def simulate(monkeypatch):
    """-> the seconds for N tokens after a prompt of 8, with this K or an AutoK; and the K of each window."""

    def simulate(N, K=None, auto=None, **world):
        one = Simulation(**world)
        monkeypatch.setattr(lookahead, "time", one)
        x = np.zeros(8, int)
        draft = one.draft
        if K is None:
            auto = auto or AutoK([0.6])
            if not auto.is_measured:
                auto.measure(one, [draft], x, 999)
            draft = auto.drafter_of([draft], one)
            K = auto.K_max
        one.n_read = len(x)
        began = one.now
        steps = [*speculative_sampling(x, draft, one, N, K, np.random.default_rng(0))]
        assert decoded(steps) == [(i + 1) % N_VOCAB for i in range(N)]
        return one.now - began, [step.n_drafted for step in steps]

    return simulate


def accepted_with(alpha):
    """right(place) of a drafter whose tokens are accepted with this chance."""
    accepted = np.random.default_rng(0).random(3000) < alpha
    return lambda place: bool(accepted[place])


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1])
@pytest.mark.parametrize(("draft_time", "row"), [(0.0001, 0.03), (0.1, 0.04), (0.3, 0.04), (0.1, 0.75)])
def test_it_comes_close_to_the_best_fixed_k(simulate, alpha, draft_time, row):
    world = {"right": accepted_with(alpha), "draft_time": draft_time, "row": row}
    best = min(simulate(1024, K, **world)[0] for K in (0, 1, 2, 3, 4, 6, 8, 12))
    assert simulate(1024, **world)[0] <= 1.06 * best


never = accepted_with(0)
USELESS = [
    {"right": never, "draft_time": 0.1},
    {"right": never, "draft_time": 4.0},
    {"right": never, "draft_time": 1.0, "catch_up": 0.3},
    {"right": never, "draft_time": 0.3, "row": 1.0},
    {"right": accepted_with(0.1), "draft_time": 1.0},
    {"right": always, "draft_time": 0.0, "proposes": never},
]


@pytest.mark.parametrize("world", USELESS, ids=range(len(USELESS)))
def test_a_useless_drafter_costs_little(simulate, world):
    """About 3 % of autoregressive decoding, 5 if it also reads slowly; apart from the first windows."""
    plain = simulate(512, 0, **world)[0]
    first_windows = 3 * (world["draft_time"] + world.get("row", 0.04))
    assert simulate(512, **world)[0] <= (1.05 if "catch_up" in world else 1.035) * plain + first_windows


@pytest.mark.parametrize("begins", [0, 1])
def test_where_the_text_changes_no_fixed_k_is_much_faster(simulate, begins):
    """Acceptance flips from 0 to 1 and back."""
    world = {"right": lambda place: (place // 128) % 2 == begins, "catch_up": 0.02}
    best = min(simulate(1024, K, **world)[0] for K in range(13))
    assert simulate(1024, **world)[0] <= 1.02 * best


def test_a_drafter_that_seldom_has_a_proposal_is_asked_for_long_ones(simulate):
    world = {"right": always, "draft_time": 0.001, "proposes": lambda place: place % 20 == 0}
    auto = AutoK([0.6])
    assert max(simulate(512, auto=auto, **world)[1]) >= 8
    seconds, _ = simulate(512, auto=auto, **world)  # it proposes too seldom to be known after one text
    assert seconds <= 1.05 * min(simulate(512, K, **world)[0] for K in range(17))


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_a_drafter_that_is_unsure_leaves_the_place_to_the_next(monkeypatch, scale):
    """Its first draft has the margin 1."""
    one = Simulation(always)
    monkeypatch.setattr(lookahead, "time", one)
    auto = AutoK([scale, 0.6])
    auto.measure(one, [one.draft] * 2, np.zeros(8, int), 999)
    asked = []
    auto.drafter_of([one.draft, lambda x, k, go_on: asked.append(k) or one.draft(x, k)], one)([0] * 8, 4)
    assert bool(asked) == (scale > 1)


def test_what_was_learned_stays_for_the_next_decode(simulate):
    auto = AutoK([0.6])
    simulate(100, auto=auto, right=always)
    assert simulate(100, auto=auto, right=always)[1][0] == 32


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1])
def test_a_replay_takes_the_seconds_of_the_decode(simulate, alpha):
    N = 200
    right = accepted_with(alpha)
    known = Known([0] * 8, [1] * N, [float(right(8 + place)) for place in range(N)], [1.0] * N)
    measured = Measured(["model"], [known], {}, t_lookup=0.0, t_draft=0.1)
    replay = Replay(known, 0.5, lambda rows: 0.96 + 0.04 * rows, measured)
    assert replay.decode("model", "auto")[0] == pytest.approx(simulate(N, right=right)[0])


@pytest.mark.parametrize("call", range(8))
def test_a_call_that_stalls_does_not_end_drafting(simulate, call):
    factors = iter([1.0] * call + [100.0])
    _, Ks = simulate(256, right=always, noise=lambda: next(factors, 1.0))
    assert max(Ks[:30]) >= 5


def test_a_clock_that_does_not_move_is_no_error(simulate):
    assert simulate(64, right=always, draft_time=0, row=0, noise=lambda: 0.0)[0] == 0
