"""K that chooses itself: after each draft it is decided whether one more is worth its time.

A draft is of use if it is accepted and all drafts before it are. The chance of that is a product over the places. Each
factor is estimated from earlier drafts with a similar margin (acceptance.py). One more draft pays if its chance, times
the seconds that a token takes at present, is more than the seconds of the draft and of its row in the target's call. If
not even the first one pays, the target decodes alone.

The chance may depend on all that comes before a place, and on p there, but not on the token that is drawn from p: if
drafts were dropped after they were seen, the others would not be samples of p.

From the bottom up: the cost of calls (Recent, WindowCosts), what is learned about a drafter (DrafterRecord), the
decision about one more draft (Stopping), the drafter of one decode (AutoDrafter), and AutoK, which keeps what was
learned for the next decode. Decodes in several threads may share an AutoK: what they learn is replaced, not changed in
place. At the end stand the lookaheads that decide nothing: FixedK, and AfterFirst for the first step.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each place instead of one α for all.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from speculative.acceptance import DECAY, Acceptance
from speculative.costs import costs_by_rows, line_through, usual_seconds
from speculative.drafters import first_of
from speculative.sampling import NOTHING, Proposal

N_RECENT = 20  # calls whose times count
TRYING_SHARE = 0.03  # share of the time of autoregressive decoding that is spent on trying a draft again
WINDOW_ROWS = (1, 2, 5, 9, 17)  # rows of the windows that are timed before a decode


# ---- The cost of calls -----------------------------------------------------------------------------------------------


class Recent:
    """The last numbers of some kind."""

    def __init__(self, *numbers: float):
        self.numbers = numbers
        self.usual = numbers[0] if numbers else 0.0  # their mean, without those of calls that were interrupted

    def add(self, number: float) -> None:
        self.numbers = (*self.numbers, number)[-N_RECENT:]
        self.usual = usual_seconds(self.numbers)


class WindowCosts:
    """The seconds of a call of the target by its rows: those timed before the decode, times the slowdown since."""

    def __init__(self):
        self.before: Callable[[int], float] | None = None  # the line through the times before the decode
        self.slowdown = Recent(1.0)  # seconds of a call now, over those before the decode

    def measure(self, seconds: Callable[[int], float], most: int) -> None:
        """Time windows of at most so many rows, each twice. seconds(rows): of a call now."""
        timed = [(rows, seconds(rows)) for rows in WINDOW_ROWS * 2 if rows <= most]
        self.before = line_through(costs_by_rows(timed))  # now, so that an interrupted measurement counts for nothing

    def __call__(self, rows: int) -> float:
        return self.slowdown.usual * self.before(rows)

    def learn(self, call) -> None:
        before = self.before(call.n_rows) or 1.0  # a coarse clock may have measured 0
        self.slowdown.add(call.seconds / before)


# ---- What is learned about a drafter ---------------------------------------------------------------------------------


class DrafterRecord:
    """All that is learned about a drafter."""

    def __init__(self, scale: float):
        """scale: of the error of its margins, as expected."""
        self.scale = scale
        self.acceptance = Acceptance(scale)
        self.token_seconds = Recent()  # of a draft token
        self.reading_seconds = 0.0  # of a token of the text that it has not read
        self.idle_seconds = 0.0  # of the target, since the drafter was last asked

    def learn_seconds(self, seconds: float, n_drafted: int, n_unread: int) -> None:
        """Count the time of a proposal, which began with reading if more was unread than the last two tokens."""
        if n_unread > 2:
            reading = max(0.0, seconds - n_drafted * self.token_seconds.usual)
            self.reading_seconds = reading / n_unread
        else:
            self.token_seconds.add(seconds / max(1, n_drafted))

    def is_due(self, n_unread: int, row_seconds: float) -> bool:
        """Return whether a draft is tried although drafts do not pay: while it does not draft, nothing is learned. The
        trials take TRYING_SHARE of the time at most. row_seconds: of one more row of the target."""
        seconds = self.token_seconds.usual + row_seconds + n_unread * self.reading_seconds
        return seconds <= TRYING_SHARE * self.idle_seconds

    def is_unsure(self, proposal: Proposal) -> bool:
        """Return whether it is less sure than usual of its first draft, as p of it tells."""
        return len(proposal.margins) > 0 and proposal.margins[0] < self.scale


# ---- The decision about one more draft -------------------------------------------------------------------------------


class Stopping:
    """The decisions about a proposal of at most k drafts."""

    def __init__(self, record: DrafterRecord, window: Callable, token_worth: float, k: int, near_end: bool):
        """window(rows): seconds of a call of the target. token_worth: seconds that a token takes at present. near_end:
        whether the text ends after k drafts and the target's own token."""
        self.acceptance = record.acceptance
        self.draft_seconds = record.token_seconds.usual
        self.window = window
        self.token_worth = token_worth
        self.k = k
        self.near_end = near_end
        self.n = 0  # drafts so far
        self.chance = 1.0  # that all of them are accepted

    def cost(self, n: int) -> float:
        """The seconds of n drafts and of their call."""
        return n * self.draft_seconds + self.window(n + 1)

    def pays(self) -> bool:
        """Return whether one more draft pays."""
        if self.n == self.k:
            return False
        gain = self.chance * self.acceptance.mean * self.token_worth
        cost = self.cost(self.n + 1) - self.cost(self.n)
        return gain > cost or (self.near_end and self.pays_to_the_end())

    def pays_to_the_end(self) -> bool:
        """Return whether drafts up to the end of the text pay. They save a further call about every other time."""
        chance = self.chance
        gain = 0.0
        for _ in range(self.n, self.k):
            chance *= self.acceptance.mean  # that one more is accepted, and all before it
            gain += chance * self.token_worth
        gain += chance * self.window(1) / 2
        return gain > self.cost(self.k) - self.cost(self.n)

    def go_on(self, margin: float) -> bool:
        """Return whether one more draft pays after a draft of this margin."""
        self.n += 1
        self.chance *= self.acceptance.chance(margin)
        return self.pays()


# ---- The drafter of one decode ---------------------------------------------------------------------------------------


@dataclass
class Turn:
    """A drafter in one decode: what it has read, and what it did in the last step."""

    record: DrafterRecord
    draft: Callable
    n_read: int = 0  # tokens of the text that it has read
    n_unread: int = 0  # tokens of the text that it had not read before
    most: int = 0  # the drafts that it was asked for at most; 0 if it was not asked
    margins: Sequence[float] = ()
    seconds: float = 0.0


class AutoDrafter:
    """draft(x, k) for one decode: the first of several drafters that proposes anything surely, while it pays.

    As in drafters.first_of, whether a drafter proposes anything must not depend on its draws.
    """

    def __init__(self, lookahead: "AutoK", drafts: Sequence[Callable], model: Any):
        """model: their target, whose log tells the time of its calls."""
        self.lookahead = lookahead
        self.turns = [Turn(record, draft) for record, draft in zip(lookahead.records, drafts, strict=True)]
        self.model = model
        self.n = 0  # tokens of the text before the last step

    def __call__(self, x, k: int) -> Proposal:  # [n]
        if self.n:
            self.learn(len(x))
        self.n = len(x)
        for turn in self.turns:
            turn.most = 0
        proposal = NOTHING
        for turn in self.turns:
            proposal = self.ask(turn, x, k)
            if len(proposal.tokens):
                break
        return proposal

    def learn(self, n: int) -> None:
        """Count the last step, after which the text has n tokens."""
        self.lookahead.learn(self.turns, n - self.n - 1, self.model.log[-1])
        for turn in self.turns:
            if turn.most:
                turn.n_read = n

    def ask(self, turn: Turn, x, k: int) -> Proposal:  # [n]
        """The proposal of a drafter, and a note of it; nothing if it does not pay, or is unsure and not the last."""
        lookahead = self.lookahead
        record = turn.record
        turn.n_unread = len(x) - turn.n_read
        stopping = lookahead.stopping(record, k)
        most = k
        if not stopping.pays():
            is_tried = k > 0 and record.is_due(turn.n_unread, lookahead.row_seconds)
            most = 1 if is_tried else 0
        if most == 0:
            return NOTHING
        began = lookahead.clock()
        proposal = turn.draft(x, most, stopping.go_on)
        turn.seconds = lookahead.clock() - began
        if record.is_unsure(proposal) and turn is not self.turns[-1]:
            return NOTHING
        turn.most = most
        turn.margins = proposal.margins or [1.0] * len(proposal.tokens)
        return proposal


class AutoK:
    """A K that is chosen by costs, for the drafters of a+b and their target; it is kept for the next decode."""

    K_max = 32

    def __init__(self, scales: Sequence[float], clock: Callable[[], float] = lambda: time.perf_counter()):
        """scales: the expected scale of each drafter's acceptance."""
        self.clock = clock
        self.records = [DrafterRecord(scale) for scale in scales]
        self.window = WindowCosts()
        self.seconds = 0.0  # discounted, of the steps so far
        self.n_tokens = 0.0  # discounted, of the steps so far

    @property
    def is_measured(self) -> bool:
        return self.window.before is not None

    @property
    def row_seconds(self) -> float:
        """The seconds of one more row of the target."""
        return self.window(2) - self.window(1)

    def measure(
        self, window_seconds: Callable[[int], float], draft_seconds: Sequence[Callable[[], float]], most: int
    ) -> None:
        """Measure costs to set out from, each twice, as a call may be interrupted. window_seconds(rows): of a call of
        the target now. draft_seconds: of each drafter, a draft token's. most: rows that a window can have."""
        for record, seconds in zip(self.records, draft_seconds, strict=True):
            record.token_seconds.add(seconds())
            record.token_seconds.add(seconds())
        self.window.measure(window_seconds, most)
        # What a token will take at best, if all drafts are alike, counts as two steps.
        token_seconds = [self.token_seconds(K) for K in range(self.K_max)]
        self.seconds = 2 * min(token_seconds)
        self.n_tokens = 2.0

    @property
    def token_worth(self) -> float:
        """The seconds that a token takes at present."""
        return self.seconds / self.n_tokens

    def token_seconds(self, K: int) -> float:
        """The seconds of a token if the last drafter always gives K drafts, which are accepted as often as expected."""
        record = self.records[-1]
        n_expected = sum(record.acceptance.mean**i for i in range(K + 1))
        return (K * record.token_seconds.usual + self.window(K + 1)) / n_expected

    def drafter_of(self, drafts: Sequence[Callable], model: Callable) -> AutoDrafter:
        """The drafter for one decode, of these and their target."""
        return AutoDrafter(self, drafts, model)

    def stopping(self, record: DrafterRecord, k: int) -> Stopping:
        near_end = k < self.K_max  # the loop asks for fewer drafts only where the text ends
        return Stopping(record, self.window, self.token_worth, k, near_end)

    def learn(self, turns: Sequence[Turn], n_accepted: int, call) -> None:
        """Count the last step. call: the target's."""
        if not call.prefill:
            self.window.learn(call)
            self.seconds = DECAY * self.seconds + call.seconds
            self.n_tokens = DECAY * self.n_tokens + n_accepted + 1
        for turn in turns:
            record = turn.record
            if turn.most == 0:
                record.idle_seconds += call.seconds
                continue
            record.idle_seconds = 0.0
            n_drafted = len(turn.margins)
            if n_drafted:
                record.acceptance.learn(turn.margins, n_accepted)
            if not call.prefill:
                self.seconds += n_drafted * record.token_seconds.usual
                record.learn_seconds(turn.seconds, n_drafted, turn.n_unread)


# ---- Lookaheads that decide nothing ----------------------------------------------------------------------------------


class FixedK(NamedTuple):
    """A K that is a number."""

    K_max: int

    def drafter_of(self, drafts: Sequence[Callable], model: Callable) -> Callable:
        """The drafter draft(x, k) for one decode: the first of these that proposes anything."""
        return first_of(drafts)


class AfterFirst:
    """A drafter of one decode that proposes nothing the first time that it is asked."""

    def __init__(self, draft: Callable):
        self.draft = draft
        self.begun = False

    def __call__(self, x, k: int) -> Proposal:  # [n]
        if self.begun:
            return self.draft(x, k)
        self.begun = True
        return NOTHING
