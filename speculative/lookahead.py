"""K that chooses itself: after each draft it is decided whether one more is worth its time.

A draft is of use if it is accepted and all drafts before it are. The chance of that is a product over the places, and
each factor is learned from earlier drafts of which their drafter was as sure. One more draft pays if its chance, times
the seconds that a token takes at present, is more than the seconds of the draft and of its row in the target's call. If
not even the first one pays, the target decodes alone.

The chance may depend on all that comes before a place, and on p there, but not on the token that is drawn from p: if
drafts were dropped after they were seen, the others would not be samples of p.

From the bottom up: the chance that a draft is accepted (Acceptance), the cost of calls (WindowCosts, DraftCosts), the
decision about one more draft (Stopping), the drafter of one decode (AutoDrafter), and AutoK, which keeps what was
learned for the next decode.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each place instead of one α for all.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from speculative.costs import costs_by_rows, line_through, usual_seconds
from speculative.sampling import Proposal

DECAY = 0.95  # factor on all older evidence at each proposal: about the last 20 count
PROBE_BUDGET = 0.03  # share of the time of autoregressive decoding that is spent on trying a draft again
WINDOW_ROWS = (1, 2, 5, 9, 17)  # rows of the windows that are timed before a decode
N_DRAFTS = 8  # draft tokens that are timed before a decode
SCALES = 2.0 ** np.arange(-4, 5)[:, None]  # [n_scales, 1], as multiples of the one that is expected
SHARES = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.995])  # [n_shares]
N_EXPECTED = 24  # accepted drafts that the expectation counts for
NOTHING = Proposal([], [])


# ---- The chance that a draft is accepted -----------------------------------------------------------------------------


class Acceptance:
    """What is known of the acceptance of one drafter's drafts.

    A draft that its drafter preferred by the margin m (sampling.Proposal) is accepted with the chance
    g (1 - exp(-m / s) / 2): the target's margin is m and an error of scale s (Laplace distributed), and of the drafts
    that it prefers too a share g is accepted. Each pair of s and g on a grid has a weight: its likelihood for the
    drafts so far, of which older ones count less.
    """

    def __init__(self, scale: float):
        """scale: the s that is expected, within a factor of 8."""
        self.scales = scale * SCALES  # [n_scales, 1]
        distance = np.log2(SCALES) / 3  # [n_scales, 1]
        self.expected = N_EXPECTED * np.log(SHARES) - distance**2  # [n_scales, n_shares], log weights
        self.evidence = self.expected.copy()  # [n_scales, n_shares], log weights
        self.n_tested = 3.0  # discounted; at first as of three drafts with a margin of two scales
        self.n_accepted = 3.0 * self.chance(2 * scale)

    @property
    def mean(self) -> float:
        """The share of the drafts that are accepted."""
        return self.n_accepted / self.n_tested

    def chances(self, margin: float) -> np.ndarray:  # -> [n_scales, n_shares]
        return SHARES * (1 - np.exp(-margin / self.scales) / 2)

    def chance(self, margin: float) -> float:
        weights = np.exp(self.evidence - np.max(self.evidence))  # [n_scales, n_shares]
        return float(np.sum(weights * self.chances(margin)) / np.sum(weights))

    def learn(self, margins: Sequence[float], n_accepted: int) -> None:
        """Count the drafts of a proposal that were tested: those that were accepted, and one that was not."""
        tested = margins[: n_accepted + 1]
        self.evidence += (1 - DECAY) * (self.expected - self.evidence)
        for i, margin in enumerate(tested):
            chances = self.chances(margin)  # [n_scales, n_shares]
            passed = i < n_accepted
            self.evidence += np.log(chances if passed else 1 - chances)
        self.n_tested = DECAY * self.n_tested + len(tested)
        self.n_accepted = DECAY * self.n_accepted + n_accepted


# ---- The cost of calls -----------------------------------------------------------------------------------------------


class WindowCosts:
    """The seconds of a call of the target by its rows: those timed before the decode, times the slowdown since."""

    def __init__(self):
        self.timed: list[tuple[int, float]] = []  # (rows, seconds)
        self.before: Callable[[int], float] = lambda rows: 0.0  # the line through them
        self.slowdown = deque([1.0], maxlen=20)  # seconds of a call now, over those before the decode

    def measure(self, model: Callable, x, n_ctx: int, clock: Callable[[], float]) -> None:  # x [n]
        """Time windows after the text x, each twice."""
        timed = []
        model(x, 1)  # so that all have read it
        for rows in WINDOW_ROWS * 2:
            if len(x) + rows > n_ctx:
                continue
            began = clock()
            model([*x, *[x[-1]] * rows], rows)
            timed.append((rows, clock() - began))
        self.before = line_through(costs_by_rows(timed))
        self.timed = timed  # only now, so that an interrupted measurement counts for nothing

    def __call__(self, rows: int) -> float:
        return usual_seconds(self.slowdown) * self.before(rows)

    def learn(self, call) -> None:
        before = self.before(call.n_rows) or 1.0  # a coarse clock may have measured 0
        self.slowdown.append(call.seconds / before)


class DraftCosts:
    """The seconds of one drafter's drafts, and of reading what it has not read."""

    def __init__(self):
        self.token_seconds: deque[float] = deque(maxlen=20)  # of a draft token
        self.reading_seconds = 0.0  # of a token that it has not read
        self.n_unread = 0  # tokens of the text

    def measure(self, draft: Callable, x, clock: Callable[[], float]) -> None:  # x [n]
        draft(x, 1)
        for _ in range(2):
            began = clock()
            draft(x, N_DRAFTS)
            self.token_seconds.append((clock() - began) / N_DRAFTS)

    @property
    def usual(self) -> float:
        return usual_seconds(self.token_seconds)

    def learn(self, n_drafted: int, seconds: float) -> None:
        """Count a proposal of so many drafts, which began with reading if much was unread."""
        if self.n_unread > 2:
            reading = max(0.0, seconds - n_drafted * self.usual)
            self.reading_seconds = reading / self.n_unread
        else:
            self.token_seconds.append(seconds / max(1, n_drafted))


@dataclass
class DrafterRecord:
    """All that is learned about one drafter.

    While it does not draft, nothing is learned. So one draft is tried again: at once if its last drafts paid for
    themselves, else so rarely that it costs at most PROBE_BUDGET.
    """

    scale: float  # of the error of its margins, as expected
    acceptance: Acceptance = field(init=False)
    costs: DraftCosts = field(default_factory=DraftCosts)
    idle_seconds: float = 0.0  # of the target, since the drafter was last asked
    paid: bool = True  # whether the accepted drafts of its last proposal were worth its time

    def __post_init__(self):
        self.acceptance = Acceptance(self.scale)

    def is_due(self, row_seconds: float) -> bool:
        """Return whether one draft is tried although drafts do not pay. row_seconds: of one more row of the target."""
        if self.paid:
            return True
        costs = self.costs
        seconds = costs.usual + row_seconds + costs.n_unread * costs.reading_seconds
        return seconds <= PROBE_BUDGET * self.idle_seconds

    def is_unsure(self, proposal: Proposal) -> bool:
        """Return whether it is less sure than usual of its first draft, as p of it tells."""
        return len(proposal.margins) > 0 and proposal.margins[0] < self.scale


# ---- The decision about one more draft -------------------------------------------------------------------------------


class Stopping:
    """The decisions about one proposal of at most k drafts.

    One more draft pays if any number of further ones is worth more than its cost: the costs are no straight line, as a
    row may cost more than several beside it. Drafts up to k end the text, which saves another call about every other
    time.
    """

    def __init__(self, record: DrafterRecord, window: WindowCosts, token_worth: float, k: int):
        """token_worth: seconds that a token takes at present."""
        self.acceptance = record.acceptance
        self.draft_seconds = record.costs.usual
        self.window = window
        self.token_worth = token_worth
        self.k = k
        self.n = 0  # drafts so far
        self.chance = 1.0  # that all of them are accepted

    def cost(self, n: int) -> float:
        """The seconds of n drafts and of their call."""
        return n * self.draft_seconds + self.window(n + 1)

    def pays(self) -> bool:
        """Return whether one more draft pays."""
        cost_now = self.cost(self.n)
        chance = self.chance
        gain = 0.0
        for n in range(self.n + 1, self.k + 1):
            chance *= self.acceptance.mean  # that draft n is accepted, and all before it
            gain += chance * self.token_worth
            if gain > self.cost(n) - cost_now:
                return True
        if not self.n < self.k < AutoK.K_max:
            return False
        gain += chance * self.window(1) / 2  # the text ends: half a call less
        return gain > self.cost(self.k) - cost_now

    def go_on(self, margin: float) -> bool:
        """Return whether one more draft pays after one of this margin."""
        self.n += 1
        self.chance *= self.acceptance.chance(margin)
        return self.pays()


# ---- The drafter of one decode ---------------------------------------------------------------------------------------


@dataclass
class Asked:
    """What one drafter did in an iteration."""

    K: int = 0  # the most drafts that it was asked for; 0 if it was not asked
    margins: Sequence[float] = ()
    seconds: float = 0.0


class AutoDrafter:
    """draft(x, k) for one decode: the first of several drafters that proposes anything surely, while it pays.

    As in drafters.first_of, whether one proposes anything must not depend on its draws.
    """

    def __init__(self, lookahead: "AutoK", drafts: Sequence[Callable], model: Any):
        """model: their target, whose log tells the time of its calls."""
        self.lookahead = lookahead
        self.drafts = drafts
        self.model = model
        self.n = 0  # tokens of the text before the last iteration
        self.asked: list[Asked] = []  # in the last iteration, one for each drafter

    def __call__(self, x, k: int) -> Proposal:  # [n]
        if self.n:
            n_accepted = len(x) - self.n - 1
            self.lookahead.learn(self.asked, n_accepted, self.model.log[-1])
        else:
            self.lookahead.begin(len(x))
        self.n = len(x)
        self.asked = []
        proposal = NOTHING
        for record, draft in zip(self.lookahead.records, self.drafts, strict=True):
            if proposal.tokens:
                self.asked.append(Asked())
                continue
            proposal = self.ask(record, draft, x, k)
        return proposal

    def ask(self, record: DrafterRecord, draft: Callable, x, k: int) -> Proposal:  # [n]
        """The proposal of one drafter, and a note of it; nothing if it does not pay, or is unsure and not the last."""
        lookahead = self.lookahead
        stopping = lookahead.stopping(record, k)
        most = k if stopping.pays() else min(k, int(record.is_due(lookahead.row_seconds)))
        began = lookahead.clock()
        proposal = draft(x, most, stopping.go_on) if most else NOTHING
        seconds = lookahead.clock() - began
        is_last = record is lookahead.records[-1]
        if not is_last and record.is_unsure(proposal):
            most, proposal = 0, NOTHING
        margins = proposal.margins or [1.0] * len(proposal.tokens)
        self.asked.append(Asked(most, margins, seconds))
        return proposal


class AutoK:
    """A K that is chosen by costs, for the drafters of a+b and their target; it is kept for the next decode."""

    K_max = 32

    def __init__(self, scales: Sequence[float], clock: Callable[[], float] = lambda: time.perf_counter()):
        """scales: the expected scale of each drafter's acceptance."""
        self.clock = clock
        self.records = [DrafterRecord(scale) for scale in scales]
        self.window = WindowCosts()
        self.seconds = 0.0  # discounted, of the iterations so far
        self.n_tokens = 0.0  # discounted, of the iterations so far

    @property
    def timed(self) -> bool:
        """Whether the costs are known."""
        return bool(self.window.timed)

    @property
    def row_seconds(self) -> float:
        """The seconds of one more row of the target."""
        return self.window(2) - self.window(1)

    def measure(self, model: Callable, drafts: Sequence[Callable], x, n_ctx: int) -> None:
        """Time windows of the target and drafts after the text x [n]."""
        for record, draft in zip(self.records, drafts, strict=True):
            record.costs.measure(draft, x, self.clock)
        self.window.measure(model, x, n_ctx, self.clock)
        # What a token will take at best, if all drafts are alike, counts as two iterations.
        last = self.records[-1]
        token_seconds = []
        for K in range(self.K_max):
            n_expected = sum(last.acceptance.mean**i for i in range(K + 1))
            token_seconds.append((K * last.costs.usual + self.window(K + 1)) / n_expected)
        self.seconds, self.n_tokens = 2 * min(token_seconds), 2.0

    def drafter_of(self, drafts: Sequence[Callable], model: Callable) -> AutoDrafter:
        """The drafter for one decode, of these and their target."""
        return AutoDrafter(self, drafts, model)

    def stopping(self, record: DrafterRecord, k: int) -> Stopping:
        return Stopping(record, self.window, self.seconds / self.n_tokens, k)

    def begin(self, n: int) -> None:
        """Begin a decode after n tokens, which no drafter has read."""
        for record in self.records:
            record.costs.n_unread = n

    def learn(self, asked: Sequence[Asked], n_accepted: int, call) -> None:
        """Count the last iteration. call: the target's."""
        if not call.prefill:
            self.window.learn(call)
            self.seconds = DECAY * self.seconds + call.seconds
            self.n_tokens = DECAY * self.n_tokens + n_accepted + 1
        for record, one in zip(self.records, asked, strict=True):
            if one.K:
                self.learn_proposal(record, one, n_accepted, call)
            else:
                record.idle_seconds += call.seconds
                record.costs.n_unread += n_accepted + 1

    def learn_proposal(self, record: DrafterRecord, one: Asked, n_accepted: int, call) -> None:
        """Count the proposal of a drafter that was asked."""
        n = len(one.margins)
        drafting = n * record.costs.usual
        if not call.prefill:
            record.costs.learn(n, one.seconds)
            self.seconds += drafting
        if n:
            record.acceptance.learn(one.margins, n_accepted)
        # The drafts and the longer call took no more time than the accepted tokens would have taken one by one.
        row = self.window(1)
        spent = drafting + self.window(n + 1) - row
        record.paid = spent <= (n_accepted if n else 0) * row
        record.idle_seconds = 0.0
        record.costs.n_unread = 0
