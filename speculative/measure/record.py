"""The record of a run, as types: a Recorder fills them, figures are computed from them, JSON is written from them and
read into them. docs/output.md explains every key."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints, is_typeddict

from speculative.accept import TOKEN, Rule
from speculative.measure.details import Details, TreeDetails

LARGEST = 1e15  # of the numbers in a file: what can still be drawn


class Counted(NamedTuple):
    """The counts of a Step, to keep: its window is large."""

    tokens: Sequence[int]
    drafted: int
    accepted: int


@dataclass
class Iteration:
    """One step of a decoder, and what it took. Times in seconds, None where they are not known."""

    step: Counted | None = None
    drafting: float | None = 0.0  # in the draft
    scoring: float | None = 0.0  # in the target
    seconds: float | None = 0.0  # in all
    draft_prefill: bool = False  # whether the draft also read text that was new to it: kept out of t_draft then
    prefill: bool = False  # likewise the target, and t_target
    alpha: list[float] = field(default_factory=list)  # the chance of acceptance where a draft was tested, in order
    matching: list[float] = field(default_factory=list)  # Σ p q, likewise
    by: list[str] = field(default_factory=list)  # who proposed each draft, where that is known
    levels: dict[str, list["Iteration"]] = field(default_factory=dict)  # of each level of the drafter, outermost first
    tree: TreeDetails | None = None  # where the draft was one
    details: Details | None = None  # what decided this step, if that is kept
    pieces: list[str] = field(default_factory=list)  # the text of each token; the last one's has what the text ends in


@dataclass
class Record:
    """The texts of one decoder."""

    seconds: float = 0.0
    decodes: int = 1  # how many there were of the same; this is the one that took the middle time
    # Of a loop on a device, whose parts cannot be timed:
    prefill: float | None = None  # seconds
    t_draft: float | None = None  # seconds of a drafted token
    t_target: dict[int, float] = field(default_factory=dict)  # {rows: seconds}
    row_calls: int = 0  # of prompts decoded together: how many rows all calls of the target had, idle ones included
    samples: list[list[Iteration]] = field(default_factory=list)  # of each text
    rule: Rule = TOKEN

    @property
    def iterations(self) -> list[Iteration]:
        return [iteration for sample in self.samples for iteration in sample]

    @property
    def tokens(self) -> list[list[int]]:
        """The new tokens of each text."""
        return [[token for i in sample for token in i.step.tokens] for sample in self.samples]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.tokens))


def first_tokens(iterations: Iterable[Iteration], n: int) -> list[Iteration]:
    """The iterations of a level as far as n tokens: those beyond were cut with what the level proposed (stop.cut)."""
    kept = []
    for iteration in iterations:
        if n >= len(iteration.step.tokens):
            kept.append(iteration)
        elif n > 0:
            step = Counted(iteration.step.tokens[:n], n, n)
            cut = {name: getattr(iteration, name)[:n] for name in ("alpha", "matching", "by")}
            kept.append(replace(iteration, step=step, **cut))
        n -= len(iteration.step.tokens)
    return kept


def origins(iteration: Iteration) -> list[str]:
    """The origin of each of a step's tokens. The drafts come first; the last token is the target's own.

    A draft that is not the draft model's own is "accepted: " and the name of who proposed it.
    """
    step = iteration.step
    whole = step.accepted == step.drafted
    if iteration.tree:  # whose path is whole where it ends in a leaf
        last = [0, *iteration.tree["path"]][-1]
        whole = last not in iteration.tree["parents"]
    own = "bonus" if whole else "resampled"
    if step.drafted == 0:
        own = "autoregressive"
    by = [*iteration.by, *["model"] * step.accepted][: step.accepted]
    accepted = ["accepted" if name == "model" else f"accepted: {name}" for name in by]
    return [*accepted, own][: len(step.tokens)]


# ---- JSON ------------------------------------------------------------------------------------------------------------

OF_RECORD = {name: kind for name, kind in get_type_hints(Record).items() if name not in ("samples", "rule")}
OF_ITERATION = {
    name: kind for name, kind in get_type_hints(Iteration).items() if name not in ("step", "levels", "pieces")
}


def to_json(value: Record | Iteration) -> dict:
    """Without the texts of a Record; of an Iteration's tokens it has the number. JSON has texts alone for keys."""
    if isinstance(value, Record):
        rows = {str(rows): seconds for rows, seconds in value.t_target.items()}
        return {name: getattr(value, name) for name in OF_RECORD} | {"t_target": rows}
    step = value.step
    known = {name: getattr(value, name) for name in OF_ITERATION}
    if not value.details:
        del known["details"]
    levels = [{"name": name, "iterations": [*map(to_json, level)]} for name, level in value.levels.items()]
    return {"tokens": len(step.tokens), "drafted": step.drafted, "accepted": step.accepted, **known, "levels": levels}


def read_record(known: dict, **rest: Any) -> Record:
    """Raises what a wrong type or a missing key raises; so do the others."""
    rows = {int(rows): seconds for rows, seconds in known["t_target"].items()}
    return Record(**read_fields(known | {"t_target": rows}, OF_RECORD), **rest)


def read_iteration(known: dict, tokens: Sequence[int]) -> Iteration:
    counts = [checked(known[name], int) for name in ("drafted", "accepted")]
    levels = {}
    for level in known["levels"]:
        calls = [read_iteration(call, range(call["tokens"])) for call in level["iterations"]]
        levels[checked(level["name"], str)] = calls
    return Iteration(Counted(tokens, *counts), **read_fields({"details": None} | known, OF_ITERATION), levels=levels)


def read_fields(known: dict, kinds: dict[str, Any]) -> dict:
    return {name: checked(known[name], kind) for name, kind in kinds.items()}


def checked(value: Any, kind: Any) -> Any:
    """The value. Raises ValueError where it is not of this type."""
    if not fits(value, kind):
        raise ValueError(f"this is no {kind}")
    return value


def fits(value: Any, kind: Any) -> bool:
    parts = get_args(kind)
    if is_typeddict(kind):
        return isinstance(value, dict) and all(fits(value[key], part) for key, part in get_type_hints(kind).items())
    if isinstance(kind, UnionType):
        return any(fits(value, part) for part in parts)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(fits(item, parts[0]) for item in value)
    if get_origin(kind) is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(fits(key, parts[0]) and fits(item, parts[1]) for key, item in pairs)
    if kind in (int, float):  # Python counts truths among the numbers
        return isinstance(value, int | kind) and not isinstance(value, bool) and abs(value) <= LARGEST
    return kind is Any or isinstance(value, kind)
