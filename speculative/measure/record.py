"""The record of a run, as types: a Recorder fills them, and figures and JSON are made of them.

docs/output.md explains every key.
"""

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from speculative.measure.details import Details, TreeDetails
from speculative.rules import TOKEN, Rule


class Counted(NamedTuple):
    """The counts of a Step, to keep: its window is large."""

    tokens: list[int]
    drafted: int
    accepted: int


@dataclass
class Iteration:
    """One step of a decoder. Times in seconds, None if they are not known."""

    step: Counted | None = None
    drafting: float | None = 0.0  # seconds of Step 1
    scoring: float | None = 0.0  # seconds of the target's call
    seconds: float | None = 0.0  # in all
    draft_prefill: bool = False  # whether the draft read text that was new to it: not counted in t_draft then
    prefill: bool = False  # whether the target did: not counted in t_target then
    alpha: list[float] = field(default_factory=list)  # the chance of acceptance of each draft that was tested, in order
    matching: list[float] = field(default_factory=list)  # Σ p q at the same places
    by: list[str] = field(default_factory=list)  # the drafter that proposed each draft, if that is known
    levels: dict[str, list["Iteration"]] = field(default_factory=dict)  # of each level of the drafter, outermost first
    tree: TreeDetails | None = None  # if the draft was a tree
    details: Details | None = None  # the tests and the draws, if they are recorded
    pieces: list[str] = field(default_factory=list)  # the text of each token


@dataclass
class Record:
    """The texts of one decoder."""

    seconds: float = 0.0
    decodes: int = 1  # number of repeats; this is the median run
    # Of a loop on a device, whose parts cannot be timed:
    prefill: float | None = None  # seconds
    t_draft: float | None = None  # seconds of a draft token
    t_target: dict[int, float] = field(default_factory=dict)  # {rows: seconds}
    row_calls: int = 0  # of prompts decoded together: rows of all calls of the target, idle ones included
    samples: list[list[Iteration]] = field(default_factory=list)  # the iterations of each text
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


def origins(iteration: Iteration) -> list[str]:
    """The origin of each of a step's tokens. The drafts come first; the last token is the target's own.

    A draft that is not the draft model's own is "accepted: " and the name of the drafter that proposed it.
    """
    step = iteration.step
    whole = step.accepted == step.drafted
    if iteration.tree:  # a path is whole if it ends in a leaf
        last = [0, *iteration.tree["path"]][-1]
        whole = last not in iteration.tree["parents"]
    last = "bonus" if whole else "resampled"
    if step.drafted == 0:
        last = "autoregressive"
    by = [*iteration.by, *["model"] * step.accepted][: step.accepted]
    accepted = ["accepted" if name == "model" else f"accepted: {name}" for name in by]
    return [*accepted, last][: len(step.tokens)]


def to_json(value: Record | Iteration) -> dict[str, Any]:
    """Without the texts of a Record; an Iteration has the number of its tokens. JSON has only texts for keys."""
    if isinstance(value, Record):
        known = {f.name: getattr(value, f.name) for f in fields(Record) if f.name not in ("samples", "rule")}
        return known | {"t_target": {str(rows): seconds for rows, seconds in value.t_target.items()}}
    step = value.step
    known = {f.name: getattr(value, f.name) for f in fields(Iteration) if f.name not in ("step", "levels", "pieces")}
    levels = [{"name": name, "iterations": [*map(to_json, level)]} for name, level in value.levels.items()]
    counts = {"tokens": len(step.tokens), "drafted": step.drafted, "accepted": step.accepted}
    return counts | known | {"levels": levels}
