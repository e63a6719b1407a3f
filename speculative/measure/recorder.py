"""The record of a run: an Iteration for each call of the target, made from the steps, the models' logs and the random
numbers that were drawn. docs/output.md explains every key."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np

from speculative.blog.encoder import StreamDecoder
from speculative.engines.model import Call
from speculative.rules import TOKEN, Rule
from speculative.sampling import Step
from speculative.trees import Tree

N_TOP = 10  # number of the likeliest tokens that are recorded of a distribution


@dataclass
class Iteration:
    """One call of the target, as tokens, text and times, without its distributions, which are large.

    Times are in seconds, None if a loop on a device does not tell them. If a text ends in a part of a character, a last
    step without tokens has that part as its piece.
    """

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    drafting: float | None = 0.0  # seconds of Step 1
    scoring: float | None = 0.0  # seconds of the target's call
    seconds: float | None = 0.0  # in all
    calls: list[tuple] = field(default_factory=list)  # of the models: (role, seconds after the step began, seconds)
    draft_prefill: bool = False  # True if the draft model also read the prompt: not counted in t_draft
    prefill: bool = False  # True if the target also read the prompt: not counted in t_target
    alpha: list[float] = field(default_factory=list)  # chance of acceptance of each tested draft, in order
    source: list[str] = field(default_factory=list)  # name of the drafter that proposed each draft, if known
    levels: dict[str, list] = field(default_factory=dict)  # {drafter: [[tokens, drafted, accepted], ...] of its calls}
    tree: dict | None = None  # {"tokens", "parents", "path"}, if the proposal was a tree
    details: dict | None = None  # tests and draws, if they are recorded
    pieces: list[str] = field(default_factory=list)  # text of each token
    number: int = 0  # number of the text that the step belongs to, if there are several

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
        calls = [(role, call) for role, log in self.logs.items() for call in since(log, began)]
        calls.sort(key=lambda one: one[1].began)
        target = [call for role, call in calls if role == "target"][-1]
        source = step.proposal.source
        iteration = Iteration(
            tokens=[*map(int, step.tokens)],
            drafted=step.drafted,
            accepted=step.accepted,
            drafting=target.began - began if step.drafted else 0.0,
            scoring=target.seconds,
            seconds=seconds,
            calls=[(role, call.began - began, call.seconds) for role, call in calls],
            draft_prefill=any(call.prefill for role, call in calls if role != "target"),
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


# ---- As JSON ---------------------------------------------------------------------------------------------------------


def to_json(iteration: Iteration) -> dict[str, Any]:
    """Return the text, the counts and the times of an iteration."""
    origins = [origin.partition(":")[0] for origin in iteration.origins]
    found = {"text": iteration.text} | vars(iteration) | {"tokens": len(iteration.tokens), "origins": origins}
    return {name: value for name, value in found.items() if name != "number"}


def details(step: Step, rule: Rule, u: Sequence[float]) -> dict:
    """Return {"drafts", "tested", "own"} of a step that drafted a chain: its drafts, the tests that decided about them,
    and the draw of the last token. u: the random numbers that the rule drew."""
    explained = rule.explain(step.proposal, step.q, u)
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for token, test, p_i, q_i in zip(drafts, explained.tests, step.proposal.p, step.q, strict=False):  # p_i [n_vocab]
        numbers = {name: value for name, value in test._asdict().items() if value is not None}
        tested.append({"token": token, **numbers, "top": top(np.maximum(p_i, q_i), token, p_i, q_i)})
    q = explained.q  # [n_vocab]
    token = int(step.tokens[-1])
    residual = step.accepted < step.drafted and not np.may_share_memory(q, step.q)
    own = {"token": token, "from": "residual" if residual else "q", "u": explained.u, "top": top(q, token, q)}
    return {"drafts": drafts, "tested": tested, "own": own}


def top(order, token: int, *columns) -> list[list]:  # [n_vocab] each -> rows
    """Return the rows [id, its probabilities] of the N_TOP tokens that are the first by this order, without those of
    probability 0, and of this token."""
    n = min(N_TOP, len(order))
    first = np.argpartition(order, -n)[-n:]  # [n]
    ids = sorted({*first[order[first] > 0].tolist(), token}, key=lambda id: (-order[id], id))
    return [[id, *(float(f"{column[id]:.4g}") for column in columns)] for id in ids]
