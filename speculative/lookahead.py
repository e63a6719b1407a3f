"""K that chooses itself: a drafter is asked after each draft whether one more is worth its time.

A draft is of use if it is accepted and all drafts before it are. The chance of that is a product over places, and each
factor is learned from the places before: how often a draft was accepted of which its drafter was as sure. One more
draft pays if its chance, times the seconds that a token takes now, is more than the seconds of the draft and of its row
in the target's call. So K is 0, autoregressive decoding, if not even the first draft pays.

The chance may depend on all that comes before a place and on p there, but not on the token that is drawn from p: a
draft that was dropped after it was drawn would leave the others distributed otherwise than p says.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each place instead of one α for all.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from operator import mul

import numpy as np

from speculative.costs import costs_by_rows, line_through, usual_seconds
from speculative.sampling import Proposal
from speculative.support.progress import working

DECAY = 0.95  # factor on all older evidence at each proposal: about 20 of them count
PROBE_BUDGET = 0.03  # share of the time of autoregressive decoding that is spent on trying a draft again
WINDOW_ROWS = (1, 2, 5, 9, 17)  # rows of the windows that are timed before a decode
F, END = float(os.environ.get("F", 1)), float(os.environ.get("END", 0))
N_DRAFTS = 8  # draft tokens that are timed before a decode
SCALES = 2.0 ** np.arange(-4, 5)[:, None]  # [n_scales, 1], over the one that is expected
SHARES = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.995])  # [n_shares]


def best_k(chances: Sequence[float], c: float, beta: Callable[[int], float]) -> tuple[int, float]:
    """(K, speedup) of the best K from 0 (speedup 1) to len(chances), the lowest on a tie. chances: a_1, a_2, ...

    c and beta(rows) are the costs of a draft token and of a window, in units of one row of the target.
    """
    tokens = accumulate(chain([1.0], accumulate(chances, mul)))  # expected, for K = 0, 1, ...
    speedups = [n_tokens / (K * c + beta(K + 1)) for K, n_tokens in enumerate(tokens)]
    return speedups.index(max(speedups)), max(speedups)


class Acceptance:
    """The chance that a draft is accepted, by the margin m by which its drafter preferred it (see Proposal).

    If the target's margin is the drafter's and an error of scale s (Laplace distributed), the target prefers the same
    token with the chance 1 - exp(-m / s) / 2. Of such drafts a share g is accepted. s and g are learned: each pair of a
    grid has a weight, its likelihood for the drafts so far (Bayes), older ones discounted.
    """

    def __init__(self, scale: float):
        """scale: the s that is expected."""
        self.scales = scale * SCALES
        self.prior = -((np.log2(SCALES) / 3) ** 2) + float(os.environ.get("G0", 8)) * np.log(SHARES)  # [n_scales, n_shares]
        self.evidence = np.zeros_like(self.prior)
        self.mean = 0.0  # of all drafts
        self.learn([scale], 1)
        self.n = 3.0
        self.mean = self.chance(2 * scale)
        self.sum = 3 * self.mean

    def chances(self, m: float) -> np.ndarray:  # -> [n_scales, n_shares]
        return SHARES * (1 - np.exp(-m / self.scales) / 2)

    def chance(self, m: float) -> float:
        return float(np.sum(self.weights * self.chances(m)))

    def learn(self, margins: Sequence[float], accepted: int) -> None:
        """Count the drafts of a proposal that were tested: the accepted ones, and one that was not."""
        self.evidence *= DECAY
        tested = margins[: accepted + 1]
        if hasattr(self, "n"):
            self.n = DECAY * self.n + len(tested)
            self.sum = DECAY * self.sum + min(accepted, len(margins))
            self.mean = self.sum / self.n
        for i, m in enumerate(tested):
            a = self.chances(m)  # [n_scales, n_shares]
            self.evidence += np.log(a if i < accepted else 1 - a)
        weights = np.exp(self.prior + self.evidence - np.max(self.prior + self.evidence))
        self.weights = weights / np.sum(weights)  # [n_scales, n_shares]


class Seconds:
    """The usual seconds of an item, over the last 20 timings."""

    def __init__(self):
        self.timed = deque(maxlen=20)
        self.usual = 0.0

    def add(self, seconds: float, n: int = 1) -> None:
        self.timed.append(max(0.0, seconds) / n)
        self.usual = usual_seconds(self.timed)


class DrafterRecord:
    """The acceptance and the cost of one drafter.

    While its K is 0, nothing is learned about it. So one draft is tried again: at once if its last drafts paid for
    themselves, else so rarely that it costs at most PROBE_BUDGET.
    """

    def __init__(self, scale: float):
        self.acceptance = Acceptance(scale)
        self.draft = Seconds()  # of a draft token
        self.catch_up = Seconds()  # of a token that the drafter has not read
        self.n_unread = 0  # tokens of the text that the drafter has not read
        self.idle_seconds = 0.0  # of the target since this drafter was last asked
        self.last_drafts_paid = True


class AutoK:
    """The stops of the drafters of a+b, and the costs of their target, kept for the next decode with the same models."""

    K_max = int(os.environ.get("KMAX", 32))

    def __init__(self, scales: Sequence[float]):
        """scales: for each drafter that of its acceptance."""
        self.records = [DrafterRecord(scale) for scale in scales]
        self.timed = []
        self.scale = Seconds()
        self.scale.usual = 1.0
        self.seconds = self.tokens = 0.0

    def measure(self, model: Callable, drafts: Sequence[Callable], x, n_ctx: int) -> None:
        """Time windows of the target and drafts after the text x [n], each twice, once all have read it."""
        if self.timed:
            return
        model(x, 1)
        with working("timing calls, from which K is chosen", 2 * len(WINDOW_ROWS), "call", delay=1) as bar:
            for rows in WINDOW_ROWS * 2:
                if len(x) + rows <= n_ctx:
                    began = time.perf_counter()
                    model([*x, *[x[-1]] * rows], rows)
                    self.timed.append((rows, time.perf_counter() - began))
                bar.update(1)
        self.line = line_through(costs_by_rows(self.timed))
        for record, draft in zip(self.records, drafts, strict=True):
            draft(x, 1)
            for _ in range(2):
                began = time.perf_counter()
                draft(x, N_DRAFTS)
                record.draft.add(time.perf_counter() - began, N_DRAFTS)
        row = self.window(1) or 1.0
        record = self.records[-1]
        a = record.acceptance.mean
        _, speedup = best_k([a] * 32, record.draft.usual / row, lambda n: self.window(n) / row)
        self.seconds, self.tokens = 2 * row / speedup, 2

    def window(self, rows: int) -> float:
        return self.scale.usual * self.line(rows)

    @property
    def worth(self):
        return self.seconds / self.tokens

    def more(self, record, n) -> float:
        return record.draft.usual + self.window(n + 2) - self.window(n + 1)

    def go_on(self, record: DrafterRecord, k) -> Callable:
        chance = 1.0
        n = 0

        def go_on(m: float) -> bool:
            nonlocal chance, n
            chance *= record.acceptance.chance(m)
            n += 1
            a = record.acceptance.mean
            more = self.more(record, n)
            w = self.worth * F
            if chance * a * w > more:
                return True
            ahead = k - n
            if END and 0 < ahead:
                gain = w * chance * sum(a**j for j in range(1, ahead + 1)) + END * chance * a**ahead * self.window(1)
                more = ahead * record.draft.usual + self.window(k + 1) - self.window(n + 1)
                return gain > more
            return False

        return go_on

    def drafter_of(self, drafts: Sequence[Callable], stops, model: Callable) -> Callable:
        """The drafter draft(x, k) for one decode: the first of these that proposes anything, with the K <= k that pays.

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
            for record, draft, stop in zip(self.records, drafts, stops, strict=True):
                K = 0
                if not proposal.tokens and k:
                    K = k
                    stop.asks = self.go_on(record, k if k < self.K_max else 0)
                    if record.acceptance.mean * self.worth <= self.more(record, 0):
                        stake = self.more(record, 0) + record.n_unread * record.catch_up.usual
                        K = int(record.last_drafts_paid or stake <= PROBE_BUDGET * record.idle_seconds)
                began = time.perf_counter()
                proposal = draft(x, K) if K else proposal
                asked.append((K, proposal.margins if K else (), time.perf_counter() - began))
            n = len(x)
            return proposal

        return drafted

    def learn(self, asked: Sequence[tuple], accepted: int, call) -> None:
        """Count the last iteration. call: the target's."""
        if not call.prefill:
            self.scale.add(call.seconds / (self.line(call.n_rows) or 1.0))
            seconds = call.seconds + sum(s for _, _, s in asked)
            self.seconds = DECAY * self.seconds + seconds
            self.tokens = DECAY * self.tokens + accepted + 1
        row = self.window(1)
        for record, (K, margins, seconds) in zip(self.records, asked, strict=True):
            if not K:
                record.idle_seconds += call.seconds
                record.n_unread += accepted + 1
                continue
            n = len(margins)
            if not call.prefill and record.n_unread > 2:
                record.catch_up.add(seconds - n * record.draft.usual, record.n_unread)
            elif not call.prefill:
                record.draft.add(seconds, max(1, n))
            # The drafts and the longer call took no more time than the accepted tokens would have taken one by one.
            if margins:
                record.acceptance.learn(margins, accepted)
            took = n * record.draft.usual + self.window(n + 1) - row
            record.last_drafts_paid = took <= (accepted if n else 0) * row
            record.idle_seconds = 0.0
            record.n_unread = 0
