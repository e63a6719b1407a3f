"""The race of a page: every call of both decoders, and every token, at its place on one time axis."""

from dataclasses import dataclass
from itertools import zip_longest

from speculative.measure.record import Decoder, RunRecord
from speculative.measure.words import duration, label, many
from speculative.steps import TextStep

CLOSE = 0.002  # share of the axis; tokens that are known within it are drawn on top of each other


@dataclass(frozen=True)
class Token:
    """A token of a text."""

    text: str
    origin: str | None  # None for the rest of a character
    by: str | None  # the drafter that proposed it, if several did


@dataclass(frozen=True)
class Placed:
    """A step of a decoder, at its place in time."""

    number: int  # from 1
    step: TextStep
    begin: float  # seconds after the decode began
    end: float
    tokens: list[Token]


def placed_steps(decoder: Decoder) -> list[Placed]:
    """Return the steps of a decoder, which has decoded one text."""
    [sample] = decoder.samples
    proposers: set[str] = set()
    for step in sample.iterations:
        proposers.update(step.source[: step.accepted])
    placed = []
    end = 0.0
    for number, step in enumerate(sample.iterations, start=1):
        begin, end = end, end + step.seconds
        placed.append(Placed(number, step, begin, end, tokens_of(step, len(proposers) > 1)))
    return placed


def tokens_of(step: TextStep, several: bool) -> list[Token]:
    """Return the tokens of a step. several: whether several drafters proposed tokens of the text."""
    by = step.source[: step.accepted] if several else []
    tokens = []
    for text, origin, drafter in zip_longest(step.pieces, step.origins, by):
        tokens.append(Token(text, origin, drafter))
    return tokens


# ---- What is drawn ---------------------------------------------------------------------------------------------------


def lanes(record: RunRecord, placed: dict[str, list[Placed]]) -> dict[str, dict]:
    """Return the lane of each decoder as its script takes it. placed: the steps of each decoder."""
    seconds = race_seconds(placed)
    drafting = [*reversed(record.roles)] or ["draft"]  # a line for each, the innermost first
    data = {}
    for name, steps in placed.items():
        lines = ["target"] if name == "autoregressive" else [*drafting, "target"]
        data[name] = lane(name.capitalize(), steps, seconds, lines)
    return data


def race_seconds(placed: dict[str, list[Placed]]) -> float:
    """Return the end of the time axis."""
    return max(steps[-1].end for steps in placed.values())


def lane(title: str, steps: list[Placed], seconds: float, lines: list[str]) -> dict:
    """Return a decoder's calls, and its tokens with the time at which each is known. seconds: of the axis. lines: the
    role of each line."""
    calls = []
    for step in steps:
        calls += calls_of(step, lines)
    return {
        "title": title,
        "label": f"{title}: {many(len(steps), 'call')} of the target, {duration(steps[-1].end)}",
        "calls": calls,
        "lines": len(lines),
        "tokens": stacked_tokens(steps, CLOSE * seconds),
    }


def stacked_tokens(steps: list[Placed], close: float) -> list[dict]:
    """Return the tokens with their times, and for each the number of tokens below it: those that are known less than
    `close` seconds before it."""
    tokens = []
    bottom, stack = float("-inf"), 0  # the time of the lowest token, and the tokens on top of it
    for step in steps:
        for token in step.tokens:
            stack = stack + 1 if step.end - bottom < close else 0
            if stack == 0:
                bottom = step.end
            tokens.append(vars(token) | {"time": step.end, "iteration": step.number, "stack": stack})
    return tokens


def calls_of(placed: Placed, lines: list[str]) -> list[dict]:
    """Return the calls in a step. A drafter without a model counts as one call."""
    step = placed.step
    calls = []
    if step.drafting and len(step.calls) == 1:
        calls.append(call(placed, lines, lines[0], 0.0, step.drafting))
    for role, begin, seconds in step.calls:
        calls.append(call(placed, lines, role, begin, seconds))
    return calls


def call(placed: Placed, lines: list[str], role: str, begin: float, seconds: float) -> dict:
    """Return a call of the model of a role, which began so many seconds after its step."""
    return {
        "kind": kind_of(role, lines),
        "line": lines.index(role) if role in lines else 0,
        "begin": placed.begin + begin,
        "seconds": seconds,
        "words": f"{label(role)} {duration(seconds)}",
        "iteration": placed.number,
    }


def kind_of(role: str, lines: list[str]) -> str:
    """Return "target", "draft" for the innermost drafter, or "level" for one that has a drafter of its own."""
    if role == "target":
        return "target"
    is_inner = role not in lines or lines.index(role) == 0
    return "draft" if is_inner else "level"
