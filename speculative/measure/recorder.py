"""Records what happens in a run: reads the steps, the models' logs and the random numbers that were drawn."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np

from speculative.blog.encoder import StreamDecoder
from speculative.engines.model import Call
from speculative.measure.record import Iteration, details
from speculative.rules import TOKEN, Rule
from speculative.sampling import Step
from speculative.trees import Tree


class Draws:
    """A random generator that remembers its draws: the tests of a step are rebuilt from them."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.u = []

    def random(self) -> float:
        self.u.append(self.rng.random())
        return self.u[-1]

    def integers(self, *limits: int) -> int:
        return int(self.rng.integers(*limits))


@dataclass
class Recorder:
    """The record of one decoder's texts. Only the decoder's own time is counted."""

    rule: Rule = TOKEN
    logs: dict[str, deque[Call]] = field(default_factory=dict)  # {role: a model's log}
    levels: Sequence[str] = ()  # the drafters that have a drafter of their own, the outermost first
    details: bool = False  # True to record the tests and draws of each step
    samples: list[list[Iteration]] = field(default_factory=list)  # the iterations of each text
    seconds: float = 0.0
    runs: int = 1  # number of repeats; this is the median run
    # Of a loop on a device, which cannot time each call:
    prefill: float | None = None  # seconds
    t_draft: float | None = None  # seconds of a draft token
    t_target: dict[int, float] = field(default_factory=dict)  # {rows: seconds of a call}

    @property
    def iterations(self) -> list[Iteration]:
        return [iteration for sample in self.samples for iteration in sample]

    @property
    def tokens(self) -> list[list[int]]:
        """The new tokens of each text."""
        return [[token for i in sample for token in i.tokens] for sample in self.samples]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.tokens))

    def watch(
        self, calls: Iterator[list], texts: Sequence[StreamDecoder], draws: Draws, device: Any = None
    ) -> Iterator[Iteration]:
        """Yield an iteration for each step, until all texts are complete.

        calls: for each call of the target, the step of the one text, or from a loop on a device, which knows its own
        times, the Rows of the texts that it served. draws: the generator of the steps.
        """
        first = len(self.samples)
        self.samples += [[] for _ in texts]
        while not all(text.stopped for text in texts):
            draws.u = []
            began = time.perf_counter()
            steps = next(calls, None)
            seconds = time.perf_counter() - began
            self.seconds += seconds
            if steps is None:
                break
            for step in steps:
                number = step.number if device else 0
                iteration = self.of_device(step, device) if device else self.iteration(step, began, seconds, draws.u)
                iteration.number = first + number
                add_text(iteration, texts[number])
                self.samples[first + number].append(iteration)
                yield iteration
        for text, sample in zip(texts, self.samples[first:], strict=True):
            yield from rest_of(text, sample)

    def of_device(self, row: Any, device: Any) -> Iteration:
        """Return the known facts of a step, without its times. Those of the run are noted here."""
        self.prefill = (self.prefill or 0.0) + row.prefill
        self.t_target = {rows: seconds for rows, seconds in device.seconds.items() if rows != "draft"}
        if row.drafted:
            self.t_draft = device.seconds.get("draft")
        return Iteration([*map(int, row.tokens)], row.drafted, row.accepted, None, None, None, alpha=row.alpha)

    def iteration(self, step: Step, began: float, seconds: float, u: Sequence[float]) -> Iteration:
        calls = {role: since(log, began) for role, log in self.logs.items()}
        target = calls["target"][-1]
        source = step.proposal.source
        iteration = Iteration(
            tokens=[*map(int, step.tokens)],
            drafted=step.drafted,
            accepted=step.accepted,
            drafting=target.began - began if step.drafted else 0.0,
            scoring=target.seconds,
            seconds=seconds,
            calls=sorted(
                [(role, call.began - began, call.seconds) for role, of in calls.items() for call in of],
                key=lambda call: call[1],
            ),
            draft_prefill=any(call.prefill for role, of in calls.items() if role != "target" for call in of),
            prefill=target.prefill,
            alpha=self.rule.chances(step),
            source=[source] * step.drafted if isinstance(source, str) else [*source],
        )
        if isinstance(step.proposal, Tree):
            tree = step.proposal
            iteration.tree = {"tokens": tree.tokens[1:], "parents": tree.parents[1:], "path": step.walk}
            return iteration
        inner = step.proposal.inner
        for name in self.levels:
            iteration.levels[name] = [[len(one.tokens), one.drafted, one.accepted] for one in inner]
            inner = [deeper for one in inner for deeper in one.proposal.inner]
        if self.details:
            iteration.details = details(step, self.rule, u[-self.rule.n_draws(step) :])
        return iteration


def since(log: deque[Call], began: float) -> list[Call]:
    """Return the calls that began after that time. The log is in the order in which calls ended, and it is copied:
    another thread may decode with the same model."""
    ended_later = takewhile(lambda call: call.began + call.seconds >= began, reversed(log.copy()))
    return [call for call in ended_later if call.began >= began][::-1]


def add_text(iteration: Iteration, text: StreamDecoder) -> None:
    """Add the text of each token. The iteration ends with the token that completes the stop text; the drafts after it
    were proposed and scored, and are counted as rejected."""
    for token in iteration.tokens:
        iteration.pieces.append(text.push([token]))
        if text.stopped:
            break
    n = len(iteration.pieces)
    if n < len(iteration.tokens):
        iteration.tokens = iteration.tokens[:n]
        iteration.accepted = min(iteration.accepted, n)
        iteration.alpha = iteration.alpha[:n]
        if iteration.details:
            iteration.details["tested"] = iteration.details["tested"][:n]
            iteration.details["own"] = None


def rest_of(text: StreamDecoder, sample: list[Iteration]) -> Iterator[Iteration]:
    """Yield a step with the part of a character in which the text ends, if it does, and add it to the last token."""
    rest = text.flush()
    if rest:
        *before, last = sample[-1].pieces
        sample[-1] = replace(sample[-1], pieces=[*before, last + rest])  # a copy: the step was yielded without them
        yield Iteration([], pieces=[rest], number=sample[-1].number)
