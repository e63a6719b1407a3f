"""The speedup to expect on a text that was scored: from each model that drafts, for each K, on this machine.

A few tokens are decoded for the times of calls, as after a run windows of other sizes are timed (measuring.py), and
the text is decoded once more with each setting on a clock of these times (simulate.py).
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from speculative.drafters.base import Drafter
from speculative.engines.formats import FORMATS
from speculative.engines.system import seconds_waited
from speculative.lookahead.costs import ByRows, line_through
from speculative.report.doubt import is_quiet
from speculative.report.figures import costs_of, leviathan_tokens
from speculative.report.measuring import candidates, sizes_to_time, time_by_text
from speculative.report.predictions import KS, costs_of_windows, mean_decode
from speculative.report.record import Expected
from speculative.report.simulate import KnownText, Prices
from speculative.run.score import TokenScores, excerpts
from speculative.run.session import Session
from speculative.run.steps import TextStep

Scores = dict[str, TokenScores]  # by role

PART = 200  # tokens of a part of a text that is decoded once more
MOST_PARTS = 8  # parts of a text: those of a longer one are spread evenly over it
N_DECODED = 24  # tokens that are decoded for their times
MOST_PROMPT = 128  # tokens before these
TIMING_SECONDS = 0.8  # seconds for which decodes and windows are timed in turn
MOST_SECONDS = 4.0  # seconds after which this ends, if other programs use the cores
N_TIMED = 3  # times that each window is timed in a turn
ENOUGH = 3  # calls of a kind that suffice
USUAL_K = 4  # the K of these decodes, if the session's K is auto


class DraftingCosts(NamedTuple):
    """Times on this machine, in the loop of a drafter."""

    by_rows: ByRows  # {rows: seconds of a call of the target}
    draft: float  # seconds of a token of the draft model; 0 for look-ups

    @property
    def c(self) -> float:
        return self.draft / self.by_rows[1]

    def beta(self, K: int) -> float:
        window = line_through(self.by_rows)
        return window(K + 1) / window(1)


def drafters_with_models(session: Session) -> list[Drafter]:
    """Return the drafters that are models, the one that drafts for the target first."""
    return [spec for level in session.plan.levels for spec in reversed(level) if spec.has_model]


# ---- Times -----------------------------------------------------------------------------------------------------------


class Timings(NamedTuple):
    """The costs of each drafting model by role, or of look-ups alone by ""; {} if they are withheld."""

    costs: dict[str, DraftingCosts]
    by_text: float = 0.0  # seconds of a look-up
    withheld: str | None = None  # why there are none

    @property
    def first(self) -> DraftingCosts | None:
        """The costs in the loop of the target's own drafter; None if they are withheld."""
        return next(iter(self.costs.values()), None)


@dataclass
class Timed:
    """The calls that were timed while the threads had their cores."""

    plain: list[TextStep]  # the steps of autoregressive decodes
    speculative: dict[str, list[TextStep]]  # by role, as Timings.costs
    windows: dict[int, list[float]]  # {rows: seconds of each window, or of a part of it}

    def is_enough(self) -> bool:
        """Return True if there are a few calls of each kind."""
        counts = [len(self.plain)]
        counts += map(len, self.speculative.values())
        counts += map(len, self.windows.values())
        return min(counts) >= ENOUGH


def time_costs(session: Session, x: Sequence[int]) -> Timings:
    """Decode a few tokens after a part of this text, which the models have just read, and time windows, until there are
    enough calls in which the threads waited little for a core."""
    if not session.engine.predicts:
        return Timings({}, withheld="calls of other sizes are not timed on JAX")
    K = next((K for K in session.plan.Ks if isinstance(K, int)), USUAL_K)
    sessions = one_drafter_each(session, K)
    prompt = prompt_in(x, session.n_ctx)
    sizes = sizes_to_time({K + 1}, session.n_ctx - len(prompt))
    timed = Timed([], {role: [] for role in sessions}, {rows: [] for rows in sizes})
    began = time.perf_counter()
    seconds = 0.0
    while seconds < (TIMING_SECONDS if timed.is_enough() else MOST_SECONDS):
        time_once(timed, sessions, prompt)
        seconds = time.perf_counter() - began
    if not timed.is_enough():
        return Timings({}, withheld="other programs used the cores while calls were timed")
    text = KnownText(prompt[:1].tolist(), prompt.tolist())
    costs = {role: costs_in(timed, role) for role in sessions}
    return Timings(costs, time_by_text(text))


def one_drafter_each(session: Session, K: int) -> dict[str, Session]:
    """Return sessions by role, each with one drafter; if no drafter is a model, the session by ""."""
    sessions = {}
    for spec in drafters_with_models(session):
        sessions[spec.role] = session.changed(drafter=spec.name, K=K, tree=None, stop=None)
    return sessions or {"": session.changed(K=K, stop=None)}


def prompt_in(x: Sequence[int], n_ctx: int) -> np.ndarray:  # [n] -> [n_prompt]
    """Return the beginning of the text's last window, after which there is room for what is timed."""
    [*_, last] = excerpts(len(x), n_ctx)
    room = min(last.end - last.start - 1, n_ctx - N_DECODED, MOST_PROMPT)
    end = last.start + max(1, room)
    return np.array(x[last.start : end])


def time_once(timed: Timed, sessions: dict[str, Session], prompt: np.ndarray) -> None:  # [n]
    """Add the times of a short decode of each kind, and of windows. sessions: by role, of one drafter each."""
    session = next(iter(sessions.values()))
    timed.plain += quiet_steps(session, "autoregressive", prompt)
    for role, drafting in sessions.items():
        timed.speculative[role] += quiet_steps(drafting, "speculative", prompt)
    target = session.models["target"]
    for rows in N_TIMED * [*timed.windows]:
        waited = seconds_waited()
        seconds = session.engine.window_seconds(target, prompt, rows)
        if is_quiet(seconds_waited() - waited, seconds):
            timed.windows[rows].append(seconds)


def quiet_steps(session: Session, name: str, prompt: np.ndarray) -> list[TextStep]:  # [n]
    """Decode a few tokens -> the steps in which the threads waited little."""
    steps = []
    waited = seconds_waited()
    for step in session.decode_ids(name, [prompt], min(N_DECODED, session.n_ctx - len(prompt))):
        waited_before, waited = waited, seconds_waited()
        if step.tokens and not step.prefill and is_quiet(waited - waited_before, step.seconds):
            steps.append(step)
    return steps


def costs_in(timed: Timed, role: str) -> DraftingCosts:
    """Return the costs of a drafter. A window costs a row at least."""
    speculative = timed.speculative[role]
    in_loop = costs_of(speculative)
    t_target = costs_of(timed.plain).by_rows[1]
    n_calls = Counter(step.drafted + 1 for step in speculative)
    of_windows = {rows: median(times) for rows, times in timed.windows.items()}
    by_rows = costs_of_windows(t_target, in_loop.by_rows, n_calls, of_windows)
    draft = in_loop.draft if role else None
    return DraftingCosts({rows: max(t_target, by_rows[rows]) for rows in by_rows}, draft or 0.0)


# ---- What to expect --------------------------------------------------------------------------------------------------


def Ks_of(session: Session, timings: Timings) -> list[int]:
    """Return the Ks of the table: KS and the session's own, as far as windows were timed."""
    most = min((max(costs.by_rows) - 1 for costs in timings.costs.values()), default=max(KS))
    own = [K for K in session.plan.Ks if isinstance(K, int)]
    return sorted(K for K in {*KS, *own} if most >= K)


def betas(session: Session, timings: Timings) -> dict[str, float]:
    """Return {K: β}; {} if the times are withheld."""
    costs = timings.first
    return {str(K): costs.beta(K) for K in Ks_of(session, timings)} if costs else {}


def expected(session: Session, x: Sequence[int], scores: Scores, timings: Timings) -> dict[str, dict[str, Expected]]:
    """Return {drafter: {K: Expected}} of each model that drafts, of look-ups, and of look-ups in front of a model, but
    not of a copy."""
    models = [spec for spec in drafters_with_models(session) if scores[spec.role].chances]
    drafters: dict[str, list[Drafter]] = {}
    for spec in models:
        drafters |= {spec.name: [spec]} if spec.role in FORMATS else candidates([[spec]], has_drafted=True)
    drafters |= candidates(session.plan.levels, has_drafted=False)
    result = {}
    for name, specs in drafters.items():
        if timings.costs or specs[0] in models:  # without times, as on a device, look-ups are left out
            result[name] = of_drafter(session, x, scores, specs, timings)
    return result


def of_drafter(
    session: Session, x: Sequence[int], scores: Scores, specs: Sequence[Drafter], timings: Timings
) -> dict[str, Expected]:
    """Return {K: Expected} of a drafter with these parts, by decoding parts of the text once more."""
    role = specs[-1].role  # "" for look-ups alone
    texts = parts_of(x, scores.get(role, TokenScores()), session.n_ctx)
    prices = Prices(lambda rows: 1.0, draft=0.0, by_text=0.0)
    costs = timings.costs.get(role) or timings.first
    if costs:
        prices = Prices(line_through(costs.by_rows), costs.draft, timings.by_text)
    n_tokens = sum(text.N for text in texts)
    of_K = {}
    Ks: list[Any] = Ks_of(session, timings)
    for K in [*Ks, "auto"] if timings.costs else Ks:
        seconds, n_calls = mean_decode(texts, prices, specs, K)
        tokens = n_tokens / n_calls
        speedup = min(tokens, n_tokens * prices.window(1) / seconds) if timings.costs else None
        by_formula = None
        if K != "auto" and len(specs) == 1 and role:
            by_formula = leviathan_tokens(float(np.mean(scores[role].chances)), K)
        of_K[str(K)] = Expected(tokens, by_formula, speedup)
    return of_K


def parts_of(x: Sequence[int], of_model: TokenScores, n_ctx: int) -> list[KnownText]:
    """Return parts of a text with what a model gave to their tokens. of_model: empty for look-ups."""
    starts = [*range(1, len(x), PART)]
    if len(starts) > MOST_PARTS:
        starts = [starts[i * len(starts) // MOST_PARTS] for i in range(MOST_PARTS)]
    parts = []
    for start in starts:
        prompt = x[max(0, start - n_ctx // 2) : start]
        new = x[start : start + PART]
        here = slice(start - 1, start - 1 + PART)  # the lists begin with the second token
        chances = of_model.chances[here]
        margins = of_model.margins[here]
        parts.append(KnownText(prompt, new, chances, margins))
    return parts
