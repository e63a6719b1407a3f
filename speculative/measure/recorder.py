"""Notes what happens in a run: reads the steps, the models' logs and the random numbers that were drawn."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from speculative.blog.encoder import StreamDecoder
from speculative.engines.model import Call
from speculative.measure.analysis import matching_chance
from speculative.measure.details import TreeDetails, details
from speculative.measure.record import Counted, Iteration, Record
from speculative.rules import TOKEN, Rule
from speculative.sampling import Step
from speculative.trees import Tree, TreeStep


class Draws:
    """A random generator that remembers its draws: from them the tests of a step are worked out afterwards."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.u = []

    def random(self) -> float:
        self.u.append(self.rng.random())
        return self.u[-1]

    def integers(self, *limits: int) -> int:
        return int(self.rng.integers(*limits))

    def taken(self) -> list[float]:
        """The draws since the last call."""
        taken = self.u
        self.u = []
        return taken


class Recorder(Record):
    """Notes every step of a decoder that it watches. Only the decoder's own time is counted."""

    def __init__(
        self,
        rule: Rule = TOKEN,
        logs: dict[str, list[Call]] | None = None,
        levels: dict[str, str] | None = None,
        details: bool = False,
    ):
        """logs: of each model, by role. levels: {name of a level of the drafter: the role of its model}, the outermost
        first. details: whether to keep the tests and draws of each step."""
        super().__init__(rule=rule)
        self.logs = logs or {}
        self.level_roles = levels or {}
        self.details = details
        self.now = Iteration()  # of the last step

    def watch(
        self, steps: Iterator[Step], draws: Draws, text: StreamDecoder, device: Any = None
    ) -> Iterator[Iteration]:
        """An iteration for each step, up to the one that completes the stop text. device: a loop on a device, which
        tells what is known of its times."""
        self.samples.append([])
        while not text.stopped:
            began = time.perf_counter()
            step = next(steps, None)
            seconds = time.perf_counter() - began
            self.seconds += seconds
            if step is None:
                return
            u = draws.taken()
            if device:
                self.now = device.iteration(self, step)
            else:
                self.now = self.iteration(step, began, seconds, u)
            self.read(text, step)
            self.samples[-1].append(self.now)
            yield self.now

    def read(self, text: StreamDecoder, step: Step) -> None:
        """The text of each token. If one of them completes the stop text, the iteration ends with it, as if the draft
        had proposed no more."""
        pieces = self.now.pieces
        for token in step.tokens:
            pieces.append(text.push([token]))
            if text.stopped:
                break
        self.now.step = Counted([*map(int, step.tokens)], step.drafted, step.accepted)
        if len(pieces) < len(step.tokens):
            cut(self.now, len(pieces))

    def iteration(self, step: Step, began: float, seconds: float, u: Sequence[float]) -> Iteration:
        proposal = step.proposal
        call = self.logs["target"][-1]
        drafts = [one for role, log in self.logs.items() if role != "target" for one in since(log, began)]
        iteration = Iteration(
            drafting=call.began - began if step.drafted else 0.0,
            scoring=call.seconds,
            seconds=seconds,
            draft_prefill=any(one.prefill for one in drafts),
            prefill=call.prefill,
            alpha=self.rule.chances(step),
        )
        if isinstance(proposal, Tree):
            iteration.by = [proposal.source] * step.drafted
            iteration.tree = tree_details(step)
            return iteration
        iteration.by = [*proposal.source]
        reached = range(len(iteration.alpha))
        iteration.matching = [float(matching_chance(proposal.p[i], step.q[i])) for i in reached]
        self.note_levels(iteration, proposal.inner, began)
        if self.details:
            n_draws = self.rule.n_draws(step)
            iteration.details = details(step, self.rule, u[-n_draws:])
        return iteration

    def note_levels(self, iteration: Iteration, steps: Sequence[Step], began: float) -> None:
        """The iterations of each level, from the steps inside the proposal and the log of the level's model."""
        inner_rule = self.rule if self.rule.lossless else TOKEN
        for name, role in self.level_roles.items():
            inner = []
            calls = since(self.logs[role], began)
            ended = began
            for step, call in zip(steps, calls, strict=False):
                one = Iteration(
                    Counted([*map(int, step.tokens)], step.drafted, step.accepted),
                    call.began - ended,
                    call.seconds,
                    call.began + call.seconds - ended,
                    prefill=call.prefill,
                    alpha=inner_rule.chances(step),
                    by=[*step.proposal.source],
                )
                ended = call.began + call.seconds
                inner.append(one)
            iteration.levels[name] = inner
            steps = [deeper for step in steps for deeper in step.proposal.inner]

    def watch_batch(self, calls: Iterator[list], texts: list[StreamDecoder], n_batch: int, device) -> Iterator[list]:
        """The same for prompts that are decoded together, n_batch at a time: a sample and a text for each.

        calls: for each call of the target, the rows of the prompts that it served.
        """
        samples = [[] for _ in texts]
        self.samples += samples
        while True:
            began = time.perf_counter()
            rows = next(calls, None)
            self.seconds += time.perf_counter() - began
            if rows is None:
                return
            self.row_calls += n_batch
            for row in rows:
                self.now = device.iteration(self, row)
                self.read(texts[row.number], row)
                samples[row.number].append(self.now)
            yield rows


def since(log: Sequence[Call], began: float) -> list[Call]:
    """The calls that began after that time."""
    return [call for call in log if call.began >= began]


def cut(iteration: Iteration, n: int) -> None:
    """Keep the first n tokens, all of them accepted drafts, as if no more had been proposed."""
    step = iteration.step
    drafted = n
    tree = iteration.tree
    if tree:
        depth = [0]
        for parent in tree["parents"]:
            depth.append(depth[parent] + 1)
        kept = [node for node in range(len(depth)) if depth[node] <= n]  # node 0 is the root
        place = {node: i for i, node in enumerate(kept)}
        iteration.tree = {
            "tokens": [tree["tokens"][node - 1] for node in kept[1:]],
            "parents": [place[tree["parents"][node - 1]] for node in kept[1:]],
            "path": [place[node] for node in tree["path"][:n]],
        }
        drafted = len(kept) - 1
    iteration.step = Counted(step.tokens[:n], drafted, n)
    iteration.by = iteration.by[:drafted]
    iteration.alpha = iteration.alpha[:n]
    iteration.matching = iteration.matching[:n]
    if iteration.details:
        known = iteration.details
        iteration.details = {"drafts": known["drafts"][:n], "tested": known["tested"][:n], "own": None}
    for name, inner in iteration.levels.items():
        iteration.levels[name] = inner = first_tokens(inner, n)
        n = sum(one.step.drafted for one in inner)


def first_tokens(iterations: Sequence[Iteration], n: int) -> list[Iteration]:
    """The iterations of a level as far as n tokens."""
    kept = []
    for iteration in iterations:
        if n > 0:
            kept.append(iteration)
            if n < len(iteration.step.tokens):
                cut(iteration, n)
        n -= len(iteration.step.tokens)
    return kept


def tree_details(step: TreeStep) -> TreeDetails:
    tree = step.proposal
    return {"tokens": tree.tokens[1:], "parents": tree.parents[1:], "path": step.walk}
