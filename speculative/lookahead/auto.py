"""K that chooses itself: a drafter around drafters, which decides after each draft whether one more is worth its time.

A draft is of use if it is accepted and all drafts before it are. One more draft pays if the chance of that, times the
seconds that a token takes at present, is more than the seconds of the draft and of its row in the target's call. If not
even the first one pays, the target decodes alone. The chance that a draft and all before it are accepted is a product
over the drafts; each factor is estimated from earlier drafts with a similar margin (Acceptance). Knowledge of
them, and of the costs of drafts and windows (costs.py), is kept for the next decode (learned.py).

A margin says how sure a drafter is of a draft, in its own unit:

    model, staged   distance of the two largest logits
    heads           1 / (i + 1) for draft i: each head knows less than the one before
    prompt_lookup   tokens that match beyond the first, and the drafts since then
    a function      always 1

Each drafter's `scale` says how far its margins are usually off, so they can be compared with it.

The decision may depend on all that comes before a draft, and on p there, but not on the token that is drawn from p: if
drafts were dropped after they were seen, the others would not be samples of p.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each draft instead of one α for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from speculative.lookahead.learned import K_MAX, Attempt, DrafterStats, Learned
from speculative.sampling import NOTHING, Proposal

TRYING_SHARE = 0.03  # share of the time of autoregressive decoding that is spent on trying a draft again
LAST_CALL_SHARE = 0.5  # the share of a call that drafts to the end may save: a rule of thumb


@dataclass
class AutoDrafter:
    """draft(x, k) for one decode: the first of several drafters that proposes anything surely, while it pays.

    As in drafters.first_of, whether a drafter proposes anything must not depend on its draws.
    """

    learned: Learned
    drafters: Sequence
    model: Callable  # their target, whose log tells the time of its calls
    n_before: int = 0  # tokens of the text before the last step; 0 in the first
    attempts: dict[DrafterStats, Attempt] = field(default_factory=dict)  # the attempts of the last step

    def __call__(self, x, k: int) -> Proposal:  # [n]
        self.learn_from_last_step(x)
        all_stats = self.learned.stats
        for stats, drafter in zip(all_stats, self.drafters, strict=True):
            proposal, attempt = self.ask(stats, drafter, x, k)
            if is_unsure(proposal, stats) and stats is not all_stats[-1]:
                continue  # a proposal that is passed over teaches nothing
            if attempt:
                self.attempts[stats] = attempt
            if len(proposal.tokens):
                return proposal
        return NOTHING

    def learn_from_last_step(self, x) -> None:  # [n]
        """Learn how the step went that has led to this text: it added the accepted drafts and a token."""
        log = getattr(self.model, "log", [])  # none of a user's own target, in a user's own loop
        if self.n_before and log:
            n_accepted = len(x) - self.n_before - 1
            self.learned.learn(self.attempts, n_accepted, log[-1])
        self.n_before = len(x)
        self.attempts = {}

    def ask(self, stats: DrafterStats, drafter: Callable, x, k: int) -> tuple[Proposal, Attempt | None]:  # [n]
        """Ask a drafter if that pays -> its proposal and its attempt; NOTHING and None if it was not asked."""
        stopping = Stopping(stats, self.learned, k)
        most = stopping.most_drafts()
        if most == 0:
            return NOTHING, None
        clock = self.learned.clock
        began = clock()
        proposal = drafter(x, most, stopping.go_on)
        margins = proposal.margins or [1.0] * len(proposal.tokens)  # a drafter without margins: all equal
        return proposal, Attempt(margins, clock() - began)


def is_unsure(proposal: Proposal, stats: DrafterStats) -> bool:
    """Whether the margin of the first draft is less than the usual error of this drafter's margins."""
    return len(proposal.margins) > 0 and proposal.margins[0] < stats.scale


# ---- The decision about one more draft -------------------------------------------------------------------------------


@dataclass
class Stopping:
    """The decisions about a proposal of at most k drafts."""

    stats: DrafterStats
    learned: Learned
    k: int
    n_drafts: int = 0  # so far
    chance: float = 1.0  # chance that all of them are accepted

    def seconds_of(self, n_drafts: int) -> float:
        """The seconds of so many drafts and of their window."""
        return n_drafts * self.stats.draft_seconds.usual + self.learned.window_costs.seconds(n_drafts + 1)

    def more_seconds_for(self, n_drafts: int) -> float:
        """The seconds that so many drafts take beyond those of the drafts so far."""
        return self.seconds_of(n_drafts) - self.seconds_of(self.n_drafts)

    def pays(self) -> bool:
        """Return whether one more draft pays. Its margin is not known yet: the rate of all is its chance."""
        if self.n_drafts == self.k:
            return False
        gain = self.chance * self.stats.acceptance.rate * self.learned.token_seconds
        return gain > self.more_seconds_for(self.n_drafts + 1) or self.pays_to_the_end()

    @property
    def is_near_end(self) -> bool:
        """Whether k drafts end the text, or in an inner level what the level around it asks for: only there the loop
        asks for fewer than K_MAX."""
        return self.k < K_MAX

    def pays_to_the_end(self) -> bool:
        """Return whether drafts up to the end pay. If all are accepted, another call may not be needed any more. Beside
        other texts, no call is saved."""
        if not self.is_near_end or not self.learned.is_alone:
            return False
        chance = self.chance
        gain = 0.0
        for _ in range(self.n_drafts, self.k):
            chance *= self.stats.acceptance.rate  # the chance that one more is accepted, and all before it
            gain += chance * self.learned.token_seconds
        gain += chance * LAST_CALL_SHARE * self.learned.window_costs.seconds(1)
        return gain > self.more_seconds_for(self.k)

    def go_on(self, margin: float) -> bool:
        """Return whether one more draft pays after a draft of this margin."""
        self.n_drafts += 1
        self.chance *= self.stats.acceptance.chance(margin)
        return self.pays()

    def most_drafts(self) -> int:
        """Return the drafts to ask for at most. If they do not pay, one is tried from time to time, as nothing is
        learned of a drafter that is not asked: the trials take TRYING_SHARE of the time. Beside other texts none is
        tried, as they would all wait."""
        if self.pays():
            return self.k
        is_due = self.more_seconds_for(1) <= TRYING_SHARE * self.stats.seconds_unasked
        return min(self.k, 1) if is_due and self.learned.is_alone else 0
