"""The race of a page: every call of both decoders, and every token, at its place on one time axis."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from speculative.report.record import DecoderRecord, RunRecord
from speculative.report.words import duration, label, many
from speculative.run.steps import TextStep

CLOSE = 0.002  # share of the axis; tokens that are known within it are drawn on top of each other


class Token(NamedTuple):
    """A token of a text."""

    text: str
    origin: str | None  # None for the rest of a character
    by: str | None  # the drafter that proposed it, if several did


class Placed(NamedTuple):
    """A step of a decoder, at its place in time."""

    number: int  # from 1
    step: TextStep
    begin: float  # seconds after the decode began
    end: float
    tokens: list[Token]


Lanes = dict[str, list[Placed]]  # {decoder: its steps}


def placed_steps(decoder: DecoderRecord) -> list[Placed]:
    """Return the steps of a decoder, which has decoded one text."""
    steps = decoder.steps
    proposers = {name for step in steps for name in step.proposers}
    placed = []
    end = 0.0
    for number, step in enumerate(steps, start=1):
        begin, end = end, end + step.seconds
        by = step.proposers if len(proposers) > 1 else []
        tokens = [Token(*token) for token in zip_longest(step.pieces, step.origins, by)]
        placed.append(Placed(number, step, begin, end, tokens))
    return placed


# ---- The marks -------------------------------------------------------------------------------------------------------


def lanes(record: RunRecord, placed: Lanes) -> dict:
    """Return the lane of each decoder as its script takes it: its calls, and its tokens with the time at which each is
    known."""
    close = CLOSE * race_seconds(placed)
    drafting = [*reversed(record.roles)] or ["draft"]  # a line for each, the innermost first
    data = {}
    for name, steps in placed.items():
        title = name.capitalize()
        lines = ["target"] if name == "autoregressive" else [*drafting, "target"]  # the role of each
        data[name] = {
            "title": title,
            "label": f"{title}: {many(len(steps), 'call')} of the target, {duration(steps[-1].end)}",
            "calls": [call for step in steps for call in calls_of(step, lines)],
            "lines": len(lines),
            "tokens": stacked_tokens(steps, close),
        }
    return data


def race_seconds(placed: Lanes) -> float:
    """Return the end of the time axis."""
    return max(steps[-1].end for steps in placed.values())


def stacked_tokens(steps: Sequence[Placed], close: float) -> list[dict]:
    """Return the tokens with their times, and for each the number of tokens below it: those that are known less than
    `close` seconds before it."""
    tokens = []
    bottom, stack = float("-inf"), 0  # the time of the lowest token, and the tokens on top of it
    for step in steps:
        for token in step.tokens:
            stack = stack + 1 if step.end - bottom < close else 0
            if stack == 0:
                bottom = step.end
            tokens.append(token._asdict() | {"time": step.end, "iteration": step.number, "stack": stack})
    return tokens


def calls_of(placed: Placed, lines: list[str]) -> list[dict]:
    """Return the calls in a step. A drafter without a model counts as one call."""
    step = placed.step
    timed = step.calls
    if step.drafting and len(timed) == 1:
        timed = [(lines[0], 0.0, step.drafting), *timed]
    calls = []
    for role, begin, seconds in timed:
        line = lines.index(role) if role in lines else 0
        kind = "level" if line else "draft"  # a level has a drafter of its own
        call = {
            "kind": "target" if role == "target" else kind,
            "line": line,
            "begin": placed.begin + begin,
            "seconds": seconds,
            "words": f"{label(role)} {duration(seconds)}",
            "iteration": placed.number,
        }
        calls.append(call)
    return calls
