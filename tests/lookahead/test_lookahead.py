"""K that chooses itself, on a clock that only moves when a draft or the target says how long it took."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from mistakes import Mistakes, make
from tiny import decoded

from speculative.drafters import DRAFTERS
from speculative.lookahead import auto as auto_module
from speculative.lookahead.auto import AutoDrafter, Stopping
from speculative.lookahead.costs import WindowCosts
from speculative.lookahead.learned import DECAY, G_VALUES, K_MAX, Acceptance, Learned
from speculative.report.simulate import Clock, KnownText, Prices, Simulation
from speculative.run.cost_timer import CostTimer
from speculative.sampling import NOTHING, speculative_sampling

PROMPT = [0] * 8


class NoisyClock(Clock):
    """A clock on which calls take longer than their price."""

    def __init__(self, noise: Callable[[], float]):
        super().__init__()
        self.noise = noise

    def wait(self, seconds: float) -> float:
        return super().wait(seconds * self.noise())


class CountingText(Simulation):
    """A text that counts, and a drafter that is right where `right` says so, with the time they take."""

    def __init__(
        self,
        N: int,
        right: Callable[[int], bool],
        draft_time: float = 0.1,  # of a draft token, in units of the target's time for one row
        row: float = 0.04,  # of each further row
        catch_up: float = 0.0,  # of a token that the drafter has not read, if there are more than two
        noise: Callable[[], float] = lambda: 1.0,
        proposes: Callable[[int], bool] = lambda place: True,
    ):
        n = len(PROMPT)
        chances = [float(right(n + place)) for place in range(N)]
        known = KnownText(PROMPT, [(place + 1) % 5 for place in range(N)], chances, [1.0] * N)
        prices = Prices(lambda rows: 1 + row * (rows - 1), draft_time, 0.0)
        super().__init__(known, prices, shift=0.5, clock=NoisyClock(noise))
        self.draft_model.margins_where_right = [1.0] * (N + 99)
        self.catch_up = catch_up
        self.proposes = proposes
        self.n_read = 0  # tokens that the drafter has read

    def elapsed(self, seconds):
        """The time that so many seconds take on the clock."""
        began = self.clock.wait(seconds)
        return self.clock.now - began

    def window_seconds(self, rows):
        return self.elapsed(self.prices.window(rows))

    def draft(self, x, k, go_on=None):
        unread = len(x) - self.n_read
        self.n_read = len(x)
        proposal = self.by_model(x, k, go_on)
        if self.catch_up and unread > 2:
            self.clock.wait(self.catch_up * unread)
        return proposal if self.proposes(len(x)) else NOTHING


def simulate(N, K=None, auto=None, **world):
    """-> the seconds for N tokens after a prompt of 8, with this K or a Learned; and the K of each window."""
    one = CountingText(N, **world)
    draft = one.draft
    if K is None:
        auto = auto or Learned([0.6])
        auto.clock = one.clock
        if not auto.is_measured:
            auto.learn_costs(one.window_seconds, [partial(one.elapsed, one.prices.draft)], 999)
        draft = AutoDrafter(auto, [draft], one)
        K = K_MAX
    one.n_read = len(PROMPT)
    began = one.clock.now
    steps = [*speculative_sampling(PROMPT, draft, one, N, K, np.random.default_rng(0))]
    assert decoded(steps) == one.text.tokens[len(PROMPT) :]
    return one.clock.now - began, [step.n_drafted for step in steps]


def accepted_with(alpha):
    """right(place) of a drafter whose tokens are accepted with this chance."""
    accepted = np.random.default_rng(0).random(3000) < alpha
    return lambda place: bool(accepted[place])


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1])
@pytest.mark.parametrize(("draft_time", "row"), [(0.0001, 0.03), (0.1, 0.04), (0.3, 0.04), (0.1, 0.75)])
def test_it_comes_close_to_the_best_fixed_k(alpha, draft_time, row):
    world = {"right": accepted_with(alpha), "draft_time": draft_time, "row": row}
    best = min(simulate(512, K, **world)[0] for K in (0, 1, 2, 3, 4, 6, 8, 12))
    assert simulate(512, **world)[0] <= 1.06 * best


never = accepted_with(0)
always = accepted_with(1)
USELESS = [
    {"right": never, "draft_time": 0.1},
    {"right": never, "draft_time": 4.0},
    {"right": never, "draft_time": 0.1, "catch_up": 0.005},
    {"right": never, "draft_time": 0.3, "row": 1.0},
    {"right": accepted_with(0.1), "draft_time": 1.0},
    {"right": always, "draft_time": 0.0, "proposes": never},
]


@pytest.mark.parametrize("world", USELESS, ids=range(len(USELESS)))
def test_a_useless_drafter_costs_little(world):
    """About 3 % of autoregressive decoding, 5 if it also has to read what it did not draft; apart from the first
    windows."""
    plain = simulate(512, 0, **world)[0]
    first_windows = 3 * (world["draft_time"] + world.get("row", 0.04))
    assert simulate(512, **world)[0] <= (1.05 if "catch_up" in world else 1.035) * plain + first_windows


@pytest.mark.parametrize("begins", [0, 1])
def test_where_the_text_changes_no_fixed_k_is_much_faster(begins):
    """Acceptance flips from 0 to 1 and back."""
    world = {"right": lambda place: (place // 128) % 2 == begins, "catch_up": 0.005}
    best = min(simulate(1024, K, **world)[0] for K in range(13))
    assert simulate(1024, **world)[0] <= 1.02 * best


def test_a_drafter_that_seldom_has_a_proposal_is_asked_for_long_ones():
    world = {"right": always, "draft_time": 0.001, "proposes": lambda place: place % 20 == 0}
    auto = Learned([0.6])
    assert max(simulate(512, auto=auto, **world)[1]) >= 8
    seconds, _ = simulate(512, auto=auto, **world)  # it proposes too seldom to be known after one text
    assert seconds <= 1.05 * min(simulate(512, K, **world)[0] for K in range(17))


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_a_drafter_that_is_unsure_leaves_the_place_to_the_next(scale):
    """Its first draft has the margin 1."""
    one = CountingText(99, always)
    auto = Learned([scale, 0.6], one.clock)
    auto.learn_costs(one.window_seconds, [partial(one.elapsed, one.prices.draft)] * 2, 999)
    asked = []
    drafters = [one.draft, lambda x, k, go_on: asked.append(k) or one.draft(x, k)]
    AutoDrafter(auto, drafters, one)([0] * 8, 4)
    assert bool(asked) == (scale > 1)


def test_what_was_learned_stays_for_the_next_decode():
    auto = Learned([0.6])
    simulate(100, auto=auto, right=always)
    assert simulate(100, auto=auto, right=always)[1][0] == 32


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1])
def test_a_simulation_takes_the_seconds_of_the_decode(alpha):
    N = 200
    right = accepted_with(alpha)
    known = CountingText(N, right).text
    simulation = Simulation(known, Prices(lambda rows: 0.96 + 0.04 * rows, draft=0.1, by_text=0.0), shift=0.5)
    assert simulation.decode([DRAFTERS["model"]], "auto")[0] == pytest.approx(simulate(N, right=right)[0], rel=0.02)


@pytest.mark.parametrize("call", range(8))
def test_a_call_that_stalls_does_not_end_drafting(call):
    factors = iter([1.0] * call + [100.0])
    _, Ks = simulate(256, right=always, noise=lambda: next(factors, 1.0))
    assert max(Ks[:30]) >= 5


def test_a_clock_that_does_not_move_is_no_error():
    assert simulate(64, right=always, draft_time=0, row=0, noise=lambda: 0.0)[0] == 0


@pytest.mark.parametrize("factor", [0.5, 1, 2, 4])
def test_a_machine_whose_speed_changes_after_the_measurement_is_no_harm(factor):
    """All calls take this many times as long from the first call of the decode on."""
    world = {"right": accepted_with(0.8), "draft_time": 0.1, "row": 0.75}
    auto = Learned([0.6])
    simulate(1, auto=auto, **world)
    slowed = simulate(300, auto=auto, noise=lambda: factor, **world)[0]
    assert slowed <= 1.06 * factor * min(simulate(300, K, **world)[0] for K in (0, 1, 2))


@pytest.mark.parametrize("n_ctx", range(2, 30))
def test_costs_are_measured_within_the_context(pair, monkeypatch, n_ctx):
    """Of the last tokens of a prompt, so many that a small context leaves room for windows."""
    calls = []
    session = pair.changed(K="auto")
    costs = CostTimer(session.setup, session.engine, n_ctx)
    monkeypatch.setattr(costs, "time_call", lambda role, x, n_rows: calls.append((len(x), n_rows)) or 1.0)
    costs.time_levels(range(min(8, n_ctx - 1)))
    assert session.setup.learned[0].is_measured
    assert all(n + n_rows <= n_ctx for n, n_rows in calls)
    assert (max(n_rows for _, n_rows in calls) == 17) == (n_ctx > 17)


def test_decodes_in_several_threads_share_what_is_learned():
    """A switch between threads at every chance: nothing is changed while another thread reads it."""
    world = {"right": accepted_with(0.8)}
    auto = Learned([0.6])
    simulate(1, auto=auto, **world)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            texts = [pool.submit(decode, auto, **world) for _ in range(8)]
            assert {tuple(text.result()) for text in texts} == {tuple((i + 1) % 5 for i in range(100))}
    finally:
        sys.setswitchinterval(interval)


def decode(auto, **world):
    """-> the 100 tokens of a decode whose costs are known."""
    one = CountingText(100, **world)
    draft = AutoDrafter(auto, [one.draft], one)
    return decoded(speculative_sampling(PROMPT, draft, one, 100, K_MAX, np.random.default_rng(0)))


# ---- Mistakes that must show -----------------------------------------------------------------------------------------


def close_to_the_best(**world):
    best = min(simulate(300, K, **world)[0] for K in (0, 1, 2, 4, 8, 12))
    return simulate(300, **world)[0] <= 1.06 * best


def costs_little():
    return all(simulate(300, **world)[0] <= 1.04 * simulate(300, 0, **world)[0] + 2 for world in USELESS)


def adapts_to_speed():
    world = {"right": accepted_with(0.8), "row": 0.75}
    auto = Learned([0.6])
    simulate(1, auto=auto, **world)
    slowed = simulate(300, auto=auto, noise=lambda: 4, **world)[0]
    return slowed <= 4 * 1.06 * simulate(300, 1, **world)[0]


def ends_the_text():
    """A draft that ends the text saves half a call; before that this draft does not pay."""
    stats = SimpleNamespace(acceptance=SimpleNamespace(rate=0.6), draft_seconds=SimpleNamespace(usual=0.1))
    costs = SimpleNamespace(seconds=lambda rows: 1 + 0.75 * (rows - 1))
    learned = SimpleNamespace(window_costs=costs, token_seconds=1.0, is_alone=True)
    pays = []
    for k in (0, 1, 2, K_MAX):  # the text ends after k drafts, but with the last
        pays.append(Stopping(stats, learned, k).pays())
    return pays == [False, True, False, False]


def learns_from_margins():
    """Sure drafts are accepted, and unsure ones are rejected, after which drafts are not tested."""
    known = Acceptance(0.6)
    for _ in range(40):
        known.learn([3.0, 0.1, 3.0], 1)
    return known.chance(3.0) > 0.9 and known.chance(0.1) < 0.6 and 0.45 < known.rate < 0.55


def sure_ones_first():
    """A drafter that is unsure leaves the place to the next."""
    one = CountingText(99, always)
    auto = Learned([2.0, 0.6], one.clock)
    auto.learn_costs(one.window_seconds, [partial(one.elapsed, one.prices.draft)] * 2, 999)
    asked = []
    drafters = [one.draft, lambda x, k, go_on: asked.append(k) or one.draft(x, k)]
    AutoDrafter(auto, drafters, one)(PROMPT, 4)
    return asked == [4]


# The right methods, which wrong twins call.
learn, preferred = Acceptance.learn, Acceptance.preferred
learn_step = Learned.learn

IN_BETWEEN = partial(close_to_the_best, right=accepted_with(0.8), row=0.04)
DEAR_ROWS = partial(close_to_the_best, right=accepted_with(0.3), row=0.75)
mistakes = Mistakes()


@mistakes.plant(learns_from_margins, Acceptance, "learn")
def learns_that_all_tested_were_accepted(self, margins, n_accepted):
    tested = margins[: n_accepted + 1]
    evidence = DECAY * self.evidence + (1 - DECAY) * self.log_prior
    for margin in tested:
        evidence += np.log(G_VALUES * self.preferred(margin))
    self.weigh(evidence)
    self.n_tested = DECAY * self.n_tested + len(tested)
    self.n_accepted = DECAY * self.n_accepted + n_accepted


@mistakes.plant(learns_from_margins, Acceptance, "learn")
def learns_from_what_was_not_tested(self, margins, n_accepted):
    learn(self, margins, n_accepted)
    n_untested = len(margins[n_accepted + 1 :])
    for margin in margins[n_accepted + 1 :]:
        self.weigh(self.evidence + np.log(1 - G_VALUES * self.preferred(margin)))
    self.n_tested += n_untested


@mistakes.plant(learns_from_margins, Acceptance, "learn")
def counts_the_tested_as_accepted(self, margins, n_accepted):
    learn(self, margins, n_accepted)
    self.n_accepted += len(margins[: n_accepted + 1]) - n_accepted


@mistakes.plant(learns_from_margins, Acceptance, "preferred")
def prefers_every_draft_alike(self, margin):
    return preferred(self, 1.0)


@mistakes.plant(IN_BETWEEN, Stopping, "go_on")
def forgets_the_drafts_before(self, margin):
    self.n_drafts += 1
    self.chance = 1.0
    return self.pays()


@mistakes.plant(DEAR_ROWS, Stopping, "seconds_of")
def takes_each_row_for_free(self, n_drafts):
    return n_drafts * self.stats.draft_seconds.usual + self.learned.window_costs.seconds(1)


@mistakes.plant(DEAR_ROWS, Stopping, "pays")
def takes_the_next_draft_for_accepted(self):
    if self.n_drafts == self.k:
        return False
    gain = self.chance * self.learned.token_seconds
    return gain > self.more_seconds_for(self.n_drafts + 1) or self.pays_to_the_end()


@mistakes.plant(ends_the_text, Stopping, "pays_to_the_end")
def never_drafts_to_the_end(self):
    return False


@mistakes.plant(ends_the_text, Stopping, "pays_to_the_end")
def always_drafts_to_the_end(self):
    return self.is_near_end


@mistakes.plant(costs_little, Stopping, "most_drafts")
def always_tries_a_draft(self):
    return self.k if self.pays() else min(self.k, 1)


@mistakes.plant(costs_little, Learned, "learn")
def never_begins_to_wait_anew(self, attempts, n_accepted, call):
    waited = [stats.seconds_unasked + call.seconds for stats in self.stats]
    learn_step(self, attempts, n_accepted, call)
    for stats, seconds in zip(self.stats, waited, strict=True):
        stats.seconds_unasked = seconds


@mistakes.plant(adapts_to_speed, WindowCosts, "learn")
def learns_no_slowdown(self, call):
    pass


@mistakes.plant(sure_ones_first, auto_module, "is_unsure")
def takes_each_draft_for_sure(proposal, stats):
    return False


@pytest.mark.parametrize("check", mistakes.checks)
def test_what_the_planted_mistakes_break_holds(check):
    assert check()


@pytest.mark.parametrize("mistake", mistakes, ids=str)
def test_a_planted_mistake_shows(mistake, monkeypatch):
    make(monkeypatch, mistake)
    assert not mistake.seen_by()


@pytest.mark.parametrize(("is_alone", "n_tried", "n_to_the_end"), [(True, 1, 1), (False, 0, 0)])
def test_beside_other_texts_no_draft_is_tried_and_none_is_for_the_end(is_alone, n_tried, n_to_the_end):
    """The other texts would wait for the draft, and their calls go on after this text's end."""
    dear = Learned([0.6], is_alone=is_alone)
    dear.learn_costs(lambda rows: float(rows), [lambda: 10.0], 40)
    dear.stats[0].seconds_unasked = 1e9
    assert Stopping(dear.stats[0], dear, 40).most_drafts() == n_tried
    nearly = Learned([0.6], is_alone=is_alone)
    nearly.learn_costs(lambda rows: 1.0 + 0.95 * (rows - 1), [lambda: 0.01], 40)
    assert Stopping(nearly.stats[0], nearly, 1).most_drafts() == n_to_the_end
