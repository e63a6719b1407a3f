"""One sentence after a run: the setting to try, as it is typed, and the speedup that it should bring on this text."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from speculative.report.doubt import NOISE, disturbance
from speculative.report.record import Figures, RunRecord
from speculative.run.options import ModelOptions
from speculative.run.values import as_typed

GAIN = 1.08  # another setting is recommended from this factor on: a prediction errs by about as much

Speedups = Mapping[str, Mapping[str, float]]  # {drafter: {K: the speedup that it should bring}}


class Setting(NamedTuple):
    """A drafter and a K, and the speedup that they should bring."""

    drafter: str
    K: str
    speedup: float


def advice(record: RunRecord) -> str | None:
    """Return the sentence; None if there is nothing to advise."""
    f = record.figures
    if not f or not f.speedup or f.doubt or not f.drafted:
        return None
    if not f.t_target:
        return f"The run is too short to say why{reading(record)}."
    if f.withheld:
        return f"Other settings are not predicted: {f.withheld}."
    if f.predicted:
        line = prediction(record)
        own = own_prediction(f, record.options)
        if own and disturbance(f):
            line += f" The speedup of this run would have been predicted as {own:.2f}."
        return line
    return f"It does not pay here, because {loss(f)}." if f.speedup < 1 else None


def reading(record: RunRecord) -> str:
    """Return which calls also read the prompt, if all of a kind did: their own time is then not known."""
    steps = [step for step in record.speculative.steps if step.seconds]
    if all(step.prefill for step in steps):
        return ": every call also read the prompt"
    if all(step.draft_prefill for step in steps if step.drafted):
        return ": every proposal also read the prompt"
    return ""


def prediction(record: RunRecord) -> str:
    """Return the setting that is clearly faster than the run's own, or say that there is none."""
    f = record.figures
    own = own_prediction(f, record.options) or 0.0
    enough = GAIN * max(f.speedup, own)  # than the run's own setting, as measured or as predicted
    setting = setting_to_try(f.predicted, enough)
    is_faster = setting.speedup > enough
    run_lost = f.speedup < 1 - NOISE
    if setting.speedup < 1 + NOISE or (run_lost and not is_faster):
        return f"Nothing pays here, because {loss(f)}."
    if is_faster:
        return f"Prediction: {typed(record, setting)} would be {setting.speedup:.2f} times as fast on this text."
    line = "Prediction: no other K or drafter of this run would be clearly faster on this text."
    if record.fast and record.fast not in f.predicted and record.machine.exact and not record.options.fast:
        line += " Not predicted: --fast."
    return line


def Ks_of(o: ModelOptions) -> list[str]:
    """Return the K of each level, the outermost first, as they are typed."""
    return as_typed("K", o.K).split("/")


def own_prediction(f: Figures, o: ModelOptions) -> float | None:
    """Return the speedup that the setting of the run itself should bring; None if it is not predicted."""
    return (f.predicted or {}).get(o.drafter, {}).get(Ks_of(o)[0])


def without_wrong(f: Figures, o: ModelOptions) -> Figures:
    """Return the figures without their predictions, if that of the run's own setting is far from what was measured."""
    own = own_prediction(f, o)
    if not own or 1 / GAIN <= own / f.speedup <= GAIN:
        return f
    withheld = f"the speedup of this run, {f.speedup:.2f}, would have been predicted as {own:.2f}"
    return replace(f, predicted=None, window_beta=None, withheld=withheld)


def setting_to_try(predicted: Speedups, enough: float) -> Setting:
    """Return the best setting: if it brings enough, one whose K chooses itself, as that also suits another text."""
    by_itself = best_setting({name: {"auto": speedups["auto"]} for name, speedups in predicted.items()})
    if by_itself.speedup > enough:
        return by_itself
    return best_setting(predicted)


def best_setting(predicted: Speedups) -> Setting:
    """Return the setting with the largest predicted speedup."""
    cells = [Setting(drafter, K, speedups[K]) for drafter, speedups in predicted.items() for K in speedups]
    return max(cells, key=lambda setting: setting.speedup)


def typed(record: RunRecord, setting: Setting) -> str:
    """Return the options of a setting as they are typed."""
    o = record.options
    is_fast = (setting.drafter, setting.K) == (record.fast, "auto")
    if is_fast and record.rule.lossless:
        return "--fast"
    if setting.drafter != o.drafter or o.fast:
        return f"--drafter {setting.drafter} --K {setting.K}"
    _, *inner = Ks_of(o)  # the levels inside keep theirs
    return f"--K {'/'.join([setting.K, *inner])}"


def loss(f: Figures) -> str:
    """Return the reason that a run brought no gain."""
    took = f.mean_beta + f.c * f.mean_K
    gives = f.tokens_per_iteration
    if gives > took and f.speedup_without_prefill >= 1:
        return "reading the prompt takes longer than the drafts save"
    if gives > took:
        return "the calls of this run took longer than those that were timed by themselves"
    return f"a call with its drafts takes as long as {took:.2f} autoregressive tokens and gives {gives:.2f}"
