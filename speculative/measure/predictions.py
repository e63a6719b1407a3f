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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from speculative.costs import costs_by_rows, line_through
from speculative.drafters import DRAFTERS
from speculative.drafters.base import DrafterSpec
from speculative.filters import margins_of
from speculative.measure.record import Predictions
from speculative.measure.simulate import KnownText, Prices, SimulatedText, Simulation
from speculative.measure.turns import Record
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


class Measured(NamedTuple):
    """What predictions need beside the run."""

    drafters: Mapping[str, Sequence[DrafterSpec]]  # that are predicted: of a+b those of a and of b
    texts: Sequence[KnownText]
    timed: dict[int, float]  # {rows: seconds of a call of the target, or of a part of it}
    by_text_seconds: float  # of a proposal of a drafter without a model
    draft_seconds: float  # of a token of the draft model


# ---- After the run ---------------------------------------------------------------------------------------------------


def measure(session: Session, speculative: Record) -> Measured | None:
    """Measure after a run. None if there can be no predictions: on JAX, of a batch, and for trees."""
    plan = session.plan
    if not session.engine.predicts or plan.batch > 1 or plan.tree:
        return None
    least, most = TIMING_SECONDS
    seconds = min(most, max(least, TIMING_SHARE * speculative.seconds))
    until = time.perf_counter() + seconds
    draft_seconds = seconds_of_drafts(speculative.iterations)
    has_drafted = any(is_by_model(step) and not step.draft_prefill for step in speculative.iterations)
    drafters = candidates(plan.levels, has_drafted)
    all_specs = chain(*drafters.values())
    texts = [*known_texts(session, speculative, until if has_model(all_specs) else None)]
    by_text_seconds = time_by_text(texts[0])
    rest = until - time.perf_counter()
    timed = time_windows(session, speculative, max(least, rest))
    return Measured(drafters, texts, timed, by_text_seconds, draft_seconds)


def seconds_of_drafts(steps: Sequence[TextStep]) -> float:
    """The seconds of a token of the draft model, 0 if it has drafted none."""
    seconds = 0.0
    n_drafts = 0
    for step in steps:
        if is_by_model(step) and not step.draft_prefill:
            seconds += step.drafting
            n_drafts += step.drafted
    return seconds / n_drafts if n_drafts else 0.0


def is_by_model(step: TextStep) -> bool:
    """Whether the drafts of a step, if it has any, are those of a model."""
    name = step.source[-1] if step.source else ""
    return step.drafted > 0 and not (name in DRAFTERS and DRAFTERS[name].by_text)


def candidates(levels: Sequence[Sequence[DrafterSpec]], has_drafted: bool) -> dict[str, list[DrafterSpec]]:
    """The drafters that can be predicted without loading another model: the run's own model, those that read the text
    alone, and both. has_drafted: whether the model has."""
    *before, last = levels[0]
    by_text = {spec.name: [spec] for spec in DRAFTERS.values() if spec.by_text}
    if not has_drafted or not last.has_model or not all(spec.by_text for spec in before):
        return by_text
    own = last.name
    for specs in levels[1:]:
        names = [spec.name for spec in specs]
        own += "/" + "+".join(names)
    drafters = {own: [last], **by_text}
    if len(levels) == 1:
        for name, specs in by_text.items():
            drafters[f"{name}+{own}"] = [*specs, last]
    return drafters


def has_model(specs: Iterable[DrafterSpec]) -> bool:
    return any(spec.has_model for spec in specs)


def known_texts(session: Session, speculative: Record, until: float | None) -> Iterator[KnownText]:
    """Yield the texts of a run. until: the time up to which the draft model may be asked; None if no drafter has a
    model."""
    texts = zip(speculative.inputs, speculative.tokens, speculative.samples, strict=True)
    for x, new, steps in texts:
        if until is None:
            yield KnownText(x, new)
            continue
        last = session.plan.levels[0][-1]
        model = session.model(last.roles[0])
        yield KnownText(x, new, *chances_by_place(model, x, steps, until))


def chances_by_place(model: Any, x, steps: Sequence[TextStep], until: float) -> tuple:  # [n] -> [N], [N]
    """The chance at each new place of a text that the model's draft is accepted there, and the draft's margin.

    The run tells the chance, or the model if it is asked; at places for which there is no time it is the mean of these.
    """
    chances, margins = ask(model, x, steps, until)
    N = sum(len(step.tokens) for step in steps)
    for numbers in (chances, margins):
        mean = float(np.mean(numbers))
        numbers += [mean] * (N - len(numbers))
    place = 0
    for step in steps:
        tested = step.alpha if is_by_model(step) else []  # of the tested drafts; no more than the tokens
        chances[place : place + len(tested)] = tested
        place += len(step.tokens)
    return [min(1.0, chance) for chance in chances], margins


def ask(model: Any, x, steps: Sequence[TextStep], until: float) -> tuple:  # [n] -> [n_asked], [n_asked]
    """The chances and margins that the model tells, if it is asked about blocks of rows, as those of a long text take
    much memory: about a block in any case, and another if that would end in time."""
    tokens = [token for step in steps for token in step.tokens]  # [N]
    q = [q_i for step in steps for q_i in step.q]  # [N]
    text = np.array([*x, *tokens])  # [n + N]
    chances: list[float] = []
    margins: list[float] = []
    seconds = 0.0  # of the last block
    for first in range(0, len(tokens), BLOCK):
        began = time.perf_counter()
        if chances and began + seconds >= until:
            break
        end = min(first + BLOCK, len(tokens))
        read = text[: len(x) + end - 1]
        rows = model(read, end - first)  # [n_rows, n_vocab]
        for place, p in enumerate(rows, start=first):
            p_i = float(p[tokens[place]])
            chances.append(1.0 if p_i >= q[place] else p_i / q[place])
        margins += margins_of(model.last_logits)
        seconds = time.perf_counter() - began
    return chances, margins


def time_by_text(text: KnownText) -> float:
    """The seconds of a proposal of the slowest drafter that reads the text alone."""
    x = np.array([*text.x, *text.new])  # [n + N]
    seconds = []
    for spec in DRAFTERS.values():
        if spec.by_text:
            draft = spec.by_text(int(x.max()) + 1)
            began = time.perf_counter()
            draft(x, max(ROWS) - 1)
            seconds.append(time.perf_counter() - began)
    return max(seconds)


def time_windows(session: Session, speculative: Record, most: float) -> dict[int, float]:
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
    sizes = [1, longest]
    for rows in ROWS:
        if rows <= max(17, 2 * longest - 1) and rows not in in_run:
            sizes.append(rows)
    return [rows for rows in sizes if rows <= room]


def expected_seconds(rows: int, timed: Sequence[tuple[int, float]]) -> float:
    """The longest that such a window took; n rows take no longer than n calls for one."""
    same = [seconds for n, seconds in timed if n == rows]
    if same:
        return max(same)
    return rows * timed[0][1] if timed else 0.0


# ---- From the measurements to the speedups ---------------------------------------------------------------------------


class Grid(NamedTuple):
    """What all cells of the grid are computed from: a cell is the speedup of a drafter with a K."""

    texts: Sequence[SimulatedText]
    prices: Prices
    N: int  # tokens of the run
    autoregressive: float  # seconds of N tokens
    prefill: float  # seconds of the speculative run
    loop_factor: float  # seconds of the loop for a second of calls

    def speedup(self, specs: Sequence[DrafterSpec], K: int | str) -> float:
        """The speedup of one cell; K may be "auto"."""
        seconds, n_calls = mean_simulation(self.texts, self.prices, specs, K)
        most = self.N / n_calls  # tokens of a call
        return min(most, self.autoregressive / (self.prefill + self.loop_factor * seconds))


def predict(
    autoregressive: Record, speculative: Record, prefill: float, costs: dict[int, float], measured: Measured
) -> Predictions:
    """Predict the speedup of each drafter for some K up to the longest window that was timed, and for "auto"; K is a
    text, as in JSON.

    prefill: its seconds in the speculative run. costs: {rows: seconds of a call of the target}, of one row and of those
    of the run.
    """
    calls = Counter(step.drafted + 1 for step in speculative.iterations if not step.prefill)
    in_run = {rows: seconds for rows, seconds in costs.items() if calls[rows] >= MIN_CALLS or rows == 1}
    by_rows = in_run | in_the_loops_seconds(measured.timed, in_run)
    window = line_through(by_rows)
    usual_K = max(calls, key=calls.__getitem__, default=1) - 1
    longest = max(by_rows) - 1
    Ks = sorted({K for K in (*LOOKAHEADS, usual_K) if 0 < K <= longest})
    if not Ks:
        return Predictions({}, {})

    N = speculative.n_tokens
    in_calls = sum(step.drafting + window(step.drafted + 1) for step in speculative.iterations)
    grid = Grid(
        texts=[SimulatedText(text) for text in measured.texts],
        prices=Prices(window, measured.draft_seconds, measured.by_text_seconds),
        N=N,
        autoregressive=N * autoregressive.seconds / autoregressive.n_tokens,
        prefill=prefill,
        loop_factor=(speculative.seconds - prefill) / in_calls,
    )
    settings: list[int | str] = [*Ks, "auto"]
    predicted = {}
    for name, specs in measured.drafters.items():
        predicted[name] = {str(K): grid.speedup(specs, K) for K in settings}
    window_beta = {str(K): window(K + 1) / in_run[1] for K in Ks}
    return Predictions(predicted, window_beta)


def in_the_loops_seconds(timed: dict[int, float], in_run: dict[int, float]) -> dict[int, float]:
    """The seconds that windows take in the loop, from their times alone -> {rows: seconds}.

    A window that is timed alone is quicker than in the loop. So its time is multiplied by the factor between both, at
    the sizes that the run has too; and then kept between the run's times for fewer and for more rows. {} if the run has
    none of the sizes.
    """
    both = in_run.keys() & timed.keys()
    if not both:
        return {}
    in_loop = sum(in_run[rows] for rows in both)
    factor = in_loop / sum(timed[rows] for rows in both)
    scaled = {}
    for rows, seconds in timed.items():
        if rows in in_run or not factor:
            continue
        shorter = [t for n, t in in_run.items() if n < rows]  # seconds of calls with fewer rows
        longer = [t for n, t in in_run.items() if n > rows]
        at_least = max([factor * seconds, *shorter])
        scaled[rows] = min([at_least, *longer])
    return scaled


def mean_simulation(
    texts: Sequence[SimulatedText], prices: Prices, specs: Sequence[DrafterSpec], K: int | str
) -> tuple[float, float]:
    """The seconds of all texts and their calls of the target: means over several draws of the chances."""
    chances = [chance for text in texts for chance in text.given.chances]
    by_chance = has_model(specs) and any(0 < chance < 1 for chance in chances)
    n = max(1, min(SIMULATIONS, SIMULATED_TOKENS // len(chances))) if by_chance else 1
    seconds = 0.0
    n_calls = 0
    for text in texts:
        for i in range(n):
            simulation = Simulation(text, prices, shift=i / n)
            seconds_of_text, calls_of_text = simulation.decode(specs, K)
            seconds += seconds_of_text
            n_calls += calls_of_text
    return seconds / n, n_calls / n
