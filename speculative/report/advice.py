"""One sentence after a run: the setting to try, as it is typed, and the speedup that it should bring on this text."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from speculative.report.doubt import NOISE, disturbance
from speculative.report.record import Account, Comparison, Counts, Figures, RunRecord
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
    if not f or not f.comparison or f.doubt or not f.drafted:
        return None
    if not f.account:
        return f"The run is too short to say why{reading(record)}."
    if f.withheld:
        return f"Other settings are not predicted: {f.withheld}."
    speedup = f.comparison.speedup
    reason = loss(f, f.comparison, f.account)
    if f.predictions and f.predictions.predicted:
        line = prediction(record, speedup, reason, f.predictions.predicted)
        own = own_prediction(f.predictions.predicted, record.options)
        if own and disturbance(f):
            line += f" The speedup of this run would have been predicted as {own:.2f}."
        return line
    return f"It does not pay here, because {reason}." if speedup < 1 else None


def reading(record: RunRecord) -> str:
    """Return which calls also read the prompt, if all of a kind did: their own time is then not known."""
    steps = [step for step in record.decoders["speculative"].steps if step.seconds]
    if all(step.prefill for step in steps):
        return ": every call also read the prompt"
    if all(step.draft_prefill for step in steps if step.drafted):
        return ": every proposal also read the prompt"
    return ""


def prediction(record: RunRecord, speedup: float, reason: str, predicted: Speedups) -> str:
    """Return the setting that is clearly faster than the run's own, or say that there is none. speedup: of the run.
    reason: for a run that brought no gain."""
    own = own_prediction(predicted, record.options) or 0.0
    enough = GAIN * max(speedup, own)  # the own setting's speedup counts as measured or as predicted
    setting = setting_to_try(predicted, enough)
    is_faster = setting.speedup > enough
    run_lost = speedup < 1 - NOISE
    if setting.speedup < 1 + NOISE or (run_lost and not is_faster):
        return f"Nothing pays here, because {reason}."
    if is_faster:
        return f"Prediction: {typed(record, setting)} would be {setting.speedup:.2f} times as fast on this text."
    line = "Prediction: no other K or drafter of this run would be clearly faster on this text."
    if record.fast and record.fast not in predicted and record.machine.exact and not record.options.fast:
        line += " Not predicted: --fast."
    return line


def Ks_of(o: ModelOptions) -> list[str]:
    """Return the K of each level, the outermost first, as they are typed."""
    return as_typed("K", o.K).split("/")


def own_prediction(predicted: Speedups, o: ModelOptions) -> float | None:
    """Return the speedup that the setting of the run itself should bring; None if it is not predicted."""
    return predicted.get(o.drafter, {}).get(Ks_of(o)[0])


def without_wrong(f: Figures, o: ModelOptions) -> Figures:
    """Return the figures without their predictions, if that of the run's own setting is far from what was measured."""
    if not f.comparison or not f.predictions:
        return f
    speedup = f.comparison.speedup
    own = own_prediction(f.predictions.predicted, o)
    if not own or 1 / GAIN <= own / speedup <= GAIN:
        return f
    withheld = f"the speedup of this run, {speedup:.2f}, would have been predicted as {own:.2f}"
    return replace(f, predictions=None, withheld=withheld)


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


def loss(counts: Counts, comparison: Comparison, account: Account) -> str:
    """Return the reason that a run brought no gain."""
    took = account.mean_beta + account.c * counts.mean_K
    gives = account.occupancy * counts.tokens_per_iteration
    if gives > took and comparison.speedup_without_prefill >= 1:
        return "reading the prompt takes longer than the drafts save"
    if gives > took:
        return "the calls of this run took longer than those that were timed by themselves"
    return f"a call with its drafts takes as long as {took:.2f} autoregressive tokens and gives {gives:.2f}"
