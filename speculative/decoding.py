"""Runs the loops of sampling.py on loaded models, and adds to each step its text, chances of acceptance and times."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from speculative.blog.encoder import Encoder, StreamDecoder
from speculative.engines.model import Call
from speculative.explain import RecordedRandom, explain_step
from speculative.loops import Loops
from speculative.plan import Plan
from speculative.rules import papers_chances
from speculative.step_times import StepTimes
from speculative.steps import Served, TextStep, origins_of
from speculative.trees import Tree, path_of


class Decodes(Protocol):
    """The parts of a session that decode."""

    plan: Plan
    loops: Loops
    encoder: Encoder
    logs: Mapping[str, deque[Call]]  # by role, the calls of each model


def decoded(
    session: Decodes, name: str, inputs: Sequence, N: int, sample: int = 0, with_details: bool = False
) -> Iterator[TextStep]:
    """Yield the steps of a decoder with their text: one text after the other, or as many together as --batch says.

    name: one of DECODERS. inputs: the tokens of each text's prompt. sample: the first text's number, which with the
    seed decides its random numbers. with_details: True to explain the tests of each step.
    """
    plan = session.plan
    size = len(inputs) if plan.batch > 1 else 1  # of a group
    for first in range(0, len(inputs), size):
        group = inputs[first : first + size]
        rngs = [RecordedRandom(plan.rng(sample + first + index)) for index in range(len(group))]
        decode = TextDecode(session, rngs, first, with_details)
        calls = session.loops.calls(name, group, N, rngs, decode.is_stopped)
        yield from decode.steps(calls)


class TextDecode:
    """A decode under way, of one text or of a batch."""

    def __init__(self, session: Decodes, rngs: Sequence[RecordedRandom], first: int, with_details: bool):
        """rngs: of each text. first: the number of the first text."""
        self.rule = session.plan.rule
        self.outer = [specs[0].name for specs in session.plan.levels[:-1]]  # drafters for which another one drafts
        self.rngs = rngs
        self.texts = [StreamDecoder(session.encoder, session.plan.stop) for _ in rngs]
        self.first = first
        self.with_details = with_details
        self.times = StepTimes(session.logs)

    def is_stopped(self, text_index: int) -> bool:
        return self.texts[text_index].stopped

    @property
    def all_stopped(self) -> bool:
        return all(text.stopped for text in self.texts)

    def steps(self, calls: Iterator[list[Served]]) -> Iterator[TextStep]:
        """Yield each step with its text and its times, until all texts are complete."""
        while not self.all_stopped:
            self.times.begin()
            served = next(calls, None)
            self.times.end()
            if served is None:
                break
            shown = [self.with_text(answer) for answer in served]
            for answer in served:
                self.rngs[answer.text_index].u = []  # the next step's draws are its own
            self.times.write(shown[0], is_last=self.all_stopped)
            yield from shown
        for index, text in enumerate(self.texts, start=self.first):
            rest = text.flush()
            if rest:
                yield TextStep([], pieces=[rest], text_index=index)

    def with_text(self, served: Served) -> TextStep:
        """A step with its text and without times."""
        index, step, chances = served
        pieces = pieces_of(step.tokens, self.texts[index])
        n = len(pieces)  # tokens that belong to the text
        proposal = step.proposal
        shown = TextStep(
            tokens=[int(token) for token in step.tokens[:n]],
            pieces=pieces,
            text_index=self.first + index,
            origins=origins_of(step)[:n],
            drafted=step.n_drafted,
            accepted=min(step.n_accepted, n),
            alpha=(self.rule.chances(step) if chances is None else chances)[:n],
            source=[*proposal.source],
        )
        if chances is None:
            shown.alpha_token = papers_chances(step, self.rule)[:n]
        if isinstance(proposal, Tree):
            shown.tree = {"tokens": proposal.tokens, "parents": proposal.parents, "path": path_of(step)[1:]}
            return shown
        shown.q = [float(row[token]) for row, token in zip(step.q, shown.tokens, strict=False)]
        shown.levels = self.calls_inside(proposal)
        if self.with_details and self.rule.judge and chances is None:
            shown.details = explain_step(step, self.rule, self.rngs[index].u, n)
        return shown

    def calls_inside(self, proposal: Any) -> dict[str, list]:
        """TextStep.levels of a proposal."""
        levels = {}
        steps = proposal.inner
        for name in self.outer:
            levels[name] = [[len(step.tokens), step.n_drafted, step.n_accepted] for step in steps]
            steps = [inner for step in steps for inner in step.proposal.inner]
        return levels


def pieces_of(tokens: Sequence[int], text: StreamDecoder) -> list[str]:
    """Return the text of each token, up to the one that completes the stop text."""
    pieces = []
    for token in tokens:
        pieces.append(text.push([token]))
        if text.stopped:
            break
    return pieces
