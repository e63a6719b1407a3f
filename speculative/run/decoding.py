"""Runs the loops of sampling.py on loaded models, and adds to each step its text, chances of acceptance and times.

Step (of the loop) -> PlacedStep (with the place of its text) -> TextStep (with its text and its times).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from speculative.blog.encoder import StreamDecoder
from speculative.drafters.base import DrafterSpec
from speculative.engines.contract import PlacedStep
from speculative.rules import papers_chances
from speculative.run.explain import RecordedRandom, explain_step
from speculative.run.loops import Loops
from speculative.run.step_times import StepTimes
from speculative.run.steps import TextStep, origins_of
from speculative.sampling import Proposal, Step
from speculative.trees import Tree, path_of


def decoded(
    session: Any,
    name: str,
    inputs: Sequence,
    N: int,
    first_sample: int = 0,
    with_details: bool = False,
    loops: Loops | None = None,
) -> Iterator[TextStep]:
    """Yield the steps of a session's decoder with their text: one text after the other, or as many together as --batch
    says.

    name: one of DECODERS. inputs: the tokens of each text's prompt. first_sample: the number of the first text, as in
    Session.speculative; the others follow. with_details: True to explain the tests of each step. loops: in place of the
    session's, for another number of texts at a time.
    """
    loops = loops or session.loops
    group_size = len(inputs) if loops.batch > 1 else 1  # all texts of a batch: the loops seat --batch at a time
    for first_text in range(0, len(inputs), group_size):
        group = inputs[first_text : first_text + group_size]
        decode = TextDecode(session, loops, group, first_text, first_sample + first_text, with_details)
        yield from decode.steps(name, N)


class TextUnderWay(NamedTuple):
    """A text of a group."""

    number: int  # of all texts
    rng: RecordedRandom
    stream: StreamDecoder  # of its tokens so far


class TextDecode:
    """A decode under way, of a group of texts: a single text, or a batch."""

    def __init__(
        self, session: Any, loops: Loops, inputs: Sequence, first_text: int, first_sample: int, with_details: bool
    ):
        """inputs: the tokens of each text's prompt. first_text: the number of the group's first text. first_sample: its
        sample number, which with the seed decides its random numbers."""
        self.session = session
        self.loops = loops
        self.inputs = inputs
        self.with_details = with_details
        plan = session.plan
        self.texts = []  # by their places
        for place in range(len(inputs)):
            rng = RecordedRandom(plan.rng(first_sample + place))
            self.texts.append(TextUnderWay(first_text + place, rng, StreamDecoder(session.encoder, plan.stop)))

    def is_stopped(self, place: int) -> bool:
        """Whether a text of the group has met its stop text."""
        return self.texts[place].stream.stopped

    def are_all_stopped(self) -> bool:
        return all(text.stream.stopped for text in self.texts)

    def steps(self, name: str, N: int) -> Iterator[TextStep]:
        """Yield each step of a decoder with its text and its times, until all texts are complete."""
        times = StepTimes(self.session.logs)
        rngs = [text.rng for text in self.texts]
        rounds = self.loops.rounds(name, self.inputs, N, rngs, self.is_stopped)
        for served in times.clocked(rounds):
            steps = [self.make_text_step(placed) for placed in served]
            times.write_to(steps[0], self.are_all_stopped())
            yield from steps
            if self.are_all_stopped():
                break
        for text in self.texts:
            if rest := text.stream.flush():
                yield TextStep([], pieces=[rest], text_index=text.number)

    def make_text_step(self, placed: PlacedStep) -> TextStep:
        """Return a step with its text, and without times: StepTimes.write_to adds them. Its tokens are pushed to the
        text, and the random numbers that were recorded since the text's last step are taken."""
        place, step, chances = placed
        text = self.texts[place]
        u = text.rng.take()
        pieces = push_tokens(step.tokens, text.stream)
        n = len(pieces)  # tokens that belong to the text
        text_step = TextStep(
            tokens=step.tokens[:n],
            drafted=step.n_drafted,
            accepted=min(step.n_accepted, n),
            pieces=pieces,
            origins=origins_of(step)[:n],
            text_index=text.number,
            source=[*step.proposal.source],
        )
        self.add_chances(text_step, step, chances)
        if isinstance(step.proposal, Tree):
            add_tree(text_step, step)
        else:
            self.add_chain(text_step, step, u)
        return text_step

    def add_chances(self, text_step: TextStep, step: Step, chances: list[float] | None) -> None:
        """Add the chances of acceptance by the rule, and by the paper's rule if this one changes its test."""
        rule = self.session.plan.rule
        n = len(text_step.tokens)
        if chances is not None:  # of a loop on a device
            text_step.alpha = chances[:n]
            return
        text_step.alpha = rule.chances(step)[:n]
        text_step.alpha_token = papers_chances(step, rule)[:n]

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


def levels_of(proposal: Proposal, outer_levels: Sequence[Sequence[DrafterSpec]]) -> dict[str, list]:
    """By the name of each drafter for which another one drafts, from the outermost in: [tokens, drafted, accepted] of
    the calls of its model in this proposal."""
    levels = {}
    proposals = [proposal]
    for [spec] in outer_levels:
        steps: list[Step] = []
        for of_level in proposals:
            steps += of_level.inner
        levels[spec.name] = [[len(step.tokens), step.n_drafted, step.n_accepted] for step in steps]
        proposals = [step.proposal for step in steps]
    return levels


def push_tokens(tokens: Iterable[int], stream: StreamDecoder) -> list[str]:
    """Push tokens to a text, up to the one that completes the stop text -> the text of each."""
    pieces = []
    for token in tokens:
        pieces.append(stream.push([token]))
        if stream.stopped:
            break
    return pieces
