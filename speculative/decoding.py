"""Runs the loops of sampling.py on loaded models, and adds to each step its text, chances of acceptance and times."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from speculative.blog.encoder import StreamDecoder
from speculative.explain import RecordedRandom, explain_step
from speculative.rules import papers_chances
from speculative.step_times import StepTimes
from speculative.steps import TextCall, TextStep, origins_of
from speculative.trees import Tree, path_of


def decoded(
    session: Any, name: str, inputs: Sequence, N: int, sample: int = 0, with_details: bool = False
) -> Iterator[TextStep]:
    """Yield the steps of a session's decoder with their text: one text after the other, or as many together as --batch
    says.

    name: one of DECODERS. inputs: the tokens of each text's prompt. sample: the first text's number, which with the
    seed decides its random numbers. with_details: True to explain the tests of each step.
    """
    size = len(inputs) if session.plan.batch > 1 else 1  # of a group
    for first in range(0, len(inputs), size):
        decode = TextDecode(session, inputs[first : first + size], first, sample, with_details)
        yield from decode.steps(name, N)


@dataclass
class TextDecode:
    """A decode under way, of one text or of a batch."""

    session: Any
    inputs: Sequence  # the tokens of each text's prompt
    first: int  # the number of the first text
    sample: int
    with_details: bool

    def __post_init__(self):
        plan = self.session.plan
        numbers = range(self.first, self.first + len(self.inputs))
        self.rngs = [RecordedRandom(plan.rng(self.sample + number)) for number in numbers]
        self.texts = [StreamDecoder(self.session.encoder, plan.stop) for _ in numbers]

    def is_stopped(self, text_index: int) -> bool:
        return self.texts[text_index].stopped

    def steps(self, name: str, N: int) -> Iterator[TextStep]:
        """Yield each step of a decoder with its text and its times, until all texts are complete."""
        times = StepTimes(self.session.logs)
        calls = self.session.loops.calls(name, self.inputs, N, self.rngs, self.is_stopped)
        is_last = False
        while not is_last:
            times.begin()
            served = next(calls, None)
            times.end()
            if not served:
                break
            steps = [self.with_text(call) for call in served]
            is_last = all(text.stopped for text in self.texts)
            times.write(steps[0], is_last)
            yield from steps
        for index, text in enumerate(self.texts, start=self.first):
            if rest := text.flush():
                yield TextStep([], pieces=[rest], text_index=index)

    def with_text(self, call: TextCall) -> TextStep:
        """A step with its text and without times."""
        index, step, chances = call
        rule = self.session.plan.rule
        u = self.rngs[index].take()
        pieces = pieces_of(step.tokens, self.texts[index])
        n = len(pieces)  # tokens that belong to the text
        proposal = step.proposal
        with_text = TextStep(
            tokens=step.tokens[:n],
            pieces=pieces,
            text_index=self.first + index,
            origins=origins_of(step)[:n],
            drafted=step.n_drafted,
            accepted=min(step.n_accepted, n),
            source=[*proposal.source],
        )
        if chances is None:
            chances = rule.chances(step)
            with_text.alpha_token = papers_chances(step, rule)[:n]
        with_text.alpha = chances[:n]
        if isinstance(proposal, Tree):
            with_text.tree = {"tokens": proposal.tokens, "parents": proposal.parents, "path": path_of(step)[1:]}
            return with_text
        # strict=False, as a loop on a device has no q
        with_text.q = [float(row[token]) for row, token in zip(step.q, with_text.tokens, strict=False)]
        steps = proposal.inner
        for [outer] in self.session.plan.levels[:-1]:  # for whose drafters another one drafts
            with_text.levels[outer.name] = [[len(inner.tokens), inner.n_drafted, inner.n_accepted] for inner in steps]
            steps = [inmost for inner in steps for inmost in inner.proposal.inner]
        if self.with_details and len(step.q):
            with_text.details = explain_step(step, rule, u, n)
        return with_text


def pieces_of(tokens: Iterable[int], text: StreamDecoder) -> list[str]:
    """Return the text of each token, up to the one that completes the stop text."""
    pieces = []
    for token in tokens:
        pieces.append(text.push([token]))
        if text.stopped:
            break
    return pieces
