"""Predictions of another lookahead, from one run and from measurements after it.

A run tells the chance of acceptance at each place of its text where a draft was tested. No draft was tested at the
place of a bonus token, so one is drafted there now. Then windows of any K can be laid over the text: windows_of()
computes how many are expected of each length. Iterations with up to 2K drafts are timed, and the times are multiplied
so that those of the run add up to its time.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

import numpy as np

from speculative.lookahead import line_through
from speculative.measure.recorder import Recorder
from speculative.rules import Rule
from speculative.sampling import Step
from speculative.session import Session

BLOCK = 64  # rows of the target in one call
TIMING_SECONDS = 0.25  # for timing calls; slow models take longer, as each call is timed twice


class Measured(NamedTuple):
    """What predictions need beside the run."""

    seconds: dict[int, float]  # {rows: seconds of Steps 1 and 2 with rows - 1 drafts}
    chances: list[list[float]]  # of each text: the chance at each place that a draft is accepted


def measure(session: Session, speculative: Recorder) -> Measured | None:
    """Measure after a run. None if there can be no predictions."""
    if session.options.engine == "jax" or not can_predict(speculative):
        return None
    target = session.model("target")
    draft = session.drafter(np.random.default_rng(0), target=target).chain
    texts = zip(speculative.inputs, speculative.samples, strict=True)
    chances = [chances_by_place(x, sample, draft, target, session.rule) for x, sample in texts]
    K = max(i.drafted for i in speculative.iterations)
    tokens = speculative.tokens[0]
    x = [*speculative.inputs[0], *tokens[: len(tokens) // 2]]
    return Measured(time_iterations(target, draft, x, K, session.n_ctx), chances)


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


def chances_by_place(x: Sequence, sample: Sequence, draft: Callable, target: Callable, rule: Rule) -> list[float]:
    """The chance at each new place of a text that a draft there is accepted."""
    tokens = [token for i in sample for token in i.tokens]
    text = np.array([*x, *tokens])  # [n + N]
    q = rows_of(target, text, len(tokens))
    chances = []
    for i in sample:
        chances += i.alpha
        *_, q_i = islice(q, len(i.tokens))  # [n_vocab], at the place of the last token
        if len(i.alpha) < len(i.tokens):  # the last token is a bonus token
            place = len(chances)
            proposal = draft(text[: len(x) + place], 1)
            chances += rule.chances(Step([0], proposal, np.stack([q_i, q_i]))) or [0.0]
    return [min(1.0, chance) for chance in chances]


def rows_of(target: Callable, text, N: int) -> Iterator[np.ndarray]:  # [n + N] -> N times [n_vocab]
    """The target's rows for the last N tokens of a text, computed in blocks: those of a long text take much memory."""
    for end in range(len(text) - N, len(text), BLOCK):
        n_rows = min(BLOCK, len(text) - end)
        yield from target(text[: end + n_rows - 1], n_rows)


def time_iterations(model: Callable, draft: Callable, x, K: int, n_ctx: int) -> dict[int, float]:  # x [n]
    """{rows: seconds of Steps 1 and 2 with rows - 1 drafts} after the text x, for up to 2K drafts."""
    most = min(2 * K, n_ctx // 2)
    x = np.asarray(x)[: n_ctx - most]  # [n]
    sizes = sorted({0, 1, 2, 3, 4, 8, 16, K, most} & {*range(most + 1)})
    seconds: dict[int, list[float]] = defaultdict(list)
    start = time.perf_counter()
    while len(seconds[0]) < 3 or time.perf_counter() - start < TIMING_SECONDS:
        for k in sizes:
            began = time.perf_counter()
            tokens = draft(x, k).tokens if k else []
            model(np.append(x, tokens).astype(int), len(tokens) + 1)
            seconds[k].append(time.perf_counter() - began)
    return {k + 1: median(seconds[k][1:]) for k in sizes}  # the first calls may read the text


def predict(autoregressive: Recorder, speculative: Recorder, prefill: float, measured: Measured) -> dict[int, float]:
    """{K: the speedup that this lookahead should bring}, for each K whose iterations were timed. prefill: its seconds
    in the speculative run."""
    iteration = line_through(measured.seconds)
    run_seconds = sum(iteration(i.drafted + 1) for i in speculative.iterations)
    scale = (speculative.seconds - prefill) / run_seconds
    t_token = autoregressive.seconds / autoregressive.n_tokens
    predicted = {}
    for K in range(1, max(measured.seconds)):
        windows: Counter[int] = Counter()
        for chances in measured.chances:
            windows.update(windows_of(chances, K))
        most = speculative.n_tokens / windows.total()  # tokens per iteration
        seconds = prefill + scale * sum(n * iteration(k + 1) for k, n in windows.items())
        predicted[K] = min(most, t_token * speculative.n_tokens / seconds)
    return predicted


def windows_of(chances: Sequence[float], K: int) -> dict[int, float]:  # [N] -> {drafts: windows}
    """How many windows of each length are expected to cover a text with these chances, with lookahead K."""
    N = len(chances)
    begins = [1.0] + [0.0] * N  # the chance that a window begins at each place
    windows: dict[int, float] = defaultdict(float)
    for place in range(N):
        k = min(K, N - place - 1)
        windows[k] += begins[place]
        reached = begins[place]
        for n in range(k):  # the draft after n accepted ones is rejected
            begins[place + n + 1] += reached * (1 - chances[place + n])
            reached *= chances[place + n]
        begins[place + k + 1] += reached
    return windows
