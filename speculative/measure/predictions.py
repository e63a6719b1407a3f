"""Predictions of other lookaheads and drafters, from one run and short measurements after it.

The decoded tokens are known, so they are decoded once more for each setting (simulate.py). At each place the run tells
the chance that the draft model's token is accepted there, or the draft model is asked now. (Why min(1, p / q), not
q / p: the text is fixed here. Given that a token came out, the chance that it was the draft and was accepted is
min(p, q) / q. Its mean over texts is Σ min(p, q).)

Windows of sizes that the run has not timed are timed now, in a fraction of the run's own time: only some blocks of the
network, if the engine can compute these alone.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from speculative.costs import ByRows, costs_by_rows, line_through, seconds_of_a_draft
from speculative.drafters import DRAFTERS
from speculative.drafters.base import DrafterSpec
from speculative.filters import margins_of
from speculative.measure.record import Predictions
from speculative.measure.simulate import KnownText, Prices, Simulation
from speculative.measure.turns import TimedDecoder
from speculative.session import Session
from speculative.steps import TextStep

BLOCK = 64  # rows of a model in one call
LOOKAHEADS = (1, 2, 4, 8, 16, 32)  # that are predicted, beside the run's own and auto
ROWS = (2, 3, 5, 9, 17, 33)  # rows of the windows that are timed, if the run has not timed them
MIN_CALLS = 3  # calls of the run, whose mean counts as the time of a window of this size
ROUNDS = 6  # times that each size is timed
TIMING_SHARE = 0.18  # of the speculative decode's time, that all this may take
TIMING_SECONDS = (0.05, 0.9)  # that it may take in any case, and at most
SIMULATIONS = 4  # decodes of a setting if drafts are accepted by chance: their mean depends little on it
SIMULATED_TOKENS = 800  # tokens of all these decodes, if the text is long


Specs = list[DrafterSpec]  # of a+b those of a and of b


class Measured(NamedTuple):
    """What predictions need beside the run."""

    drafters: dict[str, Specs]  # that are predicted
    texts: Sequence[KnownText]
    timed: ByRows  # {rows: seconds of a call of the target, or of a part of it}
    by_text_seconds: float  # of a proposal of a drafter without a model
    draft_seconds: float  # of a token of the draft model


# ---- After the run ---------------------------------------------------------------------------------------------------


def measure(session: Session, speculative: TimedDecoder) -> Measured | None:
    """Measure after a run. None if there can be no predictions: on JAX, of a batch, and for trees."""
    plan = session.plan
    if not session.engine.predicts or plan.batch > 1 or plan.tree:
        return None
    least, most = TIMING_SECONDS
    seconds = min(most, max(least, TIMING_SHARE * speculative.seconds))
    until = time.perf_counter() + seconds
    by_model = [step for step in speculative.iterations if is_by_model(step) and not step.draft_prefill]
    drafters = candidates(plan.levels, bool(by_model))
    asks_model = has_model(chain(*drafters.values()))
    texts = known_texts(session, speculative, until if asks_model else None)
    by_text_seconds = time_by_text(texts[0])
    rest = until - time.perf_counter()
    timed = time_windows(session, speculative, max(least, rest))
    return Measured(drafters, texts, timed, by_text_seconds, seconds_of_a_draft(by_model))


def is_by_model(step: TextStep) -> bool:
    """Whether the drafts of a step, if it has any, are those of a model."""
    name = step.source[-1] if step.source else ""
    return step.drafted > 0 and not (name in DRAFTERS and DRAFTERS[name].by_text)


def candidates(levels: Sequence[Sequence[DrafterSpec]], has_drafted: bool) -> dict[str, Specs]:
    """The drafters that can be predicted without loading another model: the run's own model, those that read the text
    alone, and both. has_drafted: whether the model has."""
    *before, last = levels[0]
    by_text = {spec.name: [spec] for spec in DRAFTERS.values() if spec.by_text}
    if not has_drafted or not last.has_model or not all(spec.by_text for spec in before):
        return by_text
    own = last.name
    for specs in levels[1:]:
        own += "/" + "+".join(spec.name for spec in specs)
    drafters = {own: [last], **by_text}
    if len(levels) == 1:
        for name, specs in by_text.items():
            drafters[f"{name}+{own}"] = [*specs, last]
    return drafters


def has_model(specs: Iterable[DrafterSpec]) -> bool:
    return any(spec.has_model for spec in specs)


def known_texts(session: Session, speculative: TimedDecoder, until: float | None) -> list[KnownText]:
    """Return the texts of a run. until: the time up to which the draft model may be asked; None if no drafter has a
    model."""
    texts = zip(speculative.inputs, speculative.samples, strict=True)
    if until is None:
        return [KnownText(x, sample.tokens) for x, sample in texts]
    last = session.plan.levels[0][-1]
    model = session.model(last.roles[0])
    known = []
    for x, sample in texts:
        chances, margins = chances_by_place(model, x, sample.iterations, until)
        known.append(KnownText(x, sample.tokens, chances, margins))
    return known


def chances_by_place(model: Any, x, steps: Sequence[TextStep], until: float) -> tuple:  # [n] -> [N], [N]
    """The chance at each new place of a text that the model's draft is accepted there, and the draft's margin.

    The run tells the chance, or the model if it is asked; at places for which there is no time it is the mean of these.
    """
    tokens = [token for step in steps for token in step.tokens]  # [N]
    q = [q_i for step in steps for q_i in step.q]  # [N]
    asked, margins = ask(model, x, tokens, q, until)
    chances = padded(asked, len(tokens))
    place = 0
    for step in steps:
        tested = step.alpha if is_by_model(step) else []  # of the tested drafts; no more than the tokens
        chances[place : place + len(tested)] = tested
        place += len(step.tokens)
    return [min(1.0, chance) for chance in chances], padded(margins, len(tokens))


def padded(numbers: list[float], N: int) -> list[float]:
    """Return N numbers: these, and their mean in the place of the others."""
    return numbers + [float(np.mean(numbers))] * (N - len(numbers))


def ask(model: Any, x, tokens, q, until: float) -> tuple:
    """The chances and margins that the model tells of the tokens after x [n], whose probabilities for the target are q.

    It is asked about blocks of rows, as those of a long text take much memory: about one in any case, and about the
    next if that would end in time.
    """
    text = np.array([*x, *tokens])  # [n + N]
    chances: list[float] = []
    margins: list[float] = []
    seconds = 0.0  # of the last block
    for first in range(0, len(tokens), BLOCK):
        began = time.perf_counter()
        if chances and began + seconds >= until:
            break
        block = tokens[first : first + BLOCK]
        end = len(x) + first + len(block)
        rows = model(text[: end - 1], len(block))  # [n_rows, n_vocab]
        for p, token, q_i in zip(rows, block, q[first:], strict=False):
            p_i = float(p[token])
            chances.append(1.0 if p_i >= q_i else p_i / q_i)
        margins += margins_of(model.last_logits)
        seconds = time.perf_counter() - began
    return chances, margins


def time_by_text(text: KnownText) -> float:
    """The seconds of a proposal of the slowest drafter that reads the text alone."""
    x = np.array(text.tokens)  # [n + N]
    seconds = []
    for spec in DRAFTERS.values():
        if spec.by_text:
            draft = spec.by_text(text.n_vocab)
            began = time.perf_counter()
            draft(x, max(ROWS) - 1)
            seconds.append(time.perf_counter() - began)
    return max(seconds)


def time_windows(session: Session, speculative: TimedDecoder, most: float) -> ByRows:
    """Time windows of the target a few times, as long as `most` seconds allow -> {rows: seconds, or a part of them}."""
    network = session.models["target"]
    in_run = {step.drafted + 1 for step in speculative.iterations if not step.prefill}
    text = [*speculative.inputs[0], *speculative.tokens[0]]
    n = min(len(text), session.n_ctx) - max(ROWS)
    x = np.array(text[: max(1, n)])  # [n], which the cache holds
    timed: list[tuple[int, float]] = []  # (rows, seconds)
    start = time.perf_counter()
    for rows in sizes_to_time(in_run, session.n_ctx - len(x)) * ROUNDS:
        spent = time.perf_counter() - start
        if spent + expected_seconds(rows, timed) > most:
            break
        seconds = session.engine.window_seconds(network, x, rows)
        timed.append((rows, seconds))
    return costs_by_rows(timed)


def sizes_to_time(in_run: set[int], room: int) -> list[int]:
    """The rows of windows that are timed: one row and the run's longest window, by which the times are compared with
    the run's, and sizes that it has not, up to about twice its own. room: the most that fit into the context."""
    longest = max(in_run, default=1)
    most = min(room, max(17, 2 * longest - 1))
    others = [rows for rows in ROWS if rows not in in_run and rows <= most]
    return [rows for rows in (1, longest) if rows <= room] + others


def expected_seconds(rows: int, timed: Sequence[tuple]) -> float:
    """The longest that such a window took; n rows take no longer than n calls for one."""
    same = [seconds for n, seconds in timed if n == rows]
    if same:
        return max(same)
    return rows * timed[0][1] if timed else 0.0


# ---- From the measurements to the speedups ---------------------------------------------------------------------------


class Conditions(NamedTuple):
    """What all predictions are computed from."""

    texts: Sequence[KnownText]
    prices: Prices
    N: int  # tokens of the run
    autoregressive: float  # seconds of N tokens
    prefill: float  # seconds of the speculative run
    loop_seconds: float  # for a second of calls

    def speedup(self, specs: Specs, K: int | str) -> float:
        """The speedup of a drafter with a K, which may be "auto"."""
        seconds, n_calls = self.simulated(specs, K)
        most = self.N / n_calls  # tokens of a call
        return min(most, self.autoregressive / (self.prefill + self.loop_seconds * seconds))

    def simulated(self, specs: Specs, K: int | str) -> tuple[float, float]:
        """The seconds of all texts and their calls of the target: means over several draws of the chances."""
        chances = [chance for text in self.texts for chance in text.chances]
        n_draws = 1
        if has_model(specs) and any(0 < chance < 1 for chance in chances):
            n_draws = max(1, min(SIMULATIONS, SIMULATED_TOKENS // len(chances)))
        seconds = 0.0
        n_calls = 0
        for text in self.texts:
            for draw in range(n_draws):
                simulation = Simulation(text, self.prices, shift=draw / n_draws)
                took, calls = simulation.decode(specs, K)
                seconds += took
                n_calls += calls
        return seconds / n_draws, n_calls / n_draws


def predict(
    autoregressive: TimedDecoder, speculative: TimedDecoder, prefill: float, costs: ByRows, measured: Measured
) -> Predictions:
    """Predict the speedup of each drafter: for "auto", and for each of the lookaheads() up to the longest window that
    was timed. The Ks are texts, as in JSON.

    prefill: its seconds in the speculative run. costs: {rows: seconds of a call of the target}, of one row and of those
    of the run.
    """
    steps = speculative.iterations
    n_calls = Counter(step.drafted + 1 for step in steps if not step.prefill)  # {rows: calls of the run}
    in_run = {rows: seconds for rows, seconds in costs.items() if n_calls[rows] >= MIN_CALLS or rows == 1}
    by_rows = in_run | in_the_loop(measured.timed, in_run)
    Ks = lookaheads(n_calls, max(by_rows))
    if not Ks:
        return Predictions({}, {})

    # The run's calls, at the prices of the predictions: what the run took beyond these was spent between its calls.
    window = line_through(by_rows)
    in_calls = sum(step.drafting + window(step.drafted + 1) for step in steps)
    N = speculative.n_tokens
    conditions = Conditions(
        texts=measured.texts,
        prices=Prices(window, measured.draft_seconds, measured.by_text_seconds),
        N=N,
        autoregressive=N * autoregressive.seconds / autoregressive.n_tokens,
        prefill=prefill,
        loop_seconds=(speculative.seconds - prefill) / in_calls,
    )
    settings: list[int | str] = [*Ks, "auto"]
    predicted = {}
    for name, specs in measured.drafters.items():
        predicted[name] = {str(K): conditions.speedup(specs, K) for K in settings}
    window_beta = {str(K): window(K + 1) / in_run[1] for K in Ks}
    return Predictions(predicted, window_beta)


def lookaheads(n_calls: Counter, most_rows: int) -> list[int]:
    """The Ks that are predicted: LOOKAHEADS and the run's most frequent K, if their windows have no more rows."""
    usual_K = max(n_calls, key=n_calls.__getitem__, default=1) - 1
    return sorted(K for K in {*LOOKAHEADS, usual_K} if 0 < K < most_rows)


def in_the_loop(timed: ByRows, in_run: ByRows) -> ByRows:
    """Return {rows: seconds of a window in the loop} of the sizes that the run lacks; {} if no size was timed in both.

    timed: {rows: seconds of a window alone}, which is faster than in the loop. in_run: {rows: seconds in the loop}.
    """
    factor = loop_factor(timed, in_run)
    others = timed.keys() - in_run.keys() if factor else ()
    return {rows: kept_between(factor * timed[rows], rows, in_run) for rows in others}


def loop_factor(timed: ByRows, in_run: ByRows) -> float:
    """The seconds in the loop for a second of the same windows alone; 0 if the run has none of the sizes."""
    both = in_run.keys() & timed.keys()
    alone = sum(timed[rows] for rows in both)
    return sum(in_run[rows] for rows in both) / alone if alone else 0.0


def kept_between(seconds: float, rows: int, in_run: ByRows) -> float:
    """The seconds of a window, kept between the run's times for fewer and for more rows."""
    shorter = [in_run[n] for n in in_run if n < rows]
    longer = [in_run[n] for n in in_run if n > rows]
    at_least = max([seconds, *shorter])
    return min([at_least, *longer])
