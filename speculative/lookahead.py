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
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from operator import mul

from speculative.sampling import Proposal

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


def line_through(costs: dict[int, float]) -> Callable[[int], float]:
    """Return the function rows -> cost through these {rows: cost}, which include 1 row: linear between them, and beyond
    the largest with the slope from 1 row to it."""
    known = sorted(costs)
    last = known[-1]
    slope = max(0.0, costs[last] - costs[1]) / max(1, last - 1)

    def cost(rows: int) -> float:
        if rows >= last:
            return costs[last] + slope * (rows - last)
        after = bisect(known, rows)
        low, high = known[after - 1 : after + 1]
        return costs[low] + (costs[high] - costs[low]) * (rows - low) / (high - low)

    return cost


class AutoK:
    """The costs and the acceptance of a drafter and its target, kept for the next decode with the same models.

    While K is 0, nothing is learned about the drafter. So K = 1 is tried again: at once if the last drafts paid for
    themselves, else so rarely that it costs at most PROBE_BUDGET.
    """

    K_max = 16

    def __init__(self, expected: tuple[float, float] = (2.5, 3.0)):
        """expected: (accepted, tested), with which the counts of acceptance begin."""
        accepted, tested = expected
        self.tested = [tested] + [0.0] * (self.K_max - 1)  # discounted counts by position
        self.accepted = [accepted] + [0.0] * (self.K_max - 1)
        self.n_asked = 1.0  # discounted count of iterations with K > 0
        self.n_proposed = 1.0  # discounted count of iterations with a proposal
        self.draft = Cost()  # seconds of a draft token
        self.catch_up = Cost()  # seconds of a token that the drafter has not read
        self.rows: dict[int, Cost] = defaultdict(Cost)  # {rows: seconds of a call of the target}
        self.window_seconds = line_through({1: 0.0})  # rows -> seconds of a call of the target
        self.n_unread = 0  # tokens of the text that the drafter has not read
        self.idle_seconds = 0.0  # of autoregressive decoding since the last drafts
        self.last_drafts_paid = True

    def measure(self, model: Callable, draft: Callable, x, n_ctx: int) -> None:
        """Time windows of the target and drafts after the text x [n], each twice, once both have read it."""
        if self.rows:
            return
        model(x, 1)
        for rows in WINDOW_ROWS * 2:
            if len(x) + rows <= n_ctx:
                began = time.perf_counter()
                model([*x, *[x[-1]] * rows], rows)
                self.time_call(rows, time.perf_counter() - began)
        draft(x, 1)
        for _ in range(2):
            began = time.perf_counter()
            draft(x, N_DRAFTS)
            self.draft.add((time.perf_counter() - began) / N_DRAFTS)

    def around(self, draft: Callable, model: Callable) -> Callable:
        """The drafter draft(x, k) for one decode, which proposes the K <= k tokens that pay. model: its target."""
        last = None  # the last proposal: tokens before it, K, drafts, seconds

        def drafted(x, k):  # [n], k -> Proposal
            nonlocal last
            if last:
                n, K, drafted, seconds = last
                self.learn(K, drafted, seconds, accepted=len(x) - n - 1, call=model.log[-1])
            else:
                self.n_unread = len(x)
            K = min(self.choose(), k)
            began = time.perf_counter()
            proposal = draft(x, K) if K else Proposal([], [])
            last = len(x), K, len(proposal.tokens), time.perf_counter() - began
            return proposal

        return drafted

    def choose(self) -> int:
        share = self.n_proposed / self.n_asked
        first, *later = self.chances()
        row = self.window_seconds(1) or 1.0  # a coarse clock may have measured 0
        c = self.draft.mean / row

        def beta(rows):  # of a window, or of one row if the drafter proposes nothing
            return 1 + share * (max(1.0, self.window_seconds(rows) / row) - 1)

        K, _ = best_k([share * first, *later], c, beta)
        # The seconds that a trial with K = 1 costs if its draft is rejected.
        stake = self.draft.mean + self.window_seconds(2) - self.window_seconds(1) + self.n_unread * self.catch_up.mean
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

    def learn(self, K: int, drafted: int, drafting: float, accepted: int, call) -> None:
        """Count the last iteration: K drafts were asked for, which took `drafting` seconds. call: the target's."""
        if K:
            self.n_asked = DECAY * self.n_asked + 1
            self.n_proposed = DECAY * self.n_proposed + (drafted > 0)
        if drafted:
            reached = min(accepted + 1, drafted)
            self.tested = [DECAY * count + (i < reached) for i, count in enumerate(self.tested)]
            self.accepted = [DECAY * count + (i < accepted) for i, count in enumerate(self.accepted)]
        if not call.prefill:
            self.time_call(call.n_rows, call.seconds)
            if K and self.n_unread > 2:
                self.catch_up.add(drafting - K * self.draft.mean, self.n_unread)
            elif K:
                self.draft.add(drafting, K)
        if not K:
            self.idle_seconds += call.seconds
            self.n_unread += 1
            return
        row = self.window_seconds(1)
        # The drafts and the longer call took no more time than the accepted tokens would have taken one by one.
        self.last_drafts_paid = K * self.draft.mean + self.window_seconds(drafted + 1) - row <= accepted * row
        self.idle_seconds = 0.0
        self.n_unread = 0

    def time_call(self, rows: int, seconds: float) -> None:
        """Count a call of the target. One row takes no longer than several."""
        self.rows[rows].add(seconds)
        means = {rows: cost.mean for rows, cost in self.rows.items() if len(cost.timed) > 1} or {rows: seconds}
        self.window_seconds = line_through(means | {1: min(means.values())})
