"""K that chooses itself: after each draft it is decided whether one more is worth its time.

A draft is of use if it is accepted and all drafts before it are. The chance of that is a product over the places. Each
factor is estimated from earlier drafts with a similar margin (acceptance.py). One more draft pays if its chance, times
the seconds that a token takes at present, is more than the seconds of the draft and of its row in the target's call. If
not even the first one pays, the target decodes alone.

The chance may depend on all that comes before a place, and on p there, but not on the token that is drawn from p: if
drafts were dropped after they were seen, the others would not be samples of p.

From the top down: FixedK, the K that is a number, and AutoK, which keeps what was learned for the next decode; what it
learns about a drafter (DrafterRecord); the drafter of one decode (AutoDrafter), and the decision about one more draft
(Stopping). Decodes in several threads may share an AutoK: what they learn is replaced, not changed in place.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each place instead of one α for all.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, Protocol

from speculative.acceptance import DECAY, Acceptance
from speculative.costs import Recent, WindowCosts
from speculative.drafters import first_of
from speculative.sampling import NOTHING, Proposal

TRYING_SHARE = 0.03  # share of the time of autoregressive decoding that is spent on trying a draft again
WINDOW_ROWS = (1, 2, 5, 9, 17)  # rows of the windows that are timed before a decode
N_SHORT = 3  # beside other texts only the first N_SHORT of WINDOW_ROWS are timed: longer windows cost too much there
N_DRAFTS_TIMED = 5  # times that a draft token is timed before a decode: the first two take much longer than the others


class Lookahead(Protocol):
    """What decides how many drafts a window has."""

    @property
    def K_max(self) -> int:
        """The most drafts in a window."""

    def drafter_of(self, drafts: Sequence, model: Any) -> Callable:
        """The drafter draft(x, k) for one decode, of these drafters and their target."""


@dataclass(frozen=True)
class FixedK:
    """A K that is a number."""

    K_max: int

    def drafter_of(self, drafts: Sequence, model: Any) -> Callable:
        """The first of these drafters that proposes anything."""
        return first_of(drafts)


class AutoK:
    """A K that is chosen by costs, for the drafters of a+b and their target; it is kept for the next decode."""

    K_max = 32  # about twice the longest window that is timed

    def __init__(self, scales: Sequence[float], clock: Callable = lambda: time.perf_counter(), is_alone: bool = True):
        """scales: the expected scale of each drafter's acceptance. clock: of this module at each call, unless it is
        another one, as of a simulation. is_alone: whether no other texts share the calls."""
        self.clock = clock
        self.is_alone = is_alone
        self.records = [DrafterRecord(scale) for scale in scales]
        self.window_seconds = WindowCosts()
        self.seconds = 0.0  # discounted, of the steps so far
        self.n_tokens = 0.0  # discounted, of the steps so far

    @property
    def is_measured(self) -> bool:
        return self.window_seconds.seconds_before is not None

    def measure(self, time_window: Callable, timers: Sequence, most_rows: int) -> None:
        """Measure costs to set out from: medians, as a call may be interrupted. time_window(rows): the seconds of a
        call of the target now. timers: for each drafter, timer(): the seconds of a draft token now. most_rows: that a
        window can have."""
        for record, timer in zip(self.records, timers, strict=True):
            times = [timer() for _ in range(N_DRAFTS_TIMED)]
            record.draft_seconds.add(median(times))
        sizes = WINDOW_ROWS if self.is_alone else WINDOW_ROWS[:N_SHORT]
        possible = [rows for rows in sizes if rows <= most_rows]
        self.window_seconds.measure(time_window, possible)
        # start as if two tokens had been decoded at the best K
        best = min(map(self.expected_seconds, range(self.K_max)))
        self.seconds = 2 * best
        self.n_tokens = 2.0

    @property
    def token_seconds(self) -> float:
        """The seconds that a token takes at present."""
        return self.seconds / self.n_tokens

    def expected_seconds(self, K: int) -> float:
        """The seconds of a token if the last drafter always gives K drafts, which are accepted as often as expected."""
        record = self.records[-1]
        n_expected = sum(record.acceptance.mean**i for i in range(K + 1))
        return (K * record.draft_seconds.usual + self.window_seconds(K + 1)) / n_expected

    def drafter_of(self, drafts: Sequence, model: Any) -> "AutoDrafter":
        return AutoDrafter(self, drafts, model)

    def learn(self, asked: dict["DrafterRecord", "Asked"], n_accepted: int, call: Any) -> None:
        """Learn from a step. asked: what its drafters did. call: the target's, as it was logged."""
        for record in self.records:
            record.idle_seconds += call.seconds
        for record, (margins, _) in asked.items():
            record.idle_seconds = 0.0
            if margins:
                record.acceptance.learn(margins, n_accepted)
        if not call.prefill:  # a step that reads the prompt tells nothing of the times of others
            self.learn_times(asked, n_accepted, call)

    def learn_times(self, asked: dict["DrafterRecord", "Asked"], n_accepted: int, call: Any) -> None:
        """Learn what a token and a draft take."""
        self.window_seconds.learn(call)
        self.seconds = DECAY * self.seconds + call.seconds
        self.n_tokens = DECAY * self.n_tokens + n_accepted + 1
        for record, (margins, seconds) in asked.items():
            # At their usual cost: if one draft was interrupted, tokens are not dearer from now on.
            self.seconds += len(margins) * record.draft_seconds.usual
            record.draft_seconds.add(seconds / max(1, len(margins)))


# ---- What is learned about a drafter ---------------------------------------------------------------------------------


class DrafterRecord:
    """All that is learned about a drafter."""

    def __init__(self, scale: float):
        """scale: of the error of its margins, as expected."""
        self.scale = scale
        self.acceptance = Acceptance(scale)
        self.draft_seconds = Recent()  # of a draft token
        self.idle_seconds = 0.0  # of the target, since the drafter was last asked


class Asked(NamedTuple):
    """What a drafter did in the last step, if it was asked."""

    margins: Sequence[float]  # of its drafts
    seconds: float


# ---- The drafter of one decode ---------------------------------------------------------------------------------------


@dataclass
class AutoDrafter:
    """draft(x, k) for one decode: the first of several drafters that proposes anything surely, while it pays.

    As in drafters.first_of, whether a drafter proposes anything must not depend on its draws.
    """

    lookahead: "AutoK"
    drafts: Sequence
    model: Any  # their target, whose log tells the time of its calls
    n: int = 0  # tokens of the text before the last step
    asked: dict[DrafterRecord, Asked] = field(default_factory=dict)  # in the last step

    def __call__(self, x, k: int) -> Proposal:  # [n]
        lookahead = self.lookahead
        if self.n:
            n_accepted = len(x) - self.n - 1
            lookahead.learn(self.asked, n_accepted, self.model.log[-1])
        self.n = len(x)
        self.asked = {}
        for record, draft in zip(lookahead.records, self.drafts, strict=True):
            proposal = self.ask(record, draft, x, k)
            is_unsure = len(proposal.margins) > 0 and proposal.margins[0] < record.scale  # less sure than usual
            if is_unsure and record is not lookahead.records[-1]:
                del self.asked[record]  # a proposal that is passed over teaches nothing
            elif len(proposal.tokens):
                return proposal
        return NOTHING

    def ask(self, record: DrafterRecord, draft: Callable, x, k: int) -> Proposal:  # [n]
        """Ask a drafter if that pays, and note what it did -> its proposal, NOTHING if it was not asked."""
        stopping = Stopping(record, self.lookahead, k)
        most = stopping.most()
        if most == 0:
            return NOTHING
        clock = self.lookahead.clock
        began = clock()
        proposal = draft(x, most, stopping.go_on)
        margins = proposal.margins or [1.0] * len(proposal.tokens)
        self.asked[record] = Asked(margins, clock() - began)
        return proposal


# ---- The decision about one more draft -------------------------------------------------------------------------------


@dataclass
class Stopping:
    """The decisions about a proposal of at most k drafts."""

    record: DrafterRecord
    lookahead: "AutoK"
    k: int
    n: int = 0  # drafts so far
    chance: float = 1.0  # that all of them are accepted

    def cost(self, n: int) -> float:
        """The seconds of n drafts and of their call."""
        return n * self.record.draft_seconds.usual + self.lookahead.window_seconds(n + 1)

    def pays(self) -> bool:
        """Return whether one more draft pays."""
        if self.n == self.k:
            return False
        gain = self.chance * self.record.acceptance.mean * self.lookahead.token_seconds
        return gain > self.cost(self.n + 1) - self.cost(self.n) or self.pays_to_the_end()

    def pays_to_the_end(self) -> bool:
        """Return whether drafts up to the end of the text pay: the loop asks for fewer than K_max only there. If all
        are accepted, about every other time the last call is not needed: half of it counts. Beside other texts, no call
        is saved."""
        if self.k == self.lookahead.K_max or not self.lookahead.is_alone:
            return False
        chance = self.chance
        gain = 0.0
        for _ in range(self.n, self.k):
            chance *= self.record.acceptance.mean  # that one more is accepted, and all before it
            gain += chance * self.lookahead.token_seconds
        gain += chance * self.lookahead.window_seconds(1) / 2
        return gain > self.cost(self.k) - self.cost(self.n)

    def go_on(self, margin: float) -> bool:
        """Return whether one more draft pays after a draft of this margin."""
        self.n += 1
        self.chance *= self.record.acceptance.chance(margin)
        return self.pays()

    def most(self) -> int:
        """Return the drafts to ask for at most. If they do not pay, one is tried from time to time, as nothing is
        learned of a drafter that is not asked: the trials take TRYING_SHARE of the time. Beside other texts none is
        tried, as they would all wait."""
        if self.pays():
            return self.k
        is_due = self.cost(1) - self.cost(0) <= TRYING_SHARE * self.record.idle_seconds
        return min(self.k, 1) if is_due and self.lookahead.is_alone else 0
