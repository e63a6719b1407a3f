"""Predictions of another lookahead, from one run and from the costs of windows, which are timed after it.

The text of a run tells how often its drafts were accepted at each place. So windows of any K can be laid over that
text: windows_of() computes how many are expected of each length. Their costs are timed, up to twice the run's K. The
model's cost of the run's own windows is compared with the time that they took, and predictions are scaled by the ratio.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from speculative.drafters import DRAFTERS
from speculative.lookahead import best_k, line_through
from speculative.measure.costs import Costs, line, prefill_seconds
from speculative.measure.recorder import Recorder

TIMING_SECONDS = 0.25  # for timing windows; slow models take longer, as each window is timed twice
COPY_K = 8  # largest K that is considered for a quantized copy: costs of longer windows are unknown
COPY_GAIN = 1.1  # times the speedup without it, from which on it is recommended
LARGE_BYTES = 2**28  # of weights; reading a smaller target is not bound by memory, so fewer bytes gain nothing


def time_windows(model: Callable, x, n_rows: int, n_ctx: int) -> dict[int, float]:  # [n] -> {rows: seconds}
    """Time calls of the target with up to n_rows rows after the text x, at least twice each, in turns."""
    x = np.asarray(x)[: n_ctx - n_rows]  # [n]
    sizes = sorted({1, 2, 3, 5, 9, 17, (n_rows + 1) // 2, n_rows} & {*range(1, n_rows + 1)})
    seconds = defaultdict(list)
    model(x, 1)
    began = time.perf_counter()
    while len(seconds[1]) < 2 or time.perf_counter() - began < TIMING_SECONDS:
        for rows in sizes:
            start = time.perf_counter()
            model(np.append(x, [x[-1]] * (rows - 1)), rows)
            seconds[rows].append(time.perf_counter() - start)
    return {rows: median(seconds[rows]) for rows in sizes}


def chances_by_place(sample: Sequence, usual: float) -> list[float]:
    """The chance at each place of a text that a draft there is accepted; the usual one if none was tested there."""
    return [min(1.0, chance) for i in sample for chance in [*i.alpha, usual][: len(i.step.tokens)]]


def windows_of(chances: Sequence[float], K: int) -> dict[int, float]:  # [N] -> {drafts: windows}
    """How many windows of each length are expected to cover a text with these chances, with lookahead K."""
    N = len(chances)
    begins = [1.0] + [0.0] * N  # the chance that a window begins at each place
    windows = defaultdict(float)
    for place in range(N):
        k = min(K, N - place - 1)
        windows[k] += begins[place]
        reached = begins[place]
        for n in range(k):  # the draft after n accepted ones is rejected
            begins[place + n + 1] += reached * (1 - chances[place + n])
            reached *= chances[place + n]
        begins[place + k + 1] += reached
    return windows


def predict(
    autoregressive: Recorder, speculative: Recorder, costs: Costs, timed: dict[int, float] | None = None
) -> dict[int, float]:
    """{K: the speedup that this lookahead should bring}, for each K whose windows' costs are known.

    timed: time_windows(), up to 2K + 1 rows; without it only shorter windows than the run's own are known. Empty for
    trees, and for drafters that do not propose as many tokens as they are asked for.
    """
    if not can_predict(speculative):
        return {}
    tested = [chance for i in speculative.iterations for chance in i.alpha]
    usual = sum(tested) / len(tested)
    chances = [chances_by_place(sample, usual) for sample in speculative.samples]
    t_window = timed or costs.t_window
    window = line(t_window)

    def seconds(windows: dict[int, float]) -> float:
        return sum(n * (k * costs.t_draft + window(k + 1)) for k, n in windows.items())

    own = defaultdict(float)
    for i in speculative.iterations:
        own[i.step.drafted] += 1
    prefill = prefill_seconds(speculative)
    scale = (speculative.seconds - prefill) / seconds(own)
    t_token = autoregressive.seconds / autoregressive.n_tokens
    predicted = {}
    for k in range(1, max(t_window)):
        each = [windows_of(one, k) for one in chances]
        took = prefill + scale * sum(map(seconds, each))
        most = speculative.n_tokens / sum(sum(windows.values()) for windows in each)  # tokens per window
        predicted[k] = min(most, t_token * speculative.n_tokens / took)
    return predicted


def can_predict(speculative: Recorder) -> bool:
    """True if drafts were tested, and each window was a chain of K of them, or of as many as the text had room for."""
    K = max([i.step.drafted for i in speculative.iterations], default=0)
    for sample in speculative.samples:
        left = sum(len(i.step.tokens) for i in sample)
        for i in sample:
            if i.tree or i.step.drafted < min(K, left - 1):
                return False
            left -= len(i.step.tokens)
    return any(i.alpha for i in speculative.iterations)


def with_copy(f: dict, row: float) -> tuple[int, int, float]:
    """The lookaheads of the target's int8 copy and of the draft model under it, and the speedup that they should bring.

    f: figures() of a run with the draft model alone. row: the cost of a row of the copy in rows of the target. Assumed:
    the copy accepts the draft model's tokens as often as the target does, its windows cost as many of its rows, and the
    target accepts its tokens as often as its spec expects.
    """
    beta = line_through({1: 1.0} | {int(rows): cost for rows, cost in f["beta"].items()})
    inner_K, inner_speedup = best_k([f["alpha"]] * COPY_K, f["c"] / row, beta)
    passed, tested = DRAFTERS["int8"].expected
    K, speedup = best_k([passed / tested] * COPY_K, row / inner_speedup, beta)
    return K, inner_K, min(K + 1, speedup * f["speedup_without_prefill"] / f["account_blog"])
