"""K that chooses itself: after each draft it is decided whether one more is worth its time.

A draft is of use if it is accepted and all drafts before it are. The chance of that is a product over the places, and
each factor is learned from earlier drafts of which their drafter was as sure. One more draft pays if its chance, times
the seconds that a token takes at present, is more than the seconds of the draft and of its row in the target's call. If
not even the first one pays, the target decodes alone.

The chance may depend on all that comes before a place, and on p there, but not on the token that is drawn from p: if
drafts were dropped after they were seen, the others would not be samples of p.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each place instead of one α for all.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

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


class DrafterRecord:
    """The acceptance and the cost of one drafter's drafts.

    A draft that its drafter preferred by the margin m (sampling.Proposal) is accepted with the chance
    g (1 - exp(-m / s) / 2): the target's margin is m and an error of scale s (Laplace distributed), and of the drafts
    that it prefers too a share g is accepted. Each pair of s and g on a grid has a weight: its likelihood for the
    drafts so far, of which older ones count less.

    While a drafter does not draft, nothing is learned about it. So one draft is tried again: at once if its last drafts
    paid for themselves, else so rarely that it costs at most PROBE_BUDGET.
    """

    def __init__(self, scale: float):
        """scale: the s that is expected."""
        self.scale = scale
        self.scales = scale * SCALES  # [n_scales, 1]
        # The scale is within a factor of 8 of the expected one.
        self.evidence = N_EXPECTED * np.log(SHARES) - (np.log2(SCALES) / 3) ** 2  # [n_scales, n_shares]
        self.expected = self.evidence.copy()
        self.tested = 3.0  # discounted counts; at first as of three drafts with a margin of two scales
        self.accepted = 3.0 * self.chance(2 * scale)
        self.draft: deque[float] = deque(maxlen=20)  # seconds of a draft token
        self.reading = 0.0  # seconds of a token that the drafter has not read
        self.n_unread = 0  # tokens of the text that the drafter has not read
        self.idle = 0.0  # seconds of the target since it was last asked
        self.paid = True  # whether the accepted drafts of the last proposal were worth its time

    @property
    def mean(self) -> float:
        """The share of the drafts that are accepted."""
        return self.accepted / self.tested

    def chances(self, m: float) -> np.ndarray:  # -> [n_scales, n_shares]
        return SHARES * (1 - np.exp(-m / self.scales) / 2)

    def chance(self, m: float) -> float:
        weights = np.exp(self.evidence - np.max(self.evidence))  # [n_scales, n_shares]
        return float(np.sum(weights * self.chances(m)) / np.sum(weights))

    def learn(self, margins: Sequence[float], accepted: int) -> None:
        """Count the drafts of a proposal that were tested: those that were accepted, and one that was not."""
        self.evidence += (1 - DECAY) * (self.expected - self.evidence)
        tested = margins[: accepted + 1]
        for i, m in enumerate(tested):
            a = self.chances(m)  # [n_scales, n_shares]
            self.evidence += np.log(a if i < accepted else 1 - a)
        self.tested = DECAY * self.tested + len(tested)
        self.accepted = DECAY * self.accepted + accepted


class AutoK:
    """A K that is chosen by costs, for the drafters of a+b and their target; it is kept for the next decode."""

    K_max = 32

    def __init__(self, scales: Sequence[float], clock: Callable[[], float] = lambda: time.perf_counter()):
        """scales: the expected scale of each drafter's acceptance."""
        self.clock = clock
        self.records = [DrafterRecord(scale) for scale in scales]
        self.timed: list[tuple[int, float]] = []  # (rows, seconds) of calls of the target before a decode
        self.slowdown = deque([1.0], maxlen=20)  # seconds of a call now, over those before the decode
        self.seconds = self.tokens = 0.0  # discounted sums over the iterations

    def measure(self, model: Callable, drafts: Sequence[Callable], x, n_ctx: int) -> None:
        """Time windows of the target and drafts after the text x [n], each twice, once all have read it."""
        model(x, 1)
        for rows in WINDOW_ROWS * 2:
            if len(x) + rows <= n_ctx:
                began = self.clock()
                model([*x, *[x[-1]] * rows], rows)
                self.timed.append((rows, self.clock() - began))
        self.before = line_through(costs_by_rows(self.timed))
        for record, draft in zip(self.records, drafts, strict=True):
            draft(x, 1)
            for _ in range(2):
                began = self.clock()
                draft(x, N_DRAFTS)
                record.draft.append((self.clock() - began) / N_DRAFTS)
        # What a token will take at best, if all drafts are alike, counts as two iterations.
        mean, draft_seconds = self.records[-1].mean, usual_seconds(self.records[-1].draft)
        Ks = range(self.K_max)
        expected = [(K * draft_seconds + self.window(K + 1)) / sum(mean**i for i in range(K + 1)) for K in Ks]
        self.seconds, self.tokens = 2 * min(expected), 2.0

    def window(self, rows: int) -> float:
        """The seconds of a call of the target."""
        return usual_seconds(self.slowdown) * self.before(rows)

    def decider(self, record: DrafterRecord, k: int) -> tuple[bool, Callable]:
        """Return whether the first of at most k drafts pays, and go_on(margin): whether one more does after a draft.

        It pays if any number of further drafts is worth more than its cost. The costs are no straight line: a row may
        cost more than several beside it. Drafts up to k end the text, which saves another call about every other time.
        """
        slowdown, draft = usual_seconds(self.slowdown), usual_seconds(record.draft)
        worth, mean = self.seconds / self.tokens, record.mean
        n, chance = 0, 1.0  # drafts so far; that all of them are accepted

        def cost(n: int) -> float:
            """The seconds of n drafts and of their call."""
            return n * draft + slowdown * self.before(n + 1)

        def pays() -> bool:
            gain, use, now = 0.0, chance, cost(n)
            for i in range(n + 1, k + 1):
                use *= mean  # the chance that draft i is accepted, and all before it
                gain += use * worth
                if gain > cost(i) - now:
                    return True
            return n < k < self.K_max and gain + use * slowdown * self.before(1) / 2 > cost(k) - now

        def go_on(margin: float) -> bool:
            nonlocal n, chance
            n += 1
            chance *= record.chance(margin)
            return pays()

        return pays(), go_on

    def drafter_of(self, drafts: Sequence[Callable], model: Callable) -> Callable:
        """The drafter draft(x, k) for one decode: the first of these that proposes anything surely, while it pays.

        model: their target. As in drafters.first_of, whether one proposes anything must not depend on its draws.
        """
        asked: list[tuple] = []  # for each drafter in the last iteration: K, margins, seconds
        n = 0  # tokens before it

        def drafted(x, k):  # [n], k -> Proposal
            nonlocal n
            if n:
                self.learn(asked, accepted=len(x) - n - 1, call=model.log[-1])
            else:
                for record in self.records:
                    record.n_unread = len(x)
            proposal = Proposal([], [])
            asked.clear()
            for record, draft in zip(self.records, drafts, strict=True):
                K = 0
                if not proposal.tokens:
                    pays, go_on = self.decider(record, k)
                    K = k if pays else self.trial(record, k)
                began = self.clock()
                proposal = draft(x, K, go_on) if K else proposal
                # The next one has its turn if this one is less sure than usual of its first draft, as p of it tells.
                if K and record is not self.records[-1] and [*proposal.margins, np.inf][0] < record.scale:
                    K, proposal = 0, Proposal([], [])
                margins = [*proposal.margins] or [1.0] * len(proposal.tokens)
                asked.append((K, margins if K else (), self.clock() - began))
            n = len(x)
            return proposal

        return drafted

    def trial(self, record: DrafterRecord, k: int) -> int:
        """Return 1 if a drafter whose drafts do not pay is tried again, else 0."""
        seconds = usual_seconds(record.draft) + self.window(2) - self.window(1) + record.n_unread * record.reading
        return min(k, int(record.paid or seconds <= PROBE_BUDGET * record.idle))

    def learn(self, asked: Sequence[tuple], accepted: int, call) -> None:
        """Count the last iteration. call: the target's."""
        if not call.prefill:
            self.slowdown.append(call.seconds / (self.before(call.n_rows) or 1.0))  # a coarse clock may have measured 0
            self.seconds = DECAY * self.seconds + call.seconds
            self.tokens = DECAY * self.tokens + accepted + 1
        for record, (K, margins, seconds) in zip(self.records, asked, strict=True):
            if not K:
                record.idle += call.seconds
                record.n_unread += accepted + 1
                continue
            n = len(margins)
            drafting = n * usual_seconds(record.draft)
            if not call.prefill and record.n_unread > 2:
                record.reading = max(0.0, seconds - drafting) / record.n_unread
            elif not call.prefill:
                record.draft.append(seconds / max(1, n))
            self.seconds += 0.0 if call.prefill else drafting
            if n:
                record.learn(margins, accepted)
            # The drafts and the longer call took no more time than the accepted tokens would have taken one by one.
            row = self.window(1)
            record.paid = drafting + self.window(n + 1) - row <= (accepted if n else 0) * row
            record.idle = 0.0
            record.n_unread = 0
