"""Short measurements after a run, which predictions.py needs beside the run's figures.

The draft model is asked for the chances of drafts that the run has not tested, and windows of sizes that the run has
not timed are timed now: only some blocks of the network, if the engine can compute these alone. Both take a fraction of
the run's own time.
"""

import time
from collections.abc import Sequence

import numpy as np

from speculative.drafters import DRAFTERS
from speculative.drafters.base import Drafter
from speculative.engines.model import Model
from speculative.filters import margins_of
from speculative.lookahead.costs import ByRows, costs_by_rows
from speculative.report.figures import seconds_of_a_draft
from speculative.report.predictions import Measured
from speculative.report.record import DecoderRecord
from speculative.report.simulate import KnownText
from speculative.run.score import BLOCK
from speculative.run.session import Session
from speculative.run.steps import TextStep

ROWS = (2, 3, 5, 9, 17, 33)  # rows of the windows that are timed, if the run has not timed them
N_TIMED = 6  # times that each size is timed
TIMING_SHARE = 0.18  # the share of the speculative decode's time that all this may take
TIMING_SECONDS = (0.05, 0.9)  # seconds that it may take in any case, and at most


def measure(session: Session, inputs: Sequence, speculative: DecoderRecord) -> Measured | None:
    """Measure after a run. None if there can be no predictions: on JAX, of a batch, and for trees.

    inputs: the tokens of each text's prompt.
    """
    plan = session.plan
    if not session.engine.predicts or plan.batch > 1 or plan.tree:
        return None
    until = time.perf_counter() + np.clip(TIMING_SHARE * speculative.seconds, *TIMING_SECONDS)
    steps = speculative.steps
    by_model = [step for step in steps if is_by_model(step) and not step.draft_prefill]

    # Drafts: the chances of the model that is among the drafters, and the time of those that read the text alone.
    drafters = candidates(plan.levels, bool(by_model))
    model = drafting_model(session, drafters)
    texts = []
    for x, sample in zip(inputs, speculative.samples, strict=True):
        chances, margins = chances_by_position(model, x, sample.iterations, until) if model else ([], [])
        texts.append(KnownText(x, sample.tokens, chances, margins))
    by_text_seconds = time_by_text(texts[0])

    # Windows of other sizes than the run's.
    rest = max(TIMING_SECONDS[0], until - time.perf_counter())
    in_run = {step.drafted + 1 for step in steps if not step.prefill}
    text = [*inputs[0], *speculative.tokens[0]]
    timed = time_windows(session, text, in_run, rest)
    return Measured(drafters, texts, timed, by_text_seconds, seconds_of_a_draft(by_model) or 0.0)


def drafting_model(session: Session, drafters: dict[str, list[Drafter]]) -> Model | None:
    """Return the model that drafts for the target, if one of these drafters has it."""
    has_model = any(spec.has_model for specs in drafters.values() for spec in specs)
    return session.model(session.plan.levels[0][-1].role) if has_model else None


# ---- Drafts ----------------------------------------------------------------------------------------------------------


def is_by_model(step: TextStep) -> bool:
    """Return True if a step has drafts, and a model has drafted them."""
    name = step.source[-1] if step.source else ""
    return step.drafted > 0 and not (name in DRAFTERS and DRAFTERS[name].by_text)


def candidates(levels: Sequence[Sequence[Drafter]], has_drafted: bool) -> dict[str, list[Drafter]]:
    """Return the drafters that can be predicted without loading another model: the run's own model, those that read the
    text alone, and both. has_drafted: whether the model has."""
    by_text = {spec.name: [spec] for spec in DRAFTERS.values() if spec.by_text}
    outermost, *inside = levels
    *before, last = outermost
    is_alone = all(spec.by_text for spec in before)
    if not has_drafted or not last.has_model or not is_alone:
        return by_text
    inner_names = ["+".join(spec.name for spec in specs) for specs in inside]
    own = "/".join([last.name, *inner_names])
    drafters = {own: [last], **by_text}
    if not inside:
        for name, specs in by_text.items():
            drafters[f"{name}+{own}"] = [*specs, last]
    return drafters


def chances_by_position(model: Model, x, steps: Sequence[TextStep], until: float) -> tuple:  # [n] -> [N], [N]
    """Return the chance at each new position of a text that the model's draft is accepted, and the draft's margin.

    The run tells the chance of a draft that it has tested. The model is asked about the others, up to the time `until`;
    after it the mean of the model's chances stands for the rest.

    Why min(1, p / q), not q / p: the text is fixed here. Given that a token came out, the chance that it was the draft
    and was accepted is min(p, q) / q. Its mean over texts is Σ min(p, q).
    """
    tokens = [token for step in steps for token in step.tokens]  # [N]
    q = [q_i for step in steps for q_i in step.q_of_tokens]  # [N]
    p, margins = ask(model, x, tokens, until)  # [n_asked] each
    asked = []  # [n_asked], min(1, p / q)
    for p_i, q_i in zip(p, q, strict=False):
        asked.append(1.0 if p_i >= q_i else p_i / q_i)  # both may be 0, of a token that a lossy rule has kept
    chances = filled_up(asked, len(tokens))  # [N]
    write_tested(chances, steps)
    return chances, filled_up(margins, len(tokens))


def filled_up(numbers: Sequence[float], N: int) -> list[float]:  # [n_asked] -> [N]
    """Return N numbers: these, and their mean in the place of the others."""
    mean = float(np.mean(numbers))
    return [*numbers, *(N - len(numbers)) * [mean]]


def write_tested(chances: list[float], steps: Sequence[TextStep]) -> None:  # [N]
    """Write the chances of the drafts that the run has tested to their positions: there Σ min(p, q) is known, which the
    mean of min(1, p / q) only approaches. A sum of float32 may be above 1."""
    position = 0
    for step in steps:
        tested = step.alpha if is_by_model(step) else []  # no more than the step's tokens
        chances[position : position + len(tested)] = [min(1.0, chance) for chance in tested]
        position += len(step.tokens)


def ask(model: Model, x, tokens: Sequence[int], until: float) -> tuple:  # [n], [N] -> [n_asked] each
    """Return the draft model's probabilities of the tokens after x, and its margins there.

    It is asked about blocks of rows, as those of a long text take much memory: about one in any case, and about the
    next if that would end in time.
    """
    text = np.array([*x, *tokens])  # [n + N]
    p: list[float] = []
    margins: list[float] = []
    seconds = 0.0  # seconds of the last block
    for first in range(0, len(tokens), BLOCK):
        began = time.perf_counter()
        if p and began + seconds >= until:
            break
        block = tokens[first : first + BLOCK]  # [n_rows]
        end = len(x) + first + len(block)
        rows = model(text[: end - 1], len(block))  # [n_rows, n_vocab]
        p += rows[np.arange(len(block)), block].tolist()
        margins += margins_of(model.last_logits)
        seconds = time.perf_counter() - began
    return p, margins


def time_by_text(text: KnownText) -> float:
    """Return the seconds of a proposal of the slowest drafter that reads the text alone."""
    x = np.array(text.tokens)  # [n + N]
    slowest = 0.0
    for spec in DRAFTERS.values():
        if spec.by_text:
            draft = spec.by_text(text.n_vocab)
            began = time.perf_counter()
            draft(x, max(ROWS) - 1)
            slowest = max(slowest, time.perf_counter() - began)
    return slowest


# ---- Windows ---------------------------------------------------------------------------------------------------------


def time_windows(session: Session, text: Sequence[int], in_run: set[int], most: float) -> ByRows:
    """Time windows of the target a few times, as long as `most` seconds allow -> {rows: seconds, or a part of them}.

    in_run: the rows of the windows that the run has timed.
    """
    network = session.models["target"]
    n = min(len(text), session.n_ctx) - max(ROWS)
    x = np.array(text[: max(1, n)])  # [n], which the cache holds
    timed: list[tuple[int, float]] = []  # (rows, seconds)
    start = time.perf_counter()
    for rows in sizes_to_time(in_run, session.n_ctx - len(x)) * N_TIMED:
        spent = time.perf_counter() - start
        if spent + expected_seconds(rows, timed) > most:
            break
        timed.append((rows, session.engine.window_seconds(network, x, rows)))
    return costs_by_rows(timed)


def sizes_to_time(in_run: set[int], room: int) -> list[int]:
    """Return the rows of windows that are timed: one row and the run's longest window, by which the times are compared
    with the run's, and sizes that it has not, up to about twice its own. room: the most that fit into the context."""
    longest = max(in_run, default=1)
    most = min(room, max(17, 2 * longest - 1))
    others = [rows for rows in ROWS if rows not in in_run and rows <= most]
    return [rows for rows in (1, longest) if rows <= room] + others


def expected_seconds(rows: int, timed: Sequence[tuple]) -> float:
    """Return the longest that such a window took; n rows take no longer than n calls for one."""
    at_most = rows * timed[0][1] if timed else 0.0
    return max((seconds for n, seconds in timed if n == rows), default=at_most)
