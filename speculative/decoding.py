"""Runs the loops of sampling.py on loaded models, and adds to each step its text, chances of acceptance and times."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from speculative.blog.encoder import StreamDecoder
from speculative.drafters.base import DrafterSpec
from speculative.explain import RecordedRandom, explain_step
from speculative.loops import Loops
from speculative.rules import Rule, papers_chances
from speculative.sampling import Proposal, Step
from speculative.step_times import StepTimes
from speculative.steps import StepOfText, TextStep, origins_of
from speculative.trees import Tree, path_of


def decoded(
    session: Any,
    name: str,
    inputs: Sequence,
    N: int,
    sample: int = 0,
    with_details: bool = False,
    loops: Loops | None = None,
) -> Iterator[TextStep]:
    """Yield the steps of a session's decoder with their text: one text after the other, or as many together as --batch
    says.

    name: one of DECODERS. inputs: the tokens of each text's prompt. sample: the first text's number, which with the
    seed decides its random numbers. with_details: True to explain the tests of each step. loops: in place of the
    session's, for another number of texts at a time.
    """
    loops = loops or session.loops
    size = len(inputs) if loops.batch > 1 else 1  # of a group
    for first in range(0, len(inputs), size):
        decode = TextDecode(session, loops, inputs[first : first + size], first, sample, with_details)
        yield from decode.steps(name, N)


@dataclass
class TextDecode:
    """A decode under way, of one text or of a batch."""

    session: Any
    loops: Loops
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
        rounds = self.loops.rounds(name, self.inputs, N, self.rngs, self.is_stopped)
        is_last = False
        while not is_last:
            times.begin()
            served = next(rounds, None)
            times.end()
            if not served:
                break
            steps = [self.text_step(call) for call in served]
            is_last = all(text.stopped for text in self.texts)
            times.write(steps[0], is_last)
            yield from steps
        for index, text in enumerate(self.texts, start=self.first):
            if rest := text.flush():
                yield TextStep([], pieces=[rest], text_index=index)

    def text_step(self, call: StepOfText) -> TextStep:
        """A call's step with its text and without times."""
        step = call.step
        proposal = step.proposal
        plan = self.session.plan
        u = self.rngs[call.place].take()
        pieces = pieces_of(step.tokens, self.texts[call.place])
        n = len(pieces)  # tokens that belong to the text
        chances, papers = chances_of(call, plan.rule)
        text_step = TextStep(
            tokens=step.tokens[:n],
            pieces=pieces,
            text_index=self.first + call.place,
            origins=origins_of(step)[:n],
            drafted=step.n_drafted,
            accepted=min(step.n_accepted, n),
            source=[*proposal.source],
            alpha=chances[:n],
            alpha_token=papers[:n],
        )
        if isinstance(proposal, Tree):
            text_step.tree = {"tokens": proposal.tokens, "parents": proposal.parents, "path": path_of(step)[1:]}
            return text_step
        # strict=False, as a loop on a device has no q
        text_step.q = [float(row[token]) for row, token in zip(step.q, text_step.tokens, strict=False)]
        text_step.levels = levels_of(proposal, plan.levels[:-1])
        if self.with_details and len(step.q):
            text_step.details = explain_step(step, plan.rule, u, n)
        return text_step


def chances_of(call: StepOfText, rule: Rule) -> tuple[list[float], list[float]]:
    """The chance of acceptance of each tested draft by the rule, and by the paper's if the rule changes its test."""
    if call.chances is not None:
        return call.chances, []
    return rule.chances(call.step), papers_chances(call.step, rule)


def levels_of(proposal: Proposal, outer_levels: Sequence[Sequence[DrafterSpec]]) -> dict[str, list]:
    """By the name of each drafter for which another one drafts, from the outermost in: [tokens, drafted, accepted] of
    the calls of its model in this proposal."""
    levels = {}
    proposals = [proposal]
    for [spec] in outer_levels:
        steps: list[Step] = [*chain.from_iterable(proposal.inner for proposal in proposals)]
        levels[spec.name] = [[len(step.tokens), step.n_drafted, step.n_accepted] for step in steps]
        proposals = [step.proposal for step in steps]
    return levels


def pieces_of(tokens: Iterable[int], text: StreamDecoder) -> list[str]:
    """Return the text of each token, up to the one that completes the stop text."""
    pieces = []
    for token in tokens:
        pieces.append(text.push([token]))
        if text.stopped:
            break
    return pieces
