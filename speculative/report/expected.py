"""The speedup to expect on a text that was scored: from each model that drafts, for each K, on this machine.

A few tokens are decoded for the times of calls, as after a run windows of other sizes are timed (measuring.py), and the
text is decoded once more with each setting on a clock of these times (simulate.py).
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from speculative.drafters.base import DrafterSpec
from speculative.engines.system import seconds_waited
from speculative.lookahead.costs import ByRows, costs_by_rows, line_through
from speculative.report.doubt import DISTURBED
from speculative.report.figures import costs_of, leviathan_tokens
from speculative.report.measuring import candidates, time_by_text, time_windows
from speculative.report.predictions import KS, costs_of_windows, mean_decode
from speculative.report.record import DecoderRecord
from speculative.report.score_record import Expected
from speculative.report.simulate import KnownText, Prices
from speculative.run.score import TokenScores, windows
from speculative.run.session import Session

Scores = dict[str, TokenScores]  # by role

PART = 200  # tokens of a part of a text that is decoded once more
MOST_PARTS = 8  # parts of a text: those of a longer one are spread evenly over it
N_DECODED = 16  # tokens that are decoded for their times
MOST_PROMPT = 128  # tokens before these
TIMING_SECONDS = 0.8  # for which all this is timed again and again
MOST_SECONDS = 3.0  # the same while other programs use the cores
WINDOW_SECONDS = 0.3  # seconds of windows of other sizes, each time
USUAL_K = 4  # the K of these decodes, if the session's K is auto


class Costs(NamedTuple):
    """Times on this machine, in the loop of a drafter."""

    by_rows: ByRows  # {rows: seconds of a call of the target}
    draft: float  # seconds of a token of the draft model; 0 for look-ups

    @property
    def c(self) -> float:
        return self.draft / self.by_rows[1]

    def beta(self, K: int) -> float:
        window = line_through(self.by_rows)
        return window(K + 1) / window(1)


def drafting_models(session: Session) -> list[DrafterSpec]:
    """Return the drafters that are models, the one that drafts for the target first."""
    return [spec for level in session.plan.levels for spec in reversed(level) if spec.has_model]


# ---- Times -----------------------------------------------------------------------------------------------------------


class Clock(NamedTuple):
    """The costs of each drafting model by role, or of look-ups alone by ""; {} if they are withheld."""

    costs: dict[str, Costs]
    by_text: float = 0.0  # seconds of a look-up
    withheld: str | None = None  # why there are none


class Round(NamedTuple):
    """Short decodes and windows that were timed one after the other."""

    plain: DecoderRecord
    speculative: dict[str, DecoderRecord]  # by role, as Clock.costs
    timed: ByRows  # {rows: seconds of a window, or a part of them}
    waited: float  # seconds without a core, for each second of the round


def time_costs(session: Session, x: Sequence[int]) -> Clock:
    """Decode a few tokens after a part of this text, which the models have just read, and time windows."""
    if not session.engine.predicts:
        return Clock({}, withheld="calls of other sizes are not timed on JAX")
    [*_, last] = windows(len(x), session.n_ctx)
    text = x[last.start : last.end]
    K = next((K for K in session.plan.Ks if isinstance(K, int)), USUAL_K)
    sessions = {}
    for spec in drafting_models(session):
        sessions[spec.role] = session.changed(drafter=spec.name, K=K, tree=None, stop=None)
    sessions = sessions or {"": session.changed(K=K, stop=None)}
    quiet: list[Round] = []
    began = time.perf_counter()
    while time.perf_counter() - began < (TIMING_SECONDS if quiet else MOST_SECONDS):
        round = timing_round(sessions, text, K)
        if round.waited < DISTURBED:
            quiet.append(round)
    if not quiet:
        return Clock({}, withheld="other programs used the cores while calls were timed")
    by_text = time_by_text(KnownText(text[:1], text[1:]))
    return Clock({role: costs_in(quiet, role) for role in sessions}, by_text)


def timing_round(sessions: dict[str, Session], text: Sequence[int], K: int) -> Round:
    """Time once. sessions: by role, of one drafter each."""
    began = time.perf_counter()
    waited = seconds_waited()
    session = next(iter(sessions.values()))
    plain = short_decode(session, "autoregressive", text)
    speculative = {role: short_decode(session, "speculative", text) for role, session in sessions.items()}
    timed = time_windows(session, text, {K + 1}, WINDOW_SECONDS)
    waited = (seconds_waited() - waited) / (time.perf_counter() - began)
    return Round(plain, speculative, timed, waited)


def short_decode(session: Session, name: str, text: Sequence[int]) -> DecoderRecord:
    """Decode a few tokens after the beginning of a text."""
    n = max(1, min(len(text) - 1, session.n_ctx - N_DECODED, MOST_PROMPT))
    N = min(N_DECODED, session.n_ctx - n)
    record = DecoderRecord(name)
    for step in session.decoded(name, [text[:n]], N):
        record.add(step)
    return record


def costs_in(rounds: Sequence[Round], role: str) -> Costs:
    """Return the costs of a drafter from these rounds."""
    plain = pooled([each.plain for each in rounds])
    speculative = pooled([each.speculative[role] for each in rounds])
    in_loop = costs_of(speculative)
    timed = costs_by_rows(item for each in rounds for item in each.timed.items())
    n_calls = Counter(step.drafted + 1 for step in speculative.steps if not step.prefill)
    by_rows = costs_of_windows(costs_of(plain).by_rows[1], in_loop.by_rows, n_calls, timed)
    return Costs(by_rows, in_loop.draft or 0.0 if role else 0.0)


def pooled(records: Sequence[DecoderRecord]) -> DecoderRecord:
    """Return the steps of several decodes as one record."""
    samples = [sample for record in records for sample in record.samples]
    return DecoderRecord(samples=samples)


# ---- What to expect --------------------------------------------------------------------------------------------------


def Ks_of(session: Session, clock: Clock) -> list[int]:
    """Return the Ks of the table: KS and the session's own, as far as windows were timed."""
    most = min((max(costs.by_rows) - 1 for costs in clock.costs.values()), default=max(KS))
    own = [K for K in session.plan.Ks if isinstance(K, int)]
    return sorted(K for K in {*KS, *own} if most >= K)


def expected(session: Session, x: Sequence[int], scores: Scores, clock: Clock) -> dict[str, dict[str, Expected]]:
    """Return {drafter: {K: Expected}} of each model that drafts, of look-ups, and of look-ups in front of a model."""
    models = [spec for spec in drafting_models(session) if scores[spec.role].chances]
    drafters: dict[str, list[DrafterSpec]] = {}
    for spec in models:
        drafters |= candidates([[spec]], has_drafted=True)
    drafters = drafters or candidates(session.plan.levels, has_drafted=False)
    result = {}
    for name, specs in drafters.items():
        if clock.costs or specs[0] in models:  # a device has no look-ups
            result[name] = of_drafter(session, x, scores, specs, clock)
    return result


def of_drafter(
    session: Session, x: Sequence[int], scores: Scores, specs: Sequence[DrafterSpec], clock: Clock
) -> dict[str, Expected]:
    """Return {K: Expected} of a drafter with these parts, by decoding parts of the text once more."""
    role = specs[-1].role  # "" for look-ups alone
    texts = parts_of(x, scores.get(role, TokenScores()), session.n_ctx)
    prices = Prices(lambda rows: 1.0, draft=0.0, by_text=0.0)
    if clock.costs:
        costs = clock.costs.get(role) or next(iter(clock.costs.values()))
        prices = Prices(line_through(costs.by_rows), costs.draft, clock.by_text)
    n_tokens = sum(text.N for text in texts)
    of_K = {}
    Ks: list[Any] = Ks_of(session, clock)
    for K in [*Ks, "auto"] if clock.costs else Ks:
        seconds, n_calls = mean_decode(texts, prices, specs, K)
        tokens = n_tokens / n_calls
        speedup = min(tokens, n_tokens * prices.window(1) / seconds) if clock.costs else None
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
        here = slice(start - 1, start - 1 + PART)  # a slice of lists that begin with the second token
        parts.append(KnownText(prompt, x[start : start + PART], of_model.chances[here], of_model.margins[here]))
    return parts
