"""The drafter of one decode whose K is auto: after each draft it is decided whether one more is worth its time.

The chance that a draft and all before it are accepted is a product over the places. Each factor is estimated from
earlier drafts with a similar margin (acceptance.py). It may depend on all that comes before a place, and on p there,
but not on the token that is drawn from p: if drafts were dropped after they were seen, the others would not be samples
of p.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from speculative.acceptance import Acceptance
from speculative.costs import Recent
from speculative.sampling import NOTHING, Proposal

TRYING_SHARE = 0.03  # share of the time of autoregressive decoding that is spent on trying a draft again


class DrafterRecord:
    """All that is learned about a drafter."""

    def __init__(self, scale: float):
        """scale: how far its margins are usually off, as expected."""
        self.scale = scale
        self.acceptance = Acceptance(scale)
        self.draft_seconds = Recent()  # of a draft token
        self.idle_seconds = 0.0  # of the target, since the drafter was last asked


class Asked(NamedTuple):
    """What a drafter did in the last step, if it was asked."""

    margins: Sequence[float]  # of its drafts
    seconds: float


@dataclass
class AutoDrafter:
    """draft(x, k) for one decode: the first of several drafters that proposes anything surely, while it pays.

    As in drafters.first_of, whether a drafter proposes anything must not depend on its draws.
    """

    lookahead: Any  # the AutoK that learns
    drafts: Sequence
    model: Any  # their target, whose log tells the time of its calls
    n_before: int = 0  # tokens of the text before the last step; 0 in the first
    asked: dict[DrafterRecord, Asked] = field(default_factory=dict)  # in the last step

    def __call__(self, x, k: int) -> Proposal:  # [n]
        self.learn_from_last_step(x)
        records = self.lookahead.records
        for record, draft in zip(records, self.drafts, strict=True):
            proposal = self.ask(record, draft, x, k)
            if is_unsure(proposal, record) and record is not records[-1]:
                del self.asked[record]  # a proposal that is passed over teaches nothing
            elif len(proposal.tokens):
                return proposal
        return NOTHING

    def learn_from_last_step(self, x) -> None:  # [n]
        """Tell the lookahead how the step went that has led to this text: it added the accepted drafts and a token."""
        if self.n_before:
            n_accepted = len(x) - self.n_before - 1
            call = self.model.log[-1]  # or that of another thread's decode, which tells the costs of the model as well
            self.lookahead.learn(self.asked, n_accepted, call)
        self.n_before = len(x)
        self.asked = {}

    def ask(self, record: DrafterRecord, draft: Callable, x, k: int) -> Proposal:  # [n]
        """Ask a drafter if that pays, and note what it did -> its proposal, NOTHING if it was not asked."""
        stopping = Stopping(record, self.lookahead, k)
        most = stopping.most_drafts()
        if most == 0:
            return NOTHING
        clock = self.lookahead.clock
        began = clock()
        proposal = draft(x, most, stopping.go_on)
        margins = proposal.margins or [1.0] * len(proposal.tokens)  # of a drafter that does not tell them: all equal
        self.asked[record] = Asked(margins, clock() - began)
        return proposal


def is_unsure(proposal: Proposal, record: DrafterRecord) -> bool:
    """Whether the margin of the first draft is less than the usual error of this drafter's margins."""
    return len(proposal.margins) > 0 and proposal.margins[0] < record.scale


# ---- The decision about one more draft -------------------------------------------------------------------------------


@dataclass
class Stopping:
    """The decisions about a proposal of at most k drafts."""

    record: DrafterRecord
    lookahead: Any  # the AutoK that has learned
    k: int
    n_drafts: int = 0  # so far
    chance: float = 1.0  # that all of them are accepted

    def seconds_of(self, n_drafts: int) -> float:
        """The seconds of so many drafts and of their window."""
        return n_drafts * self.record.draft_seconds.usual + self.lookahead.window_costs(n_drafts + 1)

    def more_seconds_for(self, n_drafts: int) -> float:
        """The seconds that so many drafts take beyond those of the drafts so far."""
        return self.seconds_of(n_drafts) - self.seconds_of(self.n_drafts)

    def pays(self) -> bool:
        """Return whether one more draft pays."""
        if self.n_drafts == self.k:
            return False
        gain = self.chance * self.record.acceptance.mean * self.lookahead.token_seconds
        return gain > self.more_seconds_for(self.n_drafts + 1) or self.pays_to_the_end()

    def pays_to_the_end(self) -> bool:
        """Return whether drafts up to the end of the text pay: the loop asks for fewer than K_max only there. If all
        are accepted, another call may not be needed any more: by rule of thumb half of one counts. Beside other texts,
        no call is saved."""
        if self.k == self.lookahead.K_max or not self.lookahead.is_alone:
            return False
        chance = self.chance
        gain = 0.0
        for _ in range(self.n_drafts, self.k):
            chance *= self.record.acceptance.mean  # that one more is accepted, and all before it
            gain += chance * self.lookahead.token_seconds
        gain += chance * self.lookahead.window_costs(1) / 2
        return gain > self.more_seconds_for(self.k)

    def go_on(self, margin: float) -> bool:
        """Return whether one more draft pays after a draft of this margin."""
        self.n_drafts += 1
        self.chance *= self.record.acceptance.chance(margin)
        return self.pays()

    def most_drafts(self) -> int:
        """Return the drafts to ask for at most. If they do not pay, one is tried from time to time, as nothing is
        learned of a drafter that is not asked: the trials take TRYING_SHARE of the time. Beside other texts none is
        tried, as they would all wait."""
        if self.pays():
            return self.k
        is_due = self.more_seconds_for(1) <= TRYING_SHARE * self.record.idle_seconds
        return min(self.k, 1) if is_due and self.lookahead.is_alone else 0
