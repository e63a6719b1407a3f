"""Records what happens in a run: reads the steps, the models' logs and the random numbers that were drawn."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
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


class Recorder:
    """The record of one decoder's texts. Only the decoder's own time is counted."""

    def __init__(
        self,
        rule: Rule = TOKEN,
        logs: dict[str, deque[Call]] | None = None,
        levels: dict[str, str] | None = None,
        details: bool = False,
    ):
        """logs: {role: a model's log}. levels: {name of a level of the drafter: the role of its model}, the outermost
        first. details: True to record the tests and draws of each step."""
        self.rule = rule
        self.logs = logs or {}
        self.level_roles = levels or {}
        self.details = details
        self.samples: list[list[Iteration]] = []  # the iterations of each text
        self.seconds = 0.0
        self.runs = 1  # number of repeats; this is the median run
        # Of a loop on a device, which cannot time each call:
        self.prefill: float | None = None  # seconds
        self.t_draft: float | None = None  # seconds of a draft token
        self.t_target: dict[int, float] = {}  # {rows: seconds of a call}

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
        self, steps: Iterator[Step], draws: Draws, text: StreamDecoder, device: Any = None
    ) -> Iterator[Iteration]:
        """Yield an iteration for each step, up to the one that completes the stop text. device: a loop on a device,
        which knows its own times."""
        sample = []
        self.samples.append(sample)
        while not text.stopped:
            draws.u = []
            began = time.perf_counter()
            step = next(steps, None)
            seconds = time.perf_counter() - began
            self.seconds += seconds
            if step is None:
                break
            iteration = self.of_device(step, device) if device else self.iteration(step, began, seconds, draws.u)
            iteration.number = len(self.samples) - 1
            add_text(iteration, text)
            sample.append(iteration)
            yield iteration
        yield from rest_of(text, sample)

    def of_device(self, row, device) -> Iteration:
        """Return the known facts of a step, without its times. Those of the run are noted here."""
        self.prefill = (self.prefill or 0.0) + row.prefill
        self.t_target = {rows: seconds for rows, seconds in device.seconds.items() if rows != "draft"}
        if row.drafted:
            self.t_draft = device.seconds.get("draft")
        return Iteration([*map(int, row.tokens)], row.drafted, row.accepted, None, None, None, alpha=row.alpha)

    def watch_batch(self, calls: Iterator[list], texts: list[StreamDecoder], device) -> Iterator[Iteration]:
        """Do the same for prompts that are decoded together: a sample and a text for each.

        calls: for each call of the target, the rows of the prompts that it served.
        """
        self.samples += [[] for _ in texts]
        while True:
            began = time.perf_counter()
            rows = next(calls, None)
            self.seconds += time.perf_counter() - began
            if rows is None:
                break
            for row in rows:
                iteration = self.of_device(row, device)
                iteration.number = row.number
                add_text(iteration, texts[row.number])
                self.samples[row.number].append(iteration)
                yield iteration
        for text, sample in zip(texts, self.samples, strict=True):
            yield from rest_of(text, sample)

    def iteration(self, step: Step, began: float, seconds: float, u: Sequence[float]) -> Iteration:
        iteration = timed(step, self.rule, self.logs["target"][-1], began)
        iteration.seconds = seconds
        drafts = [log for role, log in self.logs.items() if role != "target"]
        iteration.draft_prefill = any(call.prefill for log in drafts for call in since(log, began))
        if isinstance(step.proposal, Tree):
            tree = step.proposal
            iteration.tree = {"tokens": tree.tokens[1:], "parents": tree.parents[1:], "path": step.walk}
            return iteration
        self.add_levels(iteration, step.proposal.inner, began)
        if self.details:
            iteration.details = details(step, self.rule, u[-self.rule.n_draws(step) :])
        return iteration

    def add_levels(self, iteration: Iteration, steps: Sequence[Step], began: float) -> None:
        """Add the iterations of each level, from the steps inside the proposal and the log of the level's model."""
        rule = self.rule if self.rule.lossless else TOKEN
        for name, role in self.level_roles.items():
            iteration.levels[name] = []
            ended = began
            for step, call in zip(steps, since(self.logs[role], began), strict=False):
                iteration.levels[name].append(timed(step, rule, call, ended))
                ended = call.began + call.seconds
            steps = [deeper for step in steps for deeper in step.proposal.inner]


def timed(step: Step, rule: Rule, call: Call, began: float) -> Iteration:
    """Return the iteration of a step that began at this time, and of its model's call."""
    drafting = call.began - began if step.drafted else 0.0
    source = step.proposal.source
    return Iteration(
        tokens=[*map(int, step.tokens)],
        drafted=step.drafted,
        accepted=step.accepted,
        drafting=drafting,
        scoring=call.seconds,
        seconds=drafting + call.seconds,
        prefill=call.prefill,
        alpha=rule.chances(step),
        source=[source] * step.drafted if isinstance(source, str) else [*source],
    )


def since(log: deque[Call], began: float) -> list[Call]:
    """Return the calls that began after that time. The log is copied, as other threads may write to it."""
    return [*takewhile(lambda call: call.began >= began, reversed(log.copy()))][::-1]


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
