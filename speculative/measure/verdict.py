"""The lines about a run that is over, the same on the screen, in the JSON file and on the page."""

from collections.abc import Sequence
from typing import Any

from speculative.engines import formats
from speculative.measure import levels
from speculative.measure.record import Record


def verdict(run: dict, session: Any, records: Sequence[Record]) -> list[str]:
    """run: its document, of this session. records: of the autoregressive decoder and the speculative one."""
    lines = [*run["summary"]]
    advice = copy_advice(run["figures"], session)
    if advice:
        lines[-1] = advice  # as it gains more than another K
    lines += notes(session, run["stand_ins"])
    if run["figures"]["speedup"]:
        lines += differences(session, [prompt["tokens"] for prompt in run["prompts"]], records)
    return lines


def copy_advice(f: dict[str, Any], session: Any) -> str | None:
    """A sentence about the gain of drafting with the target's int8 copy, if that is more than was measured."""
    o = session.options
    share = formats.find("int8").weight_bytes / formats.find(o.dtype).weight_bytes
    if o.engine != "numpy" or o.drafter != "model" or f["speedup"] is None or share >= 1:
        return None
    target_bytes = session.models["target"].weight_bytes
    return levels.advice(f, share, share * target_bytes, target_bytes)


def stand_ins(session: Any) -> dict[str, str]:
    """{model with an official name, but not the official weights: what it is instead}"""
    instead = {spec.size: spec.hparams.get("stand_in") for spec in session.models.specs.values()}
    return {size: what for size, what in instead.items() if what}


def notes(session: Any, stand_ins: dict[str, str]) -> list[str]:
    """Facts that a reader of the other lines has to know."""
    o = session.options
    lines = [f"Note: {size} is a stand-in for the official model: {what}." for size, what in stand_ins.items()]
    if not session.rule.lossless and o.temperature > 0:
        lines.append(f"Note: with --accept {o.accept} the speculative text is not distributed as the target's.")
    if session.timed and o.temperature > 0:
        lines.append("Note: --K auto depends on measured times, so the same seed may give another text next time.")
    return lines


def differences(session: Any, prompts: list, records: Sequence[Record]) -> list[str]:
    """The places where greedy texts part, on an engine whose rounding depends on the number of rows."""
    o = session.options
    if o.engine == "numpy" or o.temperature > 0:
        return []
    from speculative.engines.jax.pair import greedy_differences

    texts = [record.tokens for record in records]
    inputs = prompts * (len(texts[0]) // len(prompts))  # of several samples, each takes the prompts in turn
    return greedy_differences(inputs, session.models["target"], *texts, formats.on_jax(o.dtype).tolerance)
