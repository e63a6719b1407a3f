"""Predictions of another lookahead, from one run and from the times of iterations, which are measured after it.

The text of a run tells how often its drafts were accepted at each place. So windows of any K can be laid over that
text: windows_of() computes how many are expected of each length. Iterations are timed for up to twice the
run's K, and scaled so that the run's own take as long as they did.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import mean, median

import numpy as np

from speculative.measure.costs import line, prefill_seconds
from speculative.measure.recorder import Recorder

TIMING_SECONDS = 0.25  # for timing calls; slow models take longer, as each call is timed twice


def can_predict(speculative: Recorder) -> bool:
    """True if drafts were tested, and each window was a chain of K of them, or of as many as the text had room for."""
    K = max([i.drafted for i in speculative.iterations], default=0)
    for sample in speculative.samples:
        left = sum(len(i.tokens) for i in sample)
        for i in sample:
            if i.tree or i.drafted < min(K, left - 1):
                return False
            left -= len(i.tokens)
    return any(i.alpha for i in speculative.iterations)


def time_iterations(model: Callable, draft: Callable, x, K: int, n_ctx: int) -> dict[int, float]:  # x [n]
    """{rows: seconds of Steps 1 and 2 with rows - 1 drafts} after the text x, for up to 2K drafts."""
    most = min(2 * K, n_ctx // 2)
    x = np.asarray(x)[: n_ctx - most]  # [n]
    sizes = sorted({0, 1, 2, 3, 4, 8, 16, K, most} & {*range(most + 1)})
    seconds = defaultdict(list)
    start = time.perf_counter()
    while len(seconds[0]) < 3 or time.perf_counter() - start < TIMING_SECONDS:
        for k in sizes:
            began = time.perf_counter()
            tokens = draft(x, k).tokens if k else []
            model(np.append(x, tokens).astype(int), len(tokens) + 1)
            seconds[k].append(time.perf_counter() - began)
    return {k + 1: median(seconds[k][1:]) for k in sizes}  # the first calls may read the text


def predict(autoregressive: Recorder, speculative: Recorder, timed: dict[int, float]) -> dict[int, float]:
    """{K: the speedup that this lookahead should bring}, for each K whose iterations were timed: time_iterations()."""
    iteration = line(timed)
    prefill = prefill_seconds(speculative)
    run_seconds = sum(iteration(i.drafted + 1) for i in speculative.iterations)
    scale = (speculative.seconds - prefill) / run_seconds
    chances = [chances_by_place(sample, chance_of_bonus(speculative)) for sample in speculative.samples]
    t_token = autoregressive.seconds / autoregressive.n_tokens
    predicted = {}
    for K in range(1, max(timed)):
        windows = Counter()
        for one in chances:
            windows.update(windows_of(one, K))
        most = speculative.n_tokens / windows.total()  # tokens per iteration
        seconds = prefill + scale * sum(n * iteration(k + 1) for k, n in windows.items())
        predicted[K] = min(most, t_token * speculative.n_tokens / seconds)
    return predicted


def chances_by_place(sample: Sequence, bonus: float) -> list[float]:
    """The chance at each place of a text that a draft there is accepted; `bonus` if none was tested there."""
    return [min(1.0, chance) for i in sample for chance in [*i.alpha, bonus][: len(i.tokens)]]


def chance_of_bonus(speculative: Recorder) -> float:
    """The mean chance in the second half of a window: like a bonus token, these drafts follow accepted ones."""
    after = [chance for i in speculative.iterations for chance in i.alpha[i.drafted // 2 :]]
    return mean(after or [chance for i in speculative.iterations for chance in i.alpha])


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
