"""One sentence after a run: the setting to try, as it is typed, and the speedup that it should bring on this text."""

from collections.abc import Mapping
from typing import NamedTuple

from speculative.measure.doubt import NOISE
from speculative.measure.record import Figures, RunRecord

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
    if not f or not f.comparison or f.doubt or not f.counts.drafted:
        return None
    if not f.account:
        return "The run is too short to say why: every call also read the prompt."
    if f.withheld:
        return f"No prediction, because {f.withheld}."
    if f.predictions and f.predictions.predicted:
        return prediction(record, f.predictions.predicted)
    return f"It does not pay here, because {loss(f)}." if f.speedup < 1 else None


def prediction(record: RunRecord, predicted: Speedups) -> str:
    """Return the setting that is clearly faster than the run's own, or say that there is none."""
    f = record.figures
    setting = setting_to_try(predicted, GAIN * speedup_now(record, predicted))
    is_faster = setting.speedup > GAIN * speedup_now(record, predicted)
    if setting.speedup < 1 + NOISE or (not is_faster and f.speedup < 1 - NOISE):
        return f"Nothing pays here, because {loss(f)}."
    if is_faster:
        return f"Prediction: {typed(record, setting)} would be {setting.speedup:.2f} times as fast on this text."
    fast_is_open = record.machine.exact and not record.options.fast and record.fast not in predicted
    more = " Not predicted: --fast." if record.fast and fast_is_open else ""
    return f"Prediction: no other K or drafter of this run would be clearly faster on this text.{more}"


def speedup_now(record: RunRecord, predicted: Speedups) -> float:
    """Return the speedup of the run's own setting: as measured, or as predicted if that is more."""
    o = record.options
    K = o.K[0] if isinstance(o.K, tuple) else o.K  # of the outermost level
    return max(record.figures.speedup, predicted.get(o.drafter, {}).get(str(K), 0.0))


def setting_to_try(predicted: Speedups, enough: float) -> Setting:
    """Return the best setting: if it brings enough, one whose K chooses itself, as that also suits another text."""
    auto = {name: {"auto": speedups["auto"]} for name, speedups in predicted.items()}
    by_itself = best_setting(auto)
    return by_itself if by_itself.speedup > enough else best_setting(predicted)


def best_setting(predicted: Speedups) -> Setting:
    """Return the setting with the largest predicted speedup."""
    settings = [Setting(name, K, speedup) for name, of in predicted.items() for K, speedup in of.items()]
    return max(settings, key=lambda setting: setting.speedup)


def typed(record: RunRecord, setting: Setting) -> str:
    """Return the options of a setting as they are typed."""
    o = record.options
    if (setting.drafter, setting.K) == (record.fast, "auto") and record.rule.lossless:
        return "--fast"
    if setting.drafter != o.drafter or o.fast:
        return f"--drafter {setting.drafter} --K {setting.K}"
    inner = o.K[1:] if isinstance(o.K, tuple) else ()  # the levels inside keep theirs
    return f"--K {'/'.join(map(str, (setting.K, *inner)))}"


def loss(f: Figures) -> str:
    """Return the reason that a run brought no gain."""
    took = f.account.mean_beta + f.account.c * f.counts.mean_K
    gives = f.counts.tokens_per_iteration
    if gives > took:
        return "reading the prompt takes longer than the drafts save"
    return f"a call with its drafts takes as long as {took:.2f} autoregressive tokens and gives {gives:.2f}"
