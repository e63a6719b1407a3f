"""Runs the loops of sampling.py on loaded models, and adds to each step its text, chances of acceptance and times.

Step (of the loop) -> StepOfText (whose it is) -> TextStep (with its text and its times).
"""

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
    first_number: int = 0,
    with_details: bool = False,
    loops: Loops | None = None,
) -> Iterator[TextStep]:
    """Yield the steps of a session's decoder with their text: one text after the other, or as many together as --batch
    says.

    name: one of DECODERS. inputs: the tokens of each text's prompt. Text i has the random numbers of number
    first_number + i, which with the seed decides them. with_details: True to explain the tests of each step. loops: in
    place of the session's, for another number of texts at a time.
    """
    loops = loops or session.loops
    size = len(inputs) if loops.batch > 1 else 1  # of a group
    for first_text in range(0, len(inputs), size):
        group = inputs[first_text : first_text + size]
        decode = TextDecode(session, loops, group, first_text, first_number, with_details)
        yield from decode.steps(name, N)


@dataclass
class TextDecode:
    """A decode under way, of a group of texts: a single text, or a batch."""

    session: Any
    loops: Loops
    inputs: Sequence  # of the group: the tokens of each text's prompt
    first_text: int  # index, in all inputs, of this group's first text
    first_number: int  # text i of all inputs has the random numbers of number first_number + i
    with_details: bool

    def __post_init__(self):
        plan = self.session.plan
        indices = range(self.first_text, self.first_text + len(self.inputs))
        self.rngs = [RecordedRandom(plan.rng(self.first_number + index)) for index in indices]
        self.texts = [StreamDecoder(self.session.encoder, plan.stop) for _ in indices]

    def is_stopped(self, place: int) -> bool:
        return self.texts[place].stopped

    def steps(self, name: str, N: int) -> Iterator[TextStep]:
        """Yield each step of a decoder with its text and its times, until all texts are complete."""
        times = StepTimes(self.session.logs)
        rounds = self.loops.rounds(name, self.inputs, N, self.rngs, self.is_stopped)
        all_stopped = False  # whether each text has met its stop text
        while not all_stopped:
            times.begin()
            of_texts = next(rounds, None)
            times.end()
            if not of_texts:
                break
            steps = [self.text_step(of_text) for of_text in of_texts]
            all_stopped = all(text.stopped for text in self.texts)
            times.write(steps[0], all_stopped)
            yield from steps
        for index, text in enumerate(self.texts, start=self.first_text):
            if rest := text.flush():
                yield TextStep([], pieces=[rest], text_index=index)

    def text_step(self, of_text: StepOfText) -> TextStep:
        """Return a step with its text and without times. Its tokens are pushed to the text, and the random numbers that
        were recorded since the text's last step are taken."""
        place, step, _ = of_text
        u = self.rngs[place].take()
        pieces = push_tokens(step.tokens, self.texts[place])
        n = len(pieces)  # tokens that belong to the text
        chances, by_papers_rule = chances_of(of_text, self.session.plan.rule)
        text_step = TextStep(
            tokens=step.tokens[:n],
            drafted=step.n_drafted,
            accepted=min(step.n_accepted, n),
            pieces=pieces,
            origins=origins_of(step)[:n],
            text_index=self.first_text + place,
            alpha=chances[:n],
            alpha_token=by_papers_rule[:n],
            source=[*step.proposal.source],
        )
        if isinstance(step.proposal, Tree):
            add_tree(text_step, step)
        else:
            self.add_chain(text_step, step, u)
        return text_step

    def add_chain(self, text_step: TextStep, step: Step, u: Sequence[float]) -> None:
        """Add what a step has whose drafts follow each other: its tokens' probabilities, its levels and its tests."""
        plan = self.session.plan
        for row, token in zip(step.q, text_step.tokens, strict=False):  # a loop on a device has no q
            text_step.q_of_tokens.append(float(row[token]))
        text_step.levels = levels_of(step.proposal, plan.levels[:-1])
        if self.with_details and len(step.q):
            text_step.details = explain_step(step, plan.rule, u, len(text_step.tokens))


def add_tree(text_step: TextStep, step: Step) -> None:
    """Add the tree of drafts, and its accepted nodes."""
    tree = step.proposal
    text_step.tree = {"tokens": tree.tokens, "parents": tree.parents, "path": path_of(step)[1:]}


def chances_of(of_text: StepOfText, rule: Rule) -> tuple[list[float], list[float]]:
    """The chance of acceptance of each tested draft by the rule, and by the paper's if the rule changes its test."""
    if of_text.chances is not None:
        return of_text.chances, []
    return rule.chances(of_text.step), papers_chances(of_text.step, rule)


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


def push_tokens(tokens: Iterable[int], text: StreamDecoder) -> list[str]:
    """Push tokens to a text, up to the one that completes the stop text -> the text of each."""
    pieces = []
    for token in tokens:
        pieces.append(text.push([token]))
        if text.stopped:
            break
    return pieces
