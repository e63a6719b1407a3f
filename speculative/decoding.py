"""Runs the loops of sampling.py on loaded models, and adds to each step its text, chances of acceptance and times."""

from collections.abc import Iterator, Sequence
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

    def __init__(self, session: Any, rngs: Sequence[RecordedRandom], first: int, with_details: bool):
        """rngs: of each text. first: the number of the first text."""
        self.rule = session.plan.rule
        self.outer = session.plan.levels[:-1]  # for whose drafters another one drafts
        self.rngs = rngs
        self.texts = [StreamDecoder(session.encoder, session.plan.stop) for _ in rngs]
        self.first = first
        self.with_details = with_details
        self.times = StepTimes(session.logs)

    def is_stopped(self, text_index: int) -> bool:
        return self.texts[text_index].stopped

    def steps(self, calls: Iterator[list[TextCall]]) -> Iterator[TextStep]:
        """Yield each step with its text and its times, until all texts are complete."""
        is_last = False
        while not is_last:
            self.times.begin()
            served = next(calls, [])
            self.times.end()
            if not served:
                break
            steps = [self.with_text(call) for call in served]
            is_last = all(text.stopped for text in self.texts)
            self.times.write(steps[0], is_last)
            yield from steps
        for index, text in enumerate(self.texts, start=self.first):
            if rest := text.flush():
                yield TextStep([], pieces=[rest], text_index=index)

    def with_text(self, call: TextCall) -> TextStep:
        """A step with its text and without times."""
        index, step, chances = call
        u, self.rngs[index].u = self.rngs[index].u, []  # the next step's draws are its own
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
            chances = self.rule.chances(step)
            with_text.alpha_token = papers_chances(step, self.rule)[:n]
        with_text.alpha = chances[:n]
        if isinstance(proposal, Tree):
            with_text.tree = {"tokens": proposal.tokens, "parents": proposal.parents, "path": path_of(step)[1:]}
            return with_text
        # strict=False, as a loop on a device has no q
        with_text.q = [float(row[token]) for row, token in zip(step.q, with_text.tokens, strict=False)]
        with_text.levels = self.calls_inside(proposal)
        if self.with_details and self.rule.judge and len(step.q):
            with_text.details = explain_step(step, self.rule, u, n)
        return with_text

    def calls_inside(self, proposal: Any) -> dict:
        """TextStep.levels of a proposal."""
        levels = {}
        steps = proposal.inner
        for [spec] in self.outer:
            levels[spec.name] = [[len(step.tokens), step.n_drafted, step.n_accepted] for step in steps]
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
