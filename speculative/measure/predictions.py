"""Predictions of other lookaheads and drafters, from one run and short measurements after it.

The decoded tokens are known, so for another K it can be computed where each call of the target would begin and end. A
place is the position of a new token. At each place the run tells the chance that the draft model's token is accepted
there, or the draft model is asked now. A prompt lookup draws nothing: it is asked at each place, and the tokens that it
shares with the text are accepted. (Why min(1, p / q), not q / p: the text is fixed here. Given that a token came out,
the chance that it was the draft and was accepted is min(p, q) / q. Its mean over texts is Σ min(p, q).)

Windows of sizes that the run has not timed are timed now, in a fraction of the run's own time: only some blocks of the
network, if the engine can compute these alone.

A K that chooses itself is predicted by a replay: AutoK decides, by the margins and the chances at each place, and by a
clock that moves by the seconds of calls.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product, zip_longest
from typing import Any, NamedTuple

import numpy as np

from speculative.costs import costs_by_rows, line_through
from speculative.drafters import DRAFTERS
from speculative.drafters.base import DrafterSpec, always, until_unsure
from speculative.drafters.lookup import NAME as LOOKUP
from speculative.drafters.lookup import prompt_lookup
from speculative.engines.model import Call
from speculative.filters import margins
from speculative.lookahead import AutoK
from speculative.measure.decode import Recorder
from speculative.sampling import Proposal
from speculative.session import Session

BLOCK = 64  # rows of a model in one call
ROWS = (2, 3, 5, 9, 17, 33)  # rows of the windows that are timed, if the run has not timed them
MIN_CALLS = 3  # calls of the run, whose mean counts as the time of a window of this size
ROUNDS = 6  # times that each size is timed
TIMING_SHARE = 0.18  # of the speculative decode's time, that all this may take
TIMING_SECONDS = (0.05, 0.9)  # that it may take in any case, and at most
SHIFTS = (0.0, 0.25, 0.5, 0.75)  # of the random numbers of a replay: the mean of four depends little on chance


class Drafts(NamedTuple):
    """What drafters would propose at the places of one text."""

    n_matched: list[int]  # accepted tokens of a prompt lookup; -1 if it proposes nothing
    lookup_margins: list[Sequence[float]]  # of the lookup's tokens
    chances: list[float]  # chance that the draft model's token is accepted; [] if there is no such model
    margins: list[float]  # of the draft model's token


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
    by_model = [i for i in iterations if i.drafted and not i.draft_prefill and i.source[-1] != LOOKUP]
    t_draft = sum(i.drafting for i in by_model) / sum(i.drafted for i in by_model) if by_model else 0.0
    names = candidates(session.options.drafter, session.levels) if by_model else [LOOKUP]
    least, most = TIMING_SECONDS
    began = time.perf_counter()
    until = began + min(most, max(least, TIMING_SHARE * speculative.seconds))
    texts_made = zip(speculative.inputs, speculative.tokens, strict=True)
    lookups = [places_of_lookups(x, new, session.encoder.n_vocab) for x, new in texts_made]
    t_lookup = (time.perf_counter() - began) / max(1, speculative.n_tokens)
    model = session.model(session.levels[0][-1].roles[0]) if names != [LOOKUP] else None
    runs = zip(speculative.inputs, speculative.samples, strict=True)
    of_model = [chances_by_place(model, x, sample, until) if model else ([], []) for x, sample in runs]
    texts = [Drafts(*lookup, *drafts) for lookup, drafts in zip(lookups, of_model, strict=True)]
    timed = time_windows(session, speculative, max(least, until - time.perf_counter()))
    return Measured(names, texts, timed, t_lookup, t_draft)


def candidates(own: str, levels: list[list[DrafterSpec]]) -> list[str]:
    """ "model" -> ["model", "prompt_lookup", "prompt_lookup+model"]: the drafters that can be predicted without loading
    another model."""
    [*before, last], *inner = levels
    if not last.model or {spec.name for spec in before} - {LOOKUP}:
        return [LOOKUP]
    base = own.removeprefix(f"{LOOKUP}+")
    return [base, LOOKUP, *([] if inner else [f"{LOOKUP}+{base}"])]


def places_of_lookups(x: Sequence[int], new: Sequence[int], n_vocab: int) -> tuple:  # [n], [N] -> [N], [N]
    """For each new token's place: how many tokens of a prompt lookup the text continues with, -1 if it has none; and
    its margins."""
    text = np.array([*x, *new])  # [n + N]
    lookup = prompt_lookup(n_vocab)
    found = []
    sure = []
    for n in range(len(x), len(text)):
        proposal = lookup(text[:n], min(len(text) - n - 1, max(ROWS) - 1) or 1)
        proposed = np.array(proposal.tokens, int)  # [k] or [0]
        differ = np.flatnonzero(proposed != text[n : n + len(proposed)])
        found.append(int(differ[0]) if len(differ) else len(proposed) or -1)
        sure.append(proposal.margins)
    return found, sure


def chances_by_place(model: Any, x: Sequence[int], sample: Sequence, until: float) -> tuple:  # [n] -> [N], [N]
    """The chance at each new place of a text that the model's draft is accepted there: as the run tells, as the model
    says if it is asked, and the mean of these at the places for which there is no time; and the draft's margin. The
    model is asked for blocks of rows, as those of a long text take much memory; for one block in any case, and for
    another if it would end in time."""
    chances = [[] if LOOKUP in i.source else i.alpha for i in sample]  # of the tested drafts; no more than the tokens
    known = [a for i, tested in zip(sample, chances, strict=True) for _, a in zip_longest(i.tokens, tested)]
    tokens = [token for i in sample for token in i.tokens]
    q = [q_i for i in sample for q_i in i.q]
    text = np.array([*x, *tokens])  # [n + N]
    asked: list[float] = []
    sure: list[float] = []
    seconds = 0.0  # of the last block
    while len(asked) < len(tokens) and (not asked or time.perf_counter() + seconds < until):
        began = time.perf_counter()
        block = slice(len(asked), len(asked) + BLOCK)
        n_rows = len(tokens[block])
        rows = model(text[: len(x) + len(asked) + n_rows - 1], n_rows)  # [n_rows, n_vocab]
        drawn = zip(rows, tokens[block], q[block], strict=True)
        asked += [1.0 if p[token] >= q_i else float(p[token]) / q_i for p, token, q_i in drawn]
        sure += margins(model.last_logits)
        seconds = time.perf_counter() - began
    rest = len(tokens) - len(asked)
    asked += [float(np.mean(asked))] * rest
    sure += [float(np.mean(sure))] * rest
    return [min(1.0, a if chance is None else chance) for chance, a in zip(known, asked, strict=True)], sure


def time_windows(session: Session, speculative: Recorder, most: float) -> dict[int, float]:
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
    return costs_by_rows(timed)


def predict(
    autoregressive: Recorder, speculative: Recorder, prefill: float, costs: dict[int, float], measured: Measured
) -> dict[str, dict]:
    """{"predicted": {drafter: {K: the speedup that it should bring}}, "predicted_auto": {drafter: that of --K auto},
    "window_beta": {K: β}}, for each K up to the longest window that was timed; K is a text, as in JSON.

    prefill: its seconds in the speculative run. costs: {rows: seconds of a call of the target}, of one row and of those
    of the run.
    """
    calls = Counter(i.drafted + 1 for i in speculative.iterations if not i.prefill)
    rows = {n: seconds for n, seconds in costs.items() if calls[n] >= MIN_CALLS or n == 1}
    both = rows.keys() & measured.timed.keys()
    scale = sum(map(rows.get, both)) / sum(map(measured.timed.get, both)) if both else 0.0  # the loop's time of a call
    timed = {n: scale * seconds for n, seconds in measured.timed.items() if scale and n not in rows}
    for n, seconds in timed.items():  # between the times of fewer and of more rows in the run
        fewer = [t for m, t in rows.items() if m < n]
        more = [t for m, t in rows.items() if m > n]
        timed[n] = min([max([seconds, *fewer]), *more])
    known = rows | timed
    window = line_through(known)
    own = sum(i.drafting + window(i.drafted + 1) for i in speculative.iterations)
    scale = (speculative.seconds - prefill) / own
    t_text = speculative.n_tokens * autoregressive.seconds / autoregressive.n_tokens
    Ks = range(1, max(known))
    predicted: dict[str, dict[str, float]] = {name: {} for name in measured.names if Ks}
    for name, K in product(predicted, Ks):
        windows = sum((windows_of(drafts, K, name) for drafts in measured.texts), Counter())
        seconds = sum(n * (k * measured.t_draft + window(k + m + 1)) for (k, m), n in windows.items())
        n_windows = sum(windows.values())
        seconds += name.startswith(LOOKUP) * n_windows * measured.t_lookup
        most = speculative.n_tokens / n_windows  # tokens of a call
        predicted[name][str(K)] = min(most, t_text / (prefill + scale * seconds))
    auto = {}
    for name in predicted:
        seconds = sum(replay(drafts, name, window, measured, u) for drafts, u in product(measured.texts, SHIFTS))
        auto[name] = t_text / (prefill + scale * seconds / len(SHIFTS))
    beta = {str(K): window(K + 1) / rows[1] for K in Ks}
    return {"predicted": predicted, "predicted_auto": auto, "window_beta": beta}


def windows_of(drafts: Drafts, K: int, drafter: str) -> Counter:
    """{(drafts of the model, drafts of the lookup): how many such windows are expected to cover a text}, with K."""
    N = len(drafts.n_matched)
    begins = [1.0] + [0.0] * N  # the chance that a window begins at each place
    windows: Any = Counter()  # of floats
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


class Target:
    """A target without a network: a call moves a clock by its seconds."""

    def __init__(self, window: Callable):
        self.window = window
        self.now = 0.0
        self.log: deque[Call] = deque(maxlen=1)

    def __call__(self, x, n_rows: int) -> None:
        self.log.append(Call(self.now, self.window(n_rows), n_rows, n_rows))
        self.now += self.window(n_rows)


def replay(drafts: Drafts, drafter: str, window: Callable, measured: Measured, shift: float) -> float:
    """Return the seconds in which this drafter with --K auto should decode a text. shift: of the random numbers.

    A model that has drafted another token than the text's goes on with a text of its own. It is about as sure of that
    as it is at the places where it agrees with the target.
    """
    N = len(drafts.n_matched)
    u = (np.random.default_rng(0).random(len(drafts.chances)) + shift) % 1  # [N]
    right = u < drafts.chances  # [N], whether the text's token is drafted
    agreed = np.array(drafts.margins)[right]  # [n_agreed]
    target = Target(window)

    def by_lookup(place: int) -> tuple[int, list[float]]:  # -> the number of right drafts, margins
        return drafts.n_matched[place], [*drafts.lookup_margins[place]]

    def by_model(place: int) -> tuple[int, list[float]]:
        n = [*right[place:], False].index(False)
        return n, [*drafts.margins[place : place + n + 1], *np.resize(np.roll(agreed, -place), AutoK.K_max)]

    def draft(drafts_at: Callable, seconds: float, x, k: int, go_on: Callable = always) -> Proposal:
        n_right, sure = drafts_at(len(x) - 1)
        n = until_unsure(sure[:k], go_on)
        target.now += n * seconds
        return Proposal([i < n_right for i in range(n)], (), margins=sure[:n])

    names = [name.partition("/")[0] for name in drafter.split("+")]
    how = {True: (by_lookup, measured.t_lookup), False: (by_model, measured.t_draft)}
    parts = [partial(draft, *how[name == LOOKUP]) for name in names]
    auto = AutoK([DRAFTERS[name].scale for name in names], lambda: target.now)
    auto.measure(target, parts, [0], max(ROWS))
    propose = auto.drafter_of(parts, target)
    target.now = 0.0  # what was measured does not count
    x = [0]  # [1 + n], after n tokens of the text
    while len(x) <= N:
        proposal = propose(x, min(auto.K_max, N - len(x)))
        target(x, len(proposal.tokens) + 1)
        x += [0] * (sum(proposal.tokens) + 1)
    return target.now
