"""Expected tokens and cost of a window: the formula by which AutoK judges a lookahead.

With a_i the chance that draft i is accepted once those before it were, a window of K drafts is expected to give

    1 + a_1 + a_1 a_2 + ... + a_1 a_2 ... a_K    tokens

and takes the time of K drafts and K + 1 rows of the target.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each position in place of one α for all.
"""

import time
from bisect import bisect
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain
from operator import mul

import numpy as np

WINDOWS = (1, 2, 5, 9, 17)  # rows that are measured before a decode
DRAFTS = 8  # tokens that are drafted at a time, to measure what one costs


def best_k(chances: Sequence[float], c: float, beta: Callable[[int], float]) -> tuple[int, float]:
    """(K, speedup) of the best K from 0 (speedup 1) to len(chances), which are a_1, a_2, ...; the lowest on a tie.

    c and beta(rows) are the costs of a draft token and of a window, in units of one row of the target.
    """
    tokens = accumulate(chain([1.0], accumulate(chances, mul)))  # expected, for K = 0, 1, ...
    speedups = [n_tokens / (K * c + beta(K + 1)) for K, n_tokens in enumerate(tokens)]
    return speedups.index(max(speedups)), max(speedups)


class Cost:
    """Mean seconds of one item over the last 20 timings, without the longest, which may be an interruption."""

    def __init__(self):
        self.timed = deque(maxlen=20)  # (seconds of one, how many)
        self.mean = 0.0  # it is asked for more often than it changes

    def add(self, seconds: float, n: int = 1) -> None:
        self.timed.append((max(0.0, seconds) / n, n))
        kept = sorted(self.timed)[: max(1, len(self.timed) - 1)]
        self.mean = sum([one * n for one, n in kept]) / sum([n for _, n in kept])

    def __call__(self) -> float:  # 0 where nothing was timed
        return self.mean


def line_through(costs: dict[int, float]) -> Callable[[int], float]:
    """{rows: cost} at some row counts, 1 among them -> a function of any: straight between them, and beyond the last on
    the line from 1 row to it. A single point, of one row, gives a constant."""
    known = sorted(costs)
    last = known[-1]
    slope = max(0.0, costs[last] - costs[1]) / max(1, last - 1)

    def cost(rows: int) -> float:
        if rows in costs:
            return costs[rows]
        if rows > last:
            return costs[last] + slope * (rows - last)
        after = bisect(known, rows)
        low, high = known[after - 1 : after + 1]
        return costs[low] + (costs[high] - costs[low]) * (rows - low) / (high - low)

    return cost


def measured(target_model: Callable, draft: Callable, x, n_ctx: int) -> tuple[dict[int, float], float]:
    """Measures decoding after the text x [n]: {rows: seconds of the target's call}, and the seconds of a draft token.

    Each model reads the text before it is timed.
    """
    target_model(x, 1)
    windows = {}
    for rows in WINDOWS:
        if len(x) + rows <= n_ctx:
            window = np.append(x, [x[-1]] * rows)  # [n + rows]
            windows[rows] = least_seconds(partial(target_model, window, rows))
    draft(x, 1)
    return windows, least_seconds(partial(draft, x, DRAFTS)) / DRAFTS


def least_seconds(call: Callable) -> float:
    """The seconds of the faster of two calls, as one may be interrupted."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
