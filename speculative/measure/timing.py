"""The costs of a run, in seconds: averages over its calls, in which an interruption counts for little."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean, mean, median
from typing import Any, NamedTuple

from speculative.lookahead import line_through
from speculative.measure.record import Iteration, Record

FEW = 8  # iterations, below which nothing is usual
LONG = 4  # a call of more than this many times the usual was interrupted, and counts as that many
OFTEN = 3  # calls, from which on their time is usual

Middle = Callable[[Sequence[float]], Any]  # of the seconds of calls that are alike, what stands for each of them


class Costs(NamedTuple):
    """Seconds. What the loop takes besides is a part of the target's call, as it is done once for each."""

    t_target: float  # of a row
    t_draft: float | None  # of a draft token, where any was drafted
    t_window: dict[int, float]  # of a window, by its rows
    often: Sequence[int]  # the row counts that were timed OFTEN times or more; all of them where none was

    @property
    def c(self) -> float:
        t_draft = 0.0 if self.t_draft is None else self.t_draft
        return t_draft / self.t_target

    @property
    def beta(self) -> dict[int, float]:  # by rows
        return {rows: self.t_window[rows] / self.t_target for rows in self.often}

    def mean_beta(self, windows: Sequence[int]) -> float:  # rows of each window
        between = cost_of_rows(self.beta)
        known = {rows: seconds / self.t_target for rows, seconds in self.t_window.items()}
        return mean(known[rows] if rows in known else between(rows) for rows in windows)


def costs(autoregressive: Record, speculative: Record, middle: Middle = fmean) -> Costs | None:
    """None where a run is so short that every call included a prefill."""
    t_target = seconds_of_windows(autoregressive, middle).get(1)
    t_window = seconds_of_windows(speculative, middle)
    t_draft = seconds_of_draft(speculative, middle)
    drafted = any(i.step.drafted for i in speculative.iterations)
    if t_target is None or not t_window or (drafted and t_draft is None):
        return None
    calls = windows(speculative.iterations)
    often = [rows for rows in t_window if len(calls.get(rows, ())) >= OFTEN]
    return Costs(t_target, t_draft, t_window, often or [*t_window])


def level_costs(calls: Sequence[Iteration]) -> Costs | None:
    """The costs of a level; None if every call included a prefill. t_target is that of its cheapest window, as there
    may have been no call of a single row."""
    t_window = {rows: fmean(seconds) for rows, seconds in windows(calls).items()}
    t_draft = per_draft(calls, fmean)
    if not t_window or t_draft is None:
        return None
    return Costs(min(t_window.values()), t_draft, t_window, [*t_window])


def cost_of_rows(beta: dict[int, float]) -> Callable[[int], float]:
    """rows -> β, also between those that were measured, and beyond."""
    return line_through({1: 1.0} | {rows: cost for rows, cost in beta.items() if rows > 1})


def windows(iterations: Sequence[Iteration]) -> dict[int, list[float]]:
    """{rows: seconds of each call of the target that read nothing but these rows}"""
    timed = [i for i in iterations if not i.prefill and i.scoring]
    calls = by_key([(i.step.drafted + 1, i.seconds - i.drafting) for i in timed])
    if len(iterations) < FEW:
        return calls
    medians = {rows: median(seconds) for rows, seconds in calls.items()}
    usual = {rows: seconds for rows, seconds in medians.items() if len(calls[rows]) >= OFTEN} or medians
    between = line_through({1: min(usual.values(), default=0.0)} | usual)
    return {rows: [min(one, LONG * between(rows)) for one in seconds] for rows, seconds in calls.items()}


def proposals(iterations: Sequence[Iteration]) -> dict[tuple, list[float]]:
    """{(drafts, who made them): seconds of each proposal}, without those that read the prompt."""
    timed = [i for i in iterations if not i.draft_prefill and i.drafting is not None]
    calls = by_key([((i.step.drafted, *i.by[:1]), i.drafting) for i in timed])
    if len(iterations) < FEW:
        return calls
    a_draft = defaultdict(list)  # seconds of a draft token, by who makes them
    for (n, *who), seconds in calls.items():
        a_draft[(*who,)] += [one / max(1, n) for one in seconds]
    most = {who: LONG * median(seconds) for who, seconds in a_draft.items()}
    return {(n, *who): [min(one, max(1, n) * most[(*who,)]) for one in seconds] for (n, *who), seconds in calls.items()}


def seconds_of_windows(run: Record, middle: Middle) -> dict[int, Any]:
    return run.t_target or {rows: middle(seconds) for rows, seconds in windows(run.iterations).items()}


def seconds_of_draft(run: Record, middle: Middle) -> Any:
    return per_draft(run.iterations, middle) if run.t_draft is None else run.t_draft


def per_draft(iterations: Sequence[Iteration], middle: Middle) -> Any:
    """Seconds of a draft token. Empty proposals belong to the cost of the others."""
    calls = proposals(iterations)
    spent = sum(len(seconds) * middle(seconds) for seconds in calls.values())
    return share(spent, sum(n * len(seconds) for (n, *_), seconds in calls.items()))


def prefill_seconds(run: Record) -> float:
    """Seconds of the prefill, beyond those that the same calls take otherwise."""
    if run.prefill is not None:
        return run.prefill
    t_window = seconds_of_windows(run, fmean)
    window = line_through({1: min(t_window.values(), default=0.0)} | t_window)
    t_draft = seconds_of_draft(run, fmean) or 0.0
    scoring = [i.seconds - i.drafting - window(i.step.drafted + 1) for i in run.iterations if i.prefill]
    drafting = [i.drafting - i.step.drafted * t_draft for i in run.iterations if i.draft_prefill]
    return sum(max(0.0, seconds) for seconds in scoring + drafting)


def by_key(pairs: list[tuple[Any, float]]) -> dict[Any, list[float]]:
    grouped = {}
    for key, value in sorted(pairs):
        grouped.setdefault(key, []).append(value)
    return grouped


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
