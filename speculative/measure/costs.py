"""The costs of a run in seconds: of a draft token, and of a call of the target by its number of rows."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import NamedTuple

from speculative.lookahead import line_through
from speculative.measure.recorder import Recorder

LONG = 4  # a call of more than this many times the median was interrupted, and counts as that many medians


class Costs(NamedTuple):
    """Seconds, without the prefill. A call of the target includes what the loop does besides."""

    t_target: float  # of a row, by autoregressive decoding
    t_draft: float  # of a draft token; 0 if nothing was drafted
    t_window: dict[int, float]  # {rows: seconds of a call} of speculative decoding

    @property
    def c(self) -> float:
        return self.t_draft / self.t_target


def costs(autoregressive: Recorder, speculative: Recorder) -> Costs | None:
    """None if the run is so short that every call included a prefill."""
    t_target = window_seconds(autoregressive).get(1)
    t_window = window_seconds(speculative)
    t_draft = draft_seconds(speculative)
    if not t_target or not t_window or t_draft is None:
        return None
    return Costs(t_target, t_draft, t_window)


def line(t_window: dict[int, float]) -> Callable[[int], float]:
    """Return a function of any number of rows, on lines between known ones. One row takes no longer than several."""
    return line_through({1: min(t_window.values())} | t_window)


def window_seconds(run: Recorder) -> dict[int, float]:
    """{rows: seconds of a call of the target}, of the calls that read nothing but these rows."""
    if run.t_target:
        return run.t_target
    calls = defaultdict(list)
    for i in run.iterations:
        if i.scoring and not i.prefill:
            calls[i.drafted + 1].append(i.seconds - i.drafting)
    return {rows: usual_mean(seconds) for rows, seconds in sorted(calls.items())}


def draft_seconds(run: Recorder) -> float | None:
    """Seconds of a draft token. The time of empty proposals belongs to the tokens of the others."""
    if run.t_draft is not None:
        return run.t_draft
    proposals = [i for i in run.iterations if not i.draft_prefill and i.drafting is not None]
    drafted = sum(i.drafted for i in proposals)
    if drafted:
        return sum(i.drafting for i in proposals) / drafted
    return None if any(i.drafted for i in run.iterations) else 0.0


def usual_mean(seconds: Sequence[float]) -> float:
    longest = LONG * median(seconds)
    return mean(min(one, longest) for one in seconds)


def prefill_seconds(run: Recorder) -> float:
    """Seconds of the prefill, beyond those that the same calls take otherwise."""
    if run.prefill is not None:
        return run.prefill
    t_window = window_seconds(run)
    if not t_window:
        return 0.0
    window = line(t_window)
    t_draft = draft_seconds(run) or 0.0
    scoring = [i.seconds - i.drafting - window(i.drafted + 1) for i in run.iterations if i.prefill]
    drafting = [i.drafting - i.drafted * t_draft for i in run.iterations if i.draft_prefill]
    return sum(max(0.0, seconds) for seconds in scoring + drafting)
