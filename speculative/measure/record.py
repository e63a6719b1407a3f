"""What is recorded of a run: an Iteration for each call of the target. docs/output.md explains every key."""

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


class Counted(NamedTuple):
    """The counts of a Step, without its distributions, which are large."""

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
    draft_prefill: bool = False  # True if the draft model also read the prompt: not counted in t_draft
    prefill: bool = False  # True if the target also read the prompt: not counted in t_target
    alpha: list[float] = field(default_factory=list)  # chance of acceptance of each tested draft, in order
    source: list[str] = field(default_factory=list)  # name of the drafter that proposed each draft, if known
    levels: dict[str, list["Iteration"]] = field(default_factory=dict)  # of each level of a staged drafter, outer first
    tree: dict | None = None  # {"tokens", "parents", "path"}, if the proposal was a tree
    details: dict | None = None  # tests and draws, if they are recorded
    pieces: list[str] = field(default_factory=list)  # text of each token


def origins(iteration: Iteration) -> list[str]:
    """Return the origin of each token: "accepted", then "resampled", "bonus" or "autoregressive".

    A draft that the draft model did not propose is "accepted: " and the name of its drafter.
    """
    step = iteration.step
    n_accepted = min(step.accepted, len(step.tokens))
    whole = step.accepted == step.drafted
    if iteration.tree:  # a path is whole if it ends in a leaf
        last_node = [0, *iteration.tree["path"]][-1]
        whole = last_node not in iteration.tree["parents"]
    last = "bonus" if whole else "resampled"
    if step.drafted == 0:
        last = "autoregressive"
    names = [*iteration.source, *["model"] * n_accepted][:n_accepted]
    accepted = ["accepted" if name == "model" else f"accepted: {name}" for name in names]
    return [*accepted, last][: len(step.tokens)]


def to_json(iteration: Iteration) -> dict[str, Any]:
    """Return the counts and times of an iteration, with the number of its tokens."""
    step = iteration.step
    counts = {"tokens": len(step.tokens), "drafted": step.drafted, "accepted": step.accepted}
    others = {f.name: getattr(iteration, f.name) for f in fields(Iteration) if f.name not in ("step", "pieces")}
    levels = [{"name": name, "iterations": [*map(to_json, level)]} for name, level in iteration.levels.items()]
    return counts | others | {"levels": levels}
