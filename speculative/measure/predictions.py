"""Predictions of other lookaheads and drafters, from one run and short measurements after it.

The decoded tokens are known, so for another K it can be computed where each call of the target would begin and end. A
place is the position of a new token. At each place the run tells the chance that the draft model's token is accepted
there, or the draft model is asked now. A prompt lookup draws nothing: it is asked at each place, and the tokens that it
shares with the text are accepted. (Why min(1, p / q), not q / p: the text is fixed here. Given that a token came out,
the chance that it was the draft and was accepted is min(p, q) / q. Its mean over texts is Σ min(p, q).)

Windows of sizes that the run has not timed are timed now, in a fraction of the run's own time: only some blocks of the
network, if the engine can compute these alone.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from speculative.costs import costs_by_rows, line_through
from speculative.drafters.base import DrafterSpec
from speculative.drafters.lookup import NAME as LOOKUP
from speculative.drafters.lookup import prompt_lookup
from speculative.measure.recorder import Recorder
from speculative.session import Session
from speculative.support.progress import working

BLOCK = 64  # rows of a model in one call
ROWS = (2, 3, 5, 9, 17, 33)  # rows of the windows that are timed, if the run has not timed them
ROUNDS = 6  # times that each size is timed
TIMING_SHARE = 0.18  # of the speculative decode's time, that all this may take
TIMING_SECONDS = (0.05, 0.9)  # that it may take in any case, and at most


class Drafts(NamedTuple):
    """What drafters would propose at the places of one text."""

    n_matched: list[int]  # accepted tokens of a prompt lookup; -1 if it proposes nothing
    chances: list[float]  # chance that the draft model's token is accepted; [] if there is no such model


class Measured(NamedTuple):
    """What predictions need beside the run."""

    names: list[str]  # of the drafters that are predicted
    texts: list[Drafts]
    timed: dict[int, float]  # {rows: seconds of a call of the target}
    t_lookup: float  # seconds of a prompt lookup
    t_draft: float  # seconds of a token of the draft model


def measure(session: Session, speculative: Recorder) -> Measured | None:
    """Measure after a run. None if there can be no predictions: on JAX, and for trees."""
    iterations = speculative.iterations
    if not session.engine.predicts or any(i.tree for i in iterations):
        return None
    names = candidates(session.options.drafter, session.levels)
    last = session.levels[0][-1]
    drafted = [i for i in iterations if i.drafted and not i.draft_prefill and i.source[-1] != LOOKUP]
    if not drafted:  # nothing is known of the draft model's time
        names = [LOOKUP]
    t_draft = sum(i.drafting for i in drafted) / sum(i.drafted for i in drafted) if drafted else 0.0
    least, most = TIMING_SECONDS
    began = time.perf_counter()
    until = began + min(most, max(least, TIMING_SHARE * speculative.seconds))
    with working("predicting other settings", None, "call", delay=1) as bar:
        n_vocab = session.encoder.n_vocab
        texts_made = zip(speculative.inputs, speculative.tokens, strict=True)
        found = [places_of_lookups(x, new, n_vocab) for x, new in texts_made]
        t_lookup = (time.perf_counter() - began) / max(1, speculative.n_tokens)
        texts = []
        for x, sample, one in zip(speculative.inputs, speculative.samples, found, strict=True):
            asks = names != [LOOKUP]
            texts.append(Drafts(one, chances_by_place(session.model(last.roles[0]), x, sample, until) if asks else []))
        timed = time_windows(session, speculative, max(least, until - time.perf_counter()), bar.update)
    return Measured(names, texts, timed, t_lookup, t_draft)


def candidates(own: str, levels: list[list[DrafterSpec]]) -> list[str]:
    """ "model" -> ["model", "prompt_lookup", "prompt_lookup+model"]: the drafters that can be predicted without loading
    another model."""
    [*before, last], *inner = levels
    if not last.model or {spec.name for spec in before} - {LOOKUP}:
        return [LOOKUP]
    base = own.removeprefix(f"{LOOKUP}+")
    return [base, LOOKUP, *([] if inner else [f"{LOOKUP}+{base}"])]


def places_of_lookups(x: Sequence[int], new: Sequence[int], n_vocab: int) -> list[int]:  # [n], [N] -> [N]
    """For each new token's place: how many tokens of a prompt lookup the text continues with; -1 if it has none."""
    text = np.array([*x, *new])  # [n + N]
    lookup = prompt_lookup(n_vocab)
    found = []
    for n in range(len(x), len(text)):
        proposed = np.array(lookup(text[:n], min(len(text) - n - 1, max(ROWS) - 1) or 1).tokens, int)  # [k] or [0]
        differ = np.flatnonzero(proposed != text[n : n + len(proposed)])
        found.append(int(differ[0]) if len(differ) else len(proposed) or -1)
    return found


def chances_by_place(model: Callable, x: Sequence[int], sample: Sequence, until: float) -> list[float]:  # [n] -> [N]
    """The chance at each new place of a text that the model's draft is accepted there: as the run tells, as the model
    says if it is asked, and the mean of these at the places for which there is no time."""
    known: list[float | None] = []
    tokens: list[int] = []
    q: list[float] = []
    for i in sample:
        chances = [*i.alpha] if LOOKUP not in i.source else []
        known += [*chances, *[None] * (len(i.tokens) - len(chances))]
        tokens += i.tokens
        q += i.q
    if None in known:
        text = np.array([*x, *tokens])  # [n + N]
        rows = rows_of(model, text, len(tokens), until)
        asked = [min(1.0, float(p[token]) / q_i) for p, token, q_i in zip(rows, tokens, q, strict=False)]
        asked += [float(np.mean(asked))] * (len(tokens) - len(asked))
        known = [chance if a is None else a for a, chance in zip(known, asked, strict=True)]
    return [min(1.0, chance) for chance in known]


def rows_of(model: Callable, text, N: int, until: float) -> Iterator[np.ndarray]:  # [n + N] -> N times [n_vocab]
    """A model's rows for the last N tokens of a text, in blocks, as those of a long text take much memory. The first
    block is computed in any case, another if it begins before the time `until`."""
    for end in range(len(text) - N, len(text), BLOCK):
        if end > len(text) - N and time.perf_counter() > until:
            return
        n_rows = min(BLOCK, len(text) - end)
        yield from model(text[: end + n_rows - 1], n_rows)


def time_windows(session: Session, speculative: Recorder, most: float, done: Callable) -> dict[int, float]:
    """Time windows of the target a few times, as long as `most` seconds allow -> {rows: seconds, or a part of them}."""
    network = session.models["target"]
    known = {i.drafted + 1 for i in speculative.iterations if not i.prefill}
    usual = max(known, default=1)
    text = [*speculative.inputs[0], *speculative.tokens[0]]
    x = np.array(text[: max(1, min(len(text), session.n_ctx) - max(ROWS))])  # [n], which the cache holds
    rows = [n for n in ROWS if n <= max(17, 2 * usual - 1) and n not in known and len(x) + n <= session.n_ctx]
    timed: list[tuple[int, float]] = []  # (rows, seconds)
    start = time.perf_counter()
    for n in [1, usual, *rows] * ROUNDS:
        unknown = n * timed[0][1] if timed else 0.0  # n rows take no longer than n calls for one
        expected = max((seconds for m, seconds in timed if m == n), default=unknown)
        if time.perf_counter() - start + expected > most:
            break
        timed.append((n, session.engine.window_seconds(network, x, n)))
        done(1)
    return costs_by_rows(timed)


def predict(
    autoregressive: Recorder, speculative: Recorder, prefill: float, rows: dict[int, float], measured: Measured
) -> tuple[dict[str, dict[int, float]], dict[int, float]]:
    """({drafter: {K: the speedup that it should bring}}, {K: β}), for each K up to the longest window that was timed.

    prefill: its seconds in the speculative run. rows: {rows: seconds of a call of the target} of both runs.
    """
    usual = max(rows.keys() & measured.timed.keys(), default=0)
    scale = rows[usual] / measured.timed[usual] if usual else 0.0  # a call of the loop over what was timed
    known = {n: scale * seconds for n, seconds in measured.timed.items() if scale} | rows
    window = line_through(known)
    own = sum(i.drafting + window(i.drafted + 1) for i in speculative.iterations)
    scale = (speculative.seconds - prefill) / own
    t_token = autoregressive.seconds / autoregressive.n_tokens
    predicted: dict[str, dict[int, float]] = {}
    beta = {K: window(K + 1) / rows[1] for K in range(1, max(known))}
    for name in measured.names if beta else []:
        predicted[name] = {}
        for K in beta:
            windows: dict[tuple[int, int], float] = defaultdict(float)
            for drafts in measured.texts:
                for sizes, n in windows_of(drafts, K, name).items():
                    windows[sizes] += n
            seconds = sum(n * (k * measured.t_draft + window(k + m + 1)) for (k, m), n in windows.items())
            n_windows = sum(windows.values())
            seconds += name.startswith(LOOKUP) * n_windows * measured.t_lookup
            most = speculative.n_tokens / n_windows  # tokens of a call
            predicted[name][K] = min(most, t_token * speculative.n_tokens / (prefill + scale * seconds))
    return predicted, beta


def windows_of(drafts: Drafts, K: int, drafter: str) -> dict[tuple[int, int], float]:
    """{(drafts of the model, drafts of the lookup): how many such windows are expected to cover a text}, with K."""
    N = len(drafts.n_matched)
    begins = [1.0] + [0.0] * N  # the chance that a window begins at each place
    windows: dict[tuple[int, int], float] = defaultdict(float)
    for place in range(N):
        k = min(K, N - place - 1)
        if drafter.startswith(LOOKUP) and drafts.n_matched[place] >= 0:
            windows[0, k] += begins[place]
            begins[place + min(drafts.n_matched[place], k) + 1] += begins[place]
            continue
        k = 0 if drafter == LOOKUP else k
        windows[k, 0] += begins[place]
        reached = begins[place]
        for n in range(k):  # the draft after n accepted ones is rejected
            begins[place + n + 1] += reached * (1 - drafts.chances[place + n])
            reached *= drafts.chances[place + n]
        begins[place + k + 1] += reached
    return windows
