"""Predictions of other lookaheads and drafters, from one run and short measurements after it.

The decoded tokens are known. So the loop itself decodes them once more for each setting, in a millisecond: over a
target whose rows are the text, and drafters on a clock that moves by the seconds of calls. At each place the run tells
the chance that the draft model's token is accepted there, or the draft model is asked now. A prompt lookup is itself,
and so is a K that chooses itself. (Why min(1, p / q), not q / p: the text is fixed here. Given that a token came out,
the chance that it was the draft and was accepted is min(p, q) / q. Its mean over texts is Σ min(p, q).)

Windows of sizes that the run has not timed are timed now, in a fraction of the run's own time: only some blocks of the
network, if the engine can compute these alone.
"""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import product, zip_longest
from typing import Any, NamedTuple

import numpy as np

from speculative.costs import costs_by_rows, line_through
from speculative.drafters import DRAFTERS, FixedK
from speculative.drafters.base import DrafterSpec, always, until_unsure
from speculative.drafters.lookup import NAME as LOOKUP
from speculative.drafters.lookup import prompt_lookup
from speculative.engines.model import Call
from speculative.filters import margins, one_hot
from speculative.lookahead import AutoK
from speculative.measure.turns import Record
from speculative.sampling import Proposal, speculative_sampling
from speculative.session import Session

BLOCK = 64  # rows of a model in one call
LOOKAHEADS = (1, 2, 4, 8, 16, 32)  # that are predicted, beside the run's own and auto
ROWS = (2, 3, 5, 9, 17, 33)  # rows of the windows that are timed, if the run has not timed them
MIN_CALLS = 3  # calls of the run, whose mean counts as the time of a window of this size
ROUNDS = 6  # times that each size is timed
TIMING_SHARE = 0.18  # of the speculative decode's time, that all this may take
TIMING_SECONDS = (0.05, 0.9)  # that it may take in any case, and at most
REPLAYS = 4  # decodes of a setting if drafts are accepted by chance: their mean depends little on it


class Known(NamedTuple):
    """A text, and what is known of the draft model at each place of a new token."""

    x: Sequence[int]  # [n], the prompt
    new: Sequence[int]  # [N]
    chances: Sequence[float]  # [N], that the draft model's token is accepted; [] if there is no such model
    margins: Sequence[float]  # [N], of that token


class Measured(NamedTuple):
    """What predictions need beside the run."""

    names: list[str]  # of the drafters that are predicted
    texts: list[Known]
    timed: dict[int, float]  # {rows: seconds of a call of the target}
    t_lookup: float  # seconds of a prompt lookup
    t_draft: float  # seconds of a token of the draft model


def measure(session: Session, speculative: Record) -> Measured | None:
    """Measure after a run. None if there can be no predictions: on JAX, of a batch, and for trees."""
    iterations = speculative.iterations
    if not session.engine.predicts or session.plan.batch > 1 or any(i.tree for i in iterations):
        return None
    by_model = [i for i in iterations if i.drafted and not i.draft_prefill and i.source[-1] != LOOKUP]
    t_draft = sum(i.drafting for i in by_model) / sum(i.drafted for i in by_model) if by_model else 0.0
    names = candidates(session.options.drafter, session.plan.levels) if by_model else [LOOKUP]
    least, most = TIMING_SECONDS
    until = time.perf_counter() + min(most, max(least, TIMING_SHARE * speculative.seconds))
    model = session.model(session.plan.levels[0][-1].roles[0]) if names != [LOOKUP] else None
    texts = []
    for x, new, sample in zip(speculative.inputs, speculative.tokens, speculative.samples, strict=True):
        texts.append(Known(x, new, *(chances_by_place(model, x, sample, until) if model else ([], []))))
    began = time.perf_counter()
    prompt_lookup(session.encoder.n_vocab)([*texts[0].x, *texts[0].new], max(ROWS) - 1)
    t_lookup = time.perf_counter() - began
    timed = time_windows(session, speculative, max(least, until - time.perf_counter()))
    return Measured(names, texts, timed, t_lookup, t_draft)


def candidates(own: str, levels: Sequence[Sequence[DrafterSpec]]) -> list[str]:
    """ "model" -> ["model", "prompt_lookup", "prompt_lookup+model"]: the drafters that can be predicted without loading
    another model."""
    [*before, last], *inner = levels
    if not last.has_model or {spec.name for spec in before} - {LOOKUP}:
        return [LOOKUP]
    base = own.removeprefix(f"{LOOKUP}+")
    return [base, LOOKUP, *([] if inner else [f"{LOOKUP}+{base}"])]


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


def time_windows(session: Session, speculative: Record, most: float) -> dict[int, float]:
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
    autoregressive: Record, speculative: Record, prefill: float, costs: dict[int, float], measured: Measured
) -> dict[str, dict]:
    """{"predicted": {drafter: {K: the speedup that it should bring}}, "window_beta": {K: β}}, for some K up to the
    longest window that was timed, and for "auto"; K is a text, as in JSON.

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
    usual = max(calls, key=calls.__getitem__, default=1) - 1
    Ks = sorted({K for K in (*LOOKAHEADS, usual) if 0 < K < max(known)})
    predicted: dict[str, dict[str, float]] = {name: {} for name in measured.names if Ks}
    n = REPLAYS if any(0 < a < 1 for text in measured.texts for a in text.chances) else 1
    settings: Any = product(predicted, (*Ks, "auto"))
    for name, K in settings:
        decodes = [Replay(text, i / n, window, measured).decode(name, K) for text in measured.texts for i in range(n)]
        seconds, n_calls = (sum(column) / n for column in zip(*decodes, strict=True))
        most = speculative.n_tokens / n_calls  # tokens of a call
        predicted[name][str(K)] = min(most, t_text / (prefill + scale * seconds))
    return {"predicted": predicted, "window_beta": {str(K): window(K + 1) / rows[1] for K in Ks}}


class Replay:
    """A known text as a target: a call gives the text's tokens, and moves a clock by its seconds."""

    def __init__(self, known: Known, shift: float, window: Callable, measured: Measured):
        """shift: of the random numbers that decide where the draft model's token is the text's."""
        text = np.unique([*known.x, *known.new], return_inverse=True)[1]  # [n + N], tokens numbered anew: short rows
        self.text, self.n, self.N = text.tolist(), len(known.x), len(known.new)
        self.wrong = max(self.text) + 1  # in the place of all tokens that the text has not
        right = (np.random.default_rng(0).random(len(known.chances)) + shift) % 1 < known.chances  # [N]
        self.wrong_places = [*np.flatnonzero(~right).tolist(), self.N]
        self.margins = [*known.margins]
        self.agreed = 32 * np.array(known.margins)[right].tolist()  # [32 * n_agreed]
        self.window = window
        self.measured = measured
        self.now = 0.0
        self.log: deque[Call] = deque(maxlen=1)

    def rows(self, tokens: Sequence[int]) -> np.ndarray:  # [n] -> [n, n_vocab]
        return one_hot(tokens, self.wrong + 1)

    def __call__(self, x, n_last: int) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        self.log.append(Call(self.now, self.window(n_last), n_last, n_last))
        self.now += self.window(n_last)
        places = range(len(x) - n_last + 1, len(x) + 1)
        return self.rows([self.text[min(place, len(self.text) - 1)] for place in places])

    def by_lookup(self, x, k: int, go_on: Callable = always) -> Proposal:
        self.now += self.measured.t_lookup
        return prompt_lookup(self.wrong + 1)(x, k, go_on)

    def by_model(self, x, k: int, go_on: Callable = always) -> Proposal:
        """The draft model. After a token that is not the text's it goes on with a text of its own, and is about as sure
        of that as it is where it agrees with the target."""
        place = len(x) - self.n
        n_right = self.wrong_places[bisect_left(self.wrong_places, place)] - place
        sure = [*self.margins[place : place + n_right + 1], *self.agreed[place : place + k], *[0.0] * k][:k]
        m = until_unsure(sure, go_on)
        tokens = [*self.text[len(x) : len(x) + min(n_right, m)], *[self.wrong] * (m - n_right)]
        self.now += m * self.measured.t_draft
        return Proposal(tokens, [*self.rows(tokens)], margins=sure[:m])

    def decode(self, drafter: str, K: int | str) -> tuple[float, int]:
        """Decode the text -> seconds, and calls of the target."""
        names = [name.partition("/")[0] for name in drafter.split("+")]
        parts = [self.by_lookup if name == LOOKUP else self.by_model for name in names]
        x, rng = self.text[: self.n], np.random.default_rng(0)
        lookahead: Any = (
            FixedK(K) if isinstance(K, int) else AutoK([DRAFTERS[n].scale for n in names], lambda: self.now)
        )
        if K == "auto":
            lookahead.measure(self, parts, x, len(x) + max(ROWS))
        self.now = 0.0  # what was measured does not count
        draft = lookahead.drafter_of(parts, self)
        steps = [*speculative_sampling(x, draft, self, self.N, lookahead.K_max, rng)]
        return self.now, len(steps)
