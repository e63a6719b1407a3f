"""Notes what happens in a run: a recorder that times a decoder and its models, and reads what the steps hold."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from speculative.accept import TOKEN, Rule
from speculative.blog.encoder import StreamDecoder
from speculative.drafters import Drafter
from speculative.engines.plain import common_prefix
from speculative.measure.analysis import matching_chance
from speculative.measure.details import TreeDetails, details
from speculative.measure.record import Counted, Iteration, Record, first_tokens
from speculative.sampling import Step
from speculative.stop import read
from speculative.trees import MOST_NODES, Tree, TreeStep

HELD = 2**24  # probabilities, 64 MB, that wait for the end of the run before their details are taken
IN_TREE = MOST_NODES  # tokens: no path down a tree is longer
FREE = nullcontext()  # a lock that nobody else wants
NO_TOKENS = np.empty(0, int)
IN_STEP = 2  # tokens: after a window that was accepted whole, the draft is this far behind; reading them is no prefill


@dataclass
class Read:
    """The texts that both models have read in a step; None for one that was not called."""

    draft: Any = None  # [n]
    target: Any = None  # [n]
    most: int = IN_STEP  # so many tokens may be new to the target, and it is no prefill


class Watched:
    """A model, of which the recorder times each call, in a chain or a tree."""

    def __init__(self, model: Callable, recorder: "Recorder"):
        self.model = model
        self.recorder = recorder

    def __call__(self, x, n_last: int = 1):  # -> [n_last, n_vocab]
        start = self.recorder.clock()
        q = self.model(x, n_last)  # [n_last, n_vocab]
        self.recorder.scored(x, n_last, start)
        return q

    def tree(self, x, tree: Tree, nodes=None):  # -> [m, n_vocab]
        start = self.recorder.clock()
        q = self.model.tree(x, tree, nodes)  # [m, n_vocab]
        self.recorder.scored(x, IN_TREE, start)
        return q


class Recorder(Record):
    """Notes every step of a decoder that it watches:

        recorder = Recorder()
        for step in recorder.watch(pair.speculative(x, N, rng, recorder)):
            ...

    Only the decoder's own time is counted, neither what is done with a step nor the recorder's bookkeeping: while the
    clock runs, no more is done than to keep what was read. A step's p and q are held no longer than that step. Where
    details are kept, HELD of them wait: to take them between two steps would be a pause, in which the threads of a
    small model go to sleep and make the next step slower.

    The parts of one loop on a device cannot be timed. Such a decoder calls note() before each step, and writes what is
    known of its times into prefill, t_draft and t_target.
    """

    def __init__(self, rule: Rule = TOKEN, clock: Callable[[], float] = time.perf_counter, details: bool = False):
        """rule: the decoder's. details: whether to keep what decided each step."""
        super().__init__(rule=rule)
        self.clock = clock
        self.details = details
        self.now = Iteration()
        self.read = Read()
        self.held = []  # (iteration, step), of which the details are still to be taken
        self.known = Read(NO_TOKENS, NO_TOKENS)  # the texts that both models have read
        self.levels = {}  # {name: Recorder of that level of the drafter}, the outermost first
        self.waiting = None  # for a level's recorder a list: note_step's arguments, for when the clock has stopped

    def drafter(self, drafter: Drafter) -> Drafter:
        tree = self.draft(drafter.tree) if drafter.tree else None
        return Drafter(self.draft(drafter.chain), tree)

    def draft(self, draft: Callable) -> Callable:
        """A drafter's chain or tree, timed."""

        def recorded(x, wanted):
            start = self.clock()
            proposal = draft(x, wanted)
            self.now.drafting = self.clock() - start
            self.read.draft = x
            return proposal

        return recorded

    def target(self, target_model: Callable) -> Watched:
        """The target, timed."""
        return Watched(target_model, self)

    def scored(self, x, most: int, start: float) -> None:
        """Notes a call of the target that began at `start`. It was a prefill if more than `most` tokens were new."""
        self.now.scoring = self.clock() - start
        self.read.target = x
        self.read.most = most

    def level(self, name: str, model: Callable, draft: Callable, steps: Callable) -> Iterator[Step]:
        """drafters.base.Parts.record: a level is recorded as a decoder of its own."""
        if name not in self.levels:
            self.levels[name] = Recorder(self.rule if self.rule.lossless else TOKEN, self.clock)
            self.levels[name].waiting = []
        recorder = self.levels[name]
        return recorder.watch(steps(recorder.target(model), recorder.draft(draft)))

    def note(self, alpha: list[float], matching: list[float]) -> None:
        """For a decoder that runs elsewhere: what is known of the step that it gives next; its times are not."""
        self.now = Iteration(None, None, None, None, alpha=alpha, matching=matching)

    def watch(
        self, decoder: Iterator[Step], lock: AbstractContextManager = FREE, text: StreamDecoder | None = None
    ) -> Iterator[Step]:
        """The same steps, up to the one with which the text is stopped.

        lock is held while one is computed, and its time does not include the wait for it. text: turns ids into text,
        and says where that is to end.
        """
        self.samples.append([])
        while not (text and text.stopped):
            with lock:
                self.now = Iteration()
                self.read = Read()
                start = self.clock()
                step = next(decoder, None)
                seconds = self.clock() - start
            self.seconds += seconds
            if step is None:
                break
            if text:
                step, self.now.pieces = read(text, step)
            if self.now.seconds is not None:  # else it runs elsewhere: see note()
                self.now.seconds = seconds
            self.samples[-1].append(self.now)
            if self.waiting is None:
                self.note_step(self.now, step, self.read)
            else:
                self.waiting.append((self.now, step, self.read))
            yield step
        self.take_details()

    def note_step(self, iteration: Iteration, step: Step, read: Read) -> None:
        iteration.step = counted(step)
        n = step.drafted
        for name, recorder in self.levels.items():
            iteration.levels[name] = first_tokens(recorder.taken(), n)
            n = sum(call.step.drafted for call in iteration.levels[name])
        if isinstance(step.proposal, Tree):
            iteration.by = [step.proposal.by] * step.drafted
            iteration.tree = tree_details(step)
        else:
            iteration.by = [*step.proposal.by]
        self.note_prefills(iteration, step, read)
        if not len(step.q):  # a loop on the device keeps its rows to itself, and has told the chances: see note()
            return
        iteration.alpha = self.rule.chances(step)
        if iteration.tree:
            return
        pairs = zip(iteration.alpha, step.proposal.p, step.q, strict=False)
        iteration.matching = [float(matching_chance(p_i, q_i)) for _, p_i, q_i in pairs]
        if self.details:
            self.held.append((iteration, step))
            if sum(len(step.proposal.p) + len(step.q) for _, step in self.held) * len(step.q[0]) > HELD:
                self.take_details()

    def note_prefills(self, iteration: Iteration, step: Step, read: Read) -> None:
        """Notes whether either model had to read more tokens than a step adds: that is a prefill."""
        if read.draft is not None:
            most = IN_TREE if iteration.tree else IN_STEP
            iteration.draft_prefill = len(read.draft) - common_prefix(self.known.draft, read.draft) > most
            drafts = [] if iteration.tree else step.proposal.tokens
            self.known.draft = np.append(read.draft, drafts).astype(int)
        if read.target is not None:
            iteration.prefill = len(read.target) - common_prefix(self.known.target, read.target) > read.most
            self.known.target = np.asarray(read.target)

    def taken(self) -> list[Iteration]:
        """For a level's recorder: its iterations since the last call, which it then forgets."""
        for waiting in self.waiting:
            self.note_step(*waiting)
        self.waiting.clear()
        iterations = self.iterations
        self.samples.clear()
        return iterations

    def take_details(self) -> None:
        for iteration, step in self.held:
            iteration.details = details(step)
        self.held.clear()

    def watch_batch(
        self, decoder: Iterator[list], texts: list[StreamDecoder], n_batch: int, lock: AbstractContextManager = FREE
    ) -> Iterator[list]:
        """The same for prompts that are decoded together, n_batch at a time: a sample and a text for each.

        The decoder yields, for each call of the target, (number of the prompt, Step, alpha, matching) of those that it
        served.
        """
        samples = [[] for _ in texts]
        self.samples += samples
        while True:
            with lock:
                start = self.clock()
                rows = next(decoder, None)
                self.seconds += self.clock() - start
            if rows is None:
                return
            self.row_calls += n_batch
            for number, step, alpha, matching in rows:
                self.note(alpha, matching)
                self.now.step = counted(step)
                _, self.now.pieces = read(texts[number], step)
                samples[number].append(self.now)
            yield rows


def counted(step: Step) -> Counted:
    return Counted(step.tokens, step.drafted, step.accepted)


def tree_details(step: TreeStep) -> TreeDetails:
    tree = step.proposal
    return {
        "tokens": tree.tokens[1:],
        "parents": tree.parents[1:],
        "path": [test.node for test in step.tests if test.passed],
    }
