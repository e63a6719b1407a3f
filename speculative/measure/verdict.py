"""The lines about a run that is over, the same on the screen, in the JSON file and on the page."""

from collections.abc import Sequence
from typing import Any

from speculative.decoding import Pair
from speculative.engines import devices, formats
from speculative.measure import levels
from speculative.measure.record import Record
from speculative.support.errors import UserError
from speculative.support.options import Options


def verdict(run: dict, o: Options, pair: Pair, records: Sequence[Record]) -> list[str]:
    """run: its document. records: of the autoregressive decoder and the speculative one."""
    lines = [*run["summary"]]
    advice = copy_advice(run["figures"], o, pair)
    if advice:
        lines[-1] = advice  # as it gains more than another K
    lines += notes(o, pair, run["stand_ins"])
    if run["figures"]["speedup"]:
        lines += differences(o, pair, [prompt["tokens"] for prompt in run["prompts"]], records)
    return lines


def copy_advice(f: dict[str, Any], o: Options, pair: Pair) -> str | None:
    """A sentence about what drafting with the target's own copy would bring, where that is more than was measured."""
    if o.engine != "numpy" or o.drafter != "model" or f["speedup"] is None:
        return None
    try:
        copy = formats.find(devices.choose_self_dtype("auto", o.dtype, o.engine))
    except UserError:  # there is no format with fewer bytes
        return None
    share = copy.weight_bytes / formats.find(o.dtype).weight_bytes
    target_bytes = pair.target.weight_bytes
    return levels.advice(f, share, share * target_bytes, target_bytes)


def notes(o: Options, pair: Pair, stand_ins: dict[str, str]) -> list[str]:
    """Facts that a reader of the other lines has to know."""
    lines = [f"Note: {size} is a stand-in for the official model: {what}." for size, what in stand_ins.items()]
    if not pair.accept.lossless and o.temperature > 0:
        lines.append(f"Note: with {pair.accept.words} the speculative text is not distributed as the target's.")
    if pair.goes_by_times and o.temperature > 0:
        flag = "--tree" if o.tree else "--K"
        lines.append(f"Note: {flag} auto depends on measured times, so the same seed may give another text next time.")
    return lines


def differences(o: Options, pair: Pair, prompts: list, records: Sequence[Record]) -> list[str]:
    """The places where greedy texts part, on an engine whose rounding depends on the number of rows."""
    if o.engine == "numpy" or o.temperature > 0:
        return []
    from speculative.engines.jax.pair import greedy_differences

    texts = [record.tokens for record in records]
    inputs = prompts * (len(texts[0]) // len(prompts))  # of several samples, each takes the prompts in turn
    return greedy_differences(inputs, pair.target, *texts, formats.on_jax(o.dtype).tolerance)
