"""From the steps of a decoder to texts: the text of each token, the stop text, and the times from the models' logs."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from speculative.blog.encoder import StreamDecoder
from speculative.engines.model import Call
from speculative.trees import Tree

Logs = Mapping[str, deque[Call]]  # {role: a model's log}


@dataclass
class TextStep:
    """A Step of the loop, with its text and its times: what one call of the target gave.

    Times are in seconds, None if a loop on a device does not tell them. A text ends with the token that completes the
    stop text; the drafts after it count as rejected. An incomplete last character is yielded as one more step, which
    has no tokens.
    """

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    drafting: float | None = 0.0  # seconds of Step 1
    scoring: float | None = 0.0  # seconds of the target's call
    seconds: float | None = 0.0  # in all
    calls: list[tuple] = field(default_factory=list)  # (role, seconds after the step began, seconds)
    draft_prefill: bool = False  # True if the draft model also read the prompt: not counted in t_draft
    prefill: bool = False  # True if the target also read the prompt: not counted in t_target
    alpha: list[float] = field(default_factory=list)  # chance of acceptance of each tested draft, in order
    source: list[str] = field(default_factory=list)  # name of the drafter that proposed each draft, if known
    # Of a staged proposal, outermost level first: {drafter: [[tokens, drafted, accepted], ...] of its model's calls}
    levels: dict[str, list] = field(default_factory=dict)
    # Of a tree: "tokens" and "parents" of the nodes from 1 on, as node 0 is the text's last token; "path", the accepted
    tree: dict | None = None
    details: dict | None = None  # tests and draws, if they are recorded: see docs/output.md
    pieces: list[str] = field(default_factory=list)  # text of each token
    text_index: int = 0  # index of the text that the step belongs to, if there are several
    q: list[float] = field(default_factory=list)  # the target's probability of each token, if the step is not a tree
    step: Any = None  # the loop's Step, or a device's Row; a record drops it, as its distributions are large
    u: Sequence[float] = ()  # the random numbers of the step

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def origins(self) -> list[str]:
        """The origin of each token: "accepted", then "resampled", "bonus" or "autoregressive".

        A draft that the draft model did not propose is "accepted: " and the name of its drafter.
        """
        n_accepted = min(self.accepted, len(self.tokens))
        whole = self.accepted == self.drafted
        if self.tree:  # a path is whole if it ends in a leaf
            last_node = [0, *self.tree["path"]][-1]
            whole = last_node not in self.tree["parents"]
        last = "bonus" if whole else "resampled"
        if self.drafted == 0:
            last = "autoregressive"
        names = [*self.source, *["model"] * n_accepted][:n_accepted]
        accepted = ["accepted" if name == "model" else f"accepted: {name}" for name in names]
        return [*accepted, last][: len(self.tokens)]


class RecordedRandom:
    """A random generator that remembers its draws: the tests of a step can be rebuilt from them."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.u: list[float] = []

    def random(self, *size):
        drawn = self.rng.random(*size)
        self.u += np.ravel(drawn).tolist()
        return drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rng, name)  # what a user's rule may draw besides


def text_steps(
    calls: Iterator[Sequence], texts: Sequence[StreamDecoder], draws: RecordedRandom, logs: Logs, first: int = 0
) -> Iterator[TextStep]:
    """Yield each step of a decoder as a TextStep, until all texts are complete.

    calls: for each call of the target, the step of the one text, or from a loop on a device the Rows of the texts that
    it served. draws: the generator of the steps. logs: of the models, none on a device. first: the first text's number.
    """
    while not all(text.stopped for text in texts):
        draws.u = []
        began = time.perf_counter()
        steps = next(calls, None)
        seconds = time.perf_counter() - began
        if steps is None:
            break
        for step in steps:
            index = getattr(step, "text_index", 0)
            pieces = pieces_of(step.tokens, texts[index])
            shown = TextStep(
                tokens=[*map(int, step.tokens[: len(pieces)])],
                pieces=pieces,
                text_index=first + index,
                drafted=step.drafted,
                accepted=min(step.accepted, len(pieces)),
                source=sources_of(step),
                step=step,
                u=draws.u,
            )
            add_times(shown, logs, began, seconds)
            seconds = 0.0  # the first of several texts has the time of the call
            if isinstance(step.proposal, Tree):
                tree = step.proposal
                shown.tree = {"tokens": tree.tokens[1:], "parents": tree.parents[1:], "path": step.walk}
            yield shown
    for index, text in enumerate(texts, start=first):
        rest = text.flush()
        if rest:
            yield TextStep([], pieces=[rest], text_index=index)


def pieces_of(tokens: Sequence[int], text: StreamDecoder) -> list[str]:
    """Return the text of each token, up to the one that completes the stop text."""
    pieces = []
    for token in tokens:
        pieces.append(text.push([token]))
        if text.stopped:
            break
    return pieces


def sources_of(step: Any) -> list[str]:
    """Return the name of the drafter that proposed each draft of a step, if it is known."""
    source = step.proposal.source
    return [source] * step.drafted if isinstance(source, str) else [*source]


def add_times(i: TextStep, logs: Logs, began: float, seconds: float) -> None:
    """Add the times of a step that began at that time, by time.perf_counter."""
    i.seconds = seconds
    if not logs:
        i.drafting = i.scoring = None
        return
    calls = [(role, call) for role, log in logs.items() for call in since(log, began)]
    calls.sort(key=lambda one: one[1].began)
    target = [call for role, call in calls if role == "target"][-1]
    i.drafting = target.began - began if i.drafted else 0.0
    i.scoring = target.seconds
    i.calls = [(role, call.began - began, call.seconds) for role, call in calls]
    i.draft_prefill = any(call.prefill for role, call in calls if role != "target")
    i.prefill = target.prefill


def since(log: deque[Call], began: float) -> list[Call]:
    """Return the calls that began after that time. The log is in the order in which calls ended, and it is copied:
    another thread may decode with the same model."""
    ended_later = takewhile(lambda call: call.began + call.seconds >= began, reversed(log.copy()))
    return [call for call in ended_later if call.began >= began][::-1]
