"""K that chooses itself: a drafter around a drafter, which proposes as many tokens as pay.

With a_i the chance that draft i is accepted once those before it were, an iteration with K drafts is expected to give
1 + a_1 + a_1 a_2 + ... + a_1 a_2 ... a_K tokens, in the time of K drafts and K + 1 rows of the target. AutoK keeps
count of acceptance by position and of both costs, and takes the K with the most expected tokens per second; one of the
choices is K = 0, autoregressive decoding.

K is fixed before anything is drafted. If drafts could be dropped after they were seen, they would no longer be
samples of p, and the output would not follow the target's distribution.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each position in place of one α for all.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from operator import mul

from speculative.costs import line_through
from speculative.sampling import Proposal
from speculative.support.progress import working

DECAY = 0.95  # factor on all older counts at each proposal: acceptance is an average over about 20 of them
PRIOR_WEIGHT = 8  # proposals of evidence that the guess "accepted as often as the position before" counts for
PROBE_BUDGET = 0.03  # share of the time of autoregressive decoding that is spent on trying K = 1 again
WINDOW_ROWS = (1, 2, 5, 9, 17)  # rows of the windows that are timed before a decode
N_DRAFTS = 8  # draft tokens that are timed before a decode


def best_k(chances: Sequence[float], c: float, beta: Callable[[int], float]) -> tuple[int, float]:
    """(K, speedup) of the best K from 0 (speedup 1) to len(chances), the lowest on a tie. chances: a_1, a_2, ...

    c and beta(rows) are the costs of a draft token and of a window, in units of one row of the target.
    """
    tokens = accumulate(chain([1.0], accumulate(chances, mul)))  # expected, for K = 0, 1, ...
    speedups = [n_tokens / (K * c + beta(K + 1)) for K, n_tokens in enumerate(tokens)]
    return speedups.index(max(speedups)), max(speedups)


class Cost:
    """Mean seconds of one item over the last 20 timings, without the longest, which may be an interruption."""

    def __init__(self):
        self.timed = deque(maxlen=20)  # (seconds of one, how many)
        self.mean = 0.0

    def add(self, seconds: float, n: int = 1) -> None:
        self.timed.append((max(0.0, seconds) / n, n))
        usual = sorted(self.timed)[: max(1, len(self.timed) - 1)]
        self.mean = sum([each * n for each, n in usual]) / sum([n for _, n in usual])


class DrafterRecord:
    """The acceptance and the cost of one drafter.

    While its K is 0, nothing is learned about it. So K = 1 is tried again: at once if its last drafts paid for
    themselves, else so rarely that it costs at most PROBE_BUDGET.
    """

    def __init__(self, expected: tuple[float, float]):
        """expected: (accepted, tested), with which the counts of acceptance begin."""
        accepted, tested = expected
        self.tested = [tested] + [0.0] * (AutoK.K_max - 1)  # discounted counts by position
        self.accepted = [accepted] + [0.0] * (AutoK.K_max - 1)
        self.draft = Cost()  # seconds of a draft token
        self.catch_up = Cost()  # seconds of a token that the drafter has not read
        self.n_unread = 0  # tokens of the text that the drafter has not read
        self.idle_seconds = 0.0  # of the target since this drafter was last asked
        self.last_drafts_paid = True

    def choose(self, window_seconds: Callable[[int], float]) -> int:
        row = window_seconds(1) or 1.0  # a coarse clock may have measured 0
        K, _ = best_k([*self.chances()], self.draft.mean / row, lambda rows: max(1.0, window_seconds(rows) / row))
        # The seconds that a trial with K = 1 costs if its draft is rejected.
        stake = self.draft.mean + window_seconds(2) - window_seconds(1) + self.n_unread * self.catch_up.mean
        again = self.last_drafts_paid or stake <= PROBE_BUDGET * self.idle_seconds
        return K or int(again)

    def chances(self) -> Iterator[float]:
        """The chances a_1, a_2, ...: later positions are tested less often, and lean on those before them."""
        a = 0.0
        weight = 0
        for accepted, tested in zip(self.accepted, self.tested, strict=True):
            a = (accepted + weight * a) / (tested + weight)
            weight = PRIOR_WEIGHT  # not for the first position, which has none before it
            yield a

    def learn(self, K: int, drafted: int, accepted: int, window_seconds: Callable[[int], float]) -> None:
        """Count what became of the last proposal: K drafts were asked for."""
        if drafted:
            reached = min(accepted + 1, drafted)
            self.tested = [DECAY * count + (i < reached) for i, count in enumerate(self.tested)]
            self.accepted = [DECAY * count + (i < accepted) for i, count in enumerate(self.accepted)]
        row = window_seconds(1)
        # The drafts and the longer call took no more time than the accepted tokens would have taken one by one.
        self.last_drafts_paid = K * self.draft.mean + window_seconds(drafted + 1) - row <= accepted * row
        self.idle_seconds = 0.0
        self.n_unread = 0


class AutoK:
    """A K for each drafter of a+b, and the costs of their target, kept for the next decode with the same models."""

    K_max = 32

    def __init__(self, expected: Sequence[tuple[float, float]]):
        """expected: for each drafter (accepted, tested), with which its counts of acceptance begin."""
        self.records = [DrafterRecord(counts) for counts in expected]
        self.rows: dict[int, Cost] = defaultdict(Cost)  # {rows: seconds of a call of the target}
        self.window_seconds = line_through({1: 0.0})  # rows -> seconds of a call of the target

    def measure(self, model: Callable, drafts: Sequence[Callable], x, n_ctx: int) -> None:
        """Time windows of the target and drafts after the text x [n], each twice, once all have read it."""
        if self.rows:
            return
        model(x, 1)
        with working("timing calls, from which K is chosen", 2 * len(WINDOW_ROWS), "call", delay=1) as bar:
            for rows in WINDOW_ROWS * 2:
                if len(x) + rows <= n_ctx:
                    began = time.perf_counter()
                    model([*x, *[x[-1]] * rows], rows)
                    self.time_call(rows, time.perf_counter() - began)
                bar.update(1)
        for record, draft in zip(self.records, drafts, strict=True):
            draft(x, 1)
            for _ in range(2):
                began = time.perf_counter()
                draft(x, N_DRAFTS)
                record.draft.add((time.perf_counter() - began) / N_DRAFTS)

    def drafter_of(self, drafts: Sequence[Callable], model: Callable) -> Callable:
        """The drafter draft(x, k) for one decode: the first of these that proposes anything, with the K <= k that pays.

        model: their target. As in drafters.first_of, whether one proposes anything must not depend on its draws.
        """
        asked: list[tuple] = []  # for each drafter in the last iteration: K, drafts, seconds
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
                K = 0 if proposal.tokens else min(record.choose(self.window_seconds), k)
                began = time.perf_counter()
                proposal = draft(x, K) if K else proposal
                asked.append((K, len(proposal.tokens) if K else 0, time.perf_counter() - began))
            n = len(x)
            return proposal

        return drafted

    def learn(self, asked: Sequence[tuple], accepted: int, call) -> None:
        """Count the last iteration. call: the target's."""
        if not call.prefill:
            self.time_call(call.n_rows, call.seconds)
        for record, (K, drafted, seconds) in zip(self.records, asked, strict=True):
            if not K:
                record.idle_seconds += call.seconds
                record.n_unread += accepted + 1
                continue
            if not call.prefill and record.n_unread > 2:
                record.catch_up.add(seconds - K * record.draft.mean, record.n_unread)
            elif not call.prefill:
                record.draft.add(seconds, K)
            record.learn(K, drafted, accepted if drafted else 0, self.window_seconds)

    def time_call(self, rows: int, seconds: float) -> None:
        """Count a call of the target. One row takes no longer than several."""
        self.rows[rows].add(seconds)
        means = {rows: cost.mean for rows, cost in [*self.rows.items()] if len(cost.timed) > 1} or {rows: seconds}
        self.window_seconds = line_through(means | {1: min(means.values())})
