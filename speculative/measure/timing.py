"""What a run's calls took: the median seconds of a window and of a draft token, and what the prefill took beyond
that."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from speculative.costs import line_through
from speculative.measure.recorder import Recorder

Middle = Callable[[Sequence[float]], float]  # of the seconds of calls that are alike, those that stand for all


class Costs(NamedTuple):
    t_target: float  # seconds of a row
    t_draft: float | None  # of a draft token, where any was drafted
    t_window: dict[int, float]  # of a window, by its rows

    @property
    def c(self) -> float:
        t_draft = 0.0 if self.t_draft is None else self.t_draft
        return t_draft / self.t_target

    @property
    def beta(self) -> dict[int, float]:  # by rows
        return {rows: seconds / self.t_target for rows, seconds in self.t_window.items()}


def costs(autoregressive: Recorder, speculative: Recorder, middle: Middle = median) -> Costs | None:
    """None where a run is so short that every call included a prefill."""
    t_target = window_seconds(autoregressive, middle).get(1)
    t_window = window_seconds(speculative, middle, at_least=3) or window_seconds(speculative, middle)
    t_draft = seconds_per_draft(speculative, middle)
    drafted = any(i.step.drafted for i in speculative.iterations)
    if t_target is None or not t_window or (drafted and t_draft is None):
        return None
    return Costs(t_target, t_draft, t_window)


def cost_of_rows(beta: dict[int, float]) -> Callable[[int], float]:
    """rows -> β, also between those that were measured, and beyond."""
    return line_through({1: 1.0} | {rows: cost for rows, cost in beta.items() if rows > 1})


def window_seconds(run: Recorder, middle: Middle = median, at_least: int = 1) -> dict[int, float]:
    """t_target, {rows: seconds}, where at_least this many calls read nothing but these rows."""
    if run.t_target:
        return run.t_target
    calls = [(i.step.drafted + 1, i.scoring) for i in run.iterations if not i.prefill and i.scoring]
    return {rows: middle(seconds) for rows, seconds in by_key(calls).items() if len(seconds) >= at_least}


def seconds_per_draft(run: Recorder, middle: Middle = median) -> float | None:
    """t_draft. Calls that propose nothing are a part of what those cost that do."""
    if run.t_draft is not None:
        return run.t_draft
    calls = [(i.step.drafted, i.drafting) for i in run.iterations if not i.draft_prefill and i.drafting is not None]
    spent = sum(len(seconds) * middle(seconds) for seconds in by_key(calls).values())
    return share(spent, sum(drafted for drafted, _ in calls))


def prefill_seconds(run: Recorder) -> float:
    """What the prefill took, beyond what the same calls take otherwise."""
    if run.prefill is not None:
        return run.prefill
    t_target = window_seconds(run)
    t_draft = seconds_per_draft(run) or 0.0
    scoring = [i.scoring - t_target.get(i.step.drafted + 1, 0.0) for i in run.iterations if i.prefill]
    drafting = [i.drafting - i.step.drafted * t_draft for i in run.iterations if i.draft_prefill]
    return sum(max(0.0, seconds) for seconds in scoring + drafting)


def by_key(pairs: list[tuple[int, float]]) -> dict[int, list[float]]:
    grouped = {}
    for key, value in sorted(pairs):
        grouped.setdefault(key, []).append(value)
    return grouped


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
