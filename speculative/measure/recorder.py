"""Notes what happens in a run: a recorder that stands around a decoder and its models."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from speculative.drafters import Drafter
from speculative.drafters.base import NOTHING
from speculative.engines.plain import common_prefix
from speculative.measure.analysis import acceptance_chance, matching_chance
from speculative.measure.details import details
from speculative.sampling import Step
from speculative.trees import MOST_NODES, Tree, acceptance_by_depth

HELD = 2**24  # probabilities, 64 MB, that wait for the end of the run before their details are taken
IN_TREE = MOST_NODES  # tokens: no path down a tree is longer
IN_STEP = 2  # tokens: after a window that was accepted whole, the draft is this far behind; reading them is no prefill


@dataclass
class Iteration:
    """One step of a decoder, and what it took. Times in seconds, None where they are not known."""

    step: Step | None = None
    drafting: float | None = 0.0  # in the draft
    scoring: float | None = 0.0  # in the target
    seconds: float | None = 0.0  # in all
    draft_prefill: bool = False  # whether the draft also read text that was new to it: kept out of t_draft then
    prefill: bool = False  # likewise the target, and t_target
    alpha: list[float] = field(default_factory=list)  # the chance of acceptance where a draft was tested, in order
    matching: list[float] = field(default_factory=list)  # Σ p q, likewise
    by: list[str] = field(default_factory=list)  # who proposed each draft, where that is known
    levels: dict[str, list] = field(default_factory=dict)  # Iterations of each level of the drafter, outermost first
    tree: dict | None = None  # {tokens, parents, path}, where the draft was one; node 0 is the last token of the text
    details: dict | None = None  # what decided this step (details.py), if that is kept


class Noted:
    """A generator whose random() adds what it gives to draws; in all else the generator itself."""

    def __init__(self, rng: np.random.Generator, draws: list[float]):
        self.rng = rng
        self.draws = draws

    def random(self) -> float:
        self.draws.append(self.rng.random())
        return self.draws[-1]

    def __getattr__(self, name):
        return getattr(self.rng, name)


class Watched:
    """A model, of which the recorder notes each call, in a chain or a tree."""

    def __init__(self, model: Callable, note: Callable):
        self.model = model
        self.note = note

    def __call__(self, x, n_last: int = 1):  # -> [n_last, n_vocab]
        return self.note(x, n_last, lambda: self.model(x, n_last))

    def tree(self, x, tree: Tree, nodes=None):  # -> [m, n_vocab]
        return self.note(x, IN_TREE, lambda: self.model.tree(x, tree, nodes))


class Recorder:
    """Notes every step of a decoder:

        recorder = Recorder()
        for step in recorder.watch(pair.speculative(x, N, recorder.rng(rng), recorder)):
            ...

    Only the decoder's own time is counted, neither what is done with a step nor the recorder's bookkeeping. p and q are
    held for no longer than that step. Where details are kept, HELD of them wait: to take them between two steps would
    be a pause, in which the threads of a small model go to sleep and make the next step slower.

    The parts of one loop on a device cannot be timed. Such a decoder calls note() before each step, and writes what is
    known of its times into prefill, t_draft and t_target.
    """

    def __init__(self, lenience: float = 1.0, clock: Callable[[], float] = time.perf_counter, details: bool = False):
        """lenience: as the decoder's. α is Σ min(p, q / lenience), the chance that a draft is accepted with it.

        details: whether to keep what decided each step. The decoder's generator is then to be self.rng(rng).
        """
        self.lenience = lenience
        self.clock = clock
        self.details = details
        self.samples = []  # a list of Iterations for each decoder that was watched
        self.seconds = 0.0
        self.prefill = None  # seconds of it, where they are measured and not reckoned from the iterations
        self.t_draft = None  # likewise those of a drafted token
        self.t_target = {}  # likewise {rows: seconds}
        self.row_calls = 0  # of prompts decoded together: how many rows all calls of the target had, idle ones included
        self.now = Iteration()
        self.proposal = NOTHING  # a Proposal or a Tree
        self.q = []  # [n_last, n_vocab]
        self.draws = []  # the random numbers since the target's last call
        self.held = []  # (iteration, proposal, q, draws), of which the details are still to be taken
        self.seen = np.empty(0, int)  # the text of the target's last call
        self.read_by_draft = np.empty(0, int)  # the text
        self.levels = {}  # {name: Recorder of that level of the drafter}, the outermost first
        self.waiting = None  # of a level, which is timed: [(iteration, proposal, q)] whose chances are taken later

    def rng(self, rng: np.random.Generator) -> np.random.Generator:
        return Noted(rng, self.draws) if self.details else rng

    def drafter(self, drafter: Drafter) -> Drafter:
        tree = self.draft(drafter.tree) if drafter.tree else None
        return Drafter(self.draft(drafter.chain), tree)

    def draft(self, draft: Callable) -> Callable:
        """A drafter's chain or tree, watched."""

        def recorded(x, wanted):
            start = self.clock()
            self.proposal = draft(x, wanted)
            self.now.drafting = self.clock() - start
            if isinstance(self.proposal, Tree):
                behind = IN_TREE
                tokens = []
                self.now.by = [self.proposal.by] * (len(self.proposal.tokens) - 1)
            else:
                behind = IN_STEP
                tokens = self.proposal.tokens
                self.now.by = [*self.proposal.by]
            self.now.draft_prefill = len(x) - common_prefix(self.read_by_draft, x) > behind
            self.read_by_draft = np.append(x, tokens).astype(int)
            return self.proposal

        return recorded

    def target(self, target_model: Callable) -> Watched:
        """The target, watched."""

        def recorded(x, most, call):  # most: so many tokens may be new to it, and it is no prefill
            start = self.clock()
            self.q = call()  # [n_last, n_vocab]
            self.now.scoring = self.clock() - start
            self.now.prefill = len(x) - common_prefix(self.seen, x) > most
            self.seen = np.asarray(x)
            self.draws.clear()
            return self.q

        return Watched(target_model, recorded)

    def level(self, name: str, model: Callable, draft: Callable, steps: Callable) -> Iterator[Step]:
        """drafters.base.Parts.record: a level is recorded as a decoder of its own."""
        if name not in self.levels:
            self.levels[name] = Recorder(clock=self.clock)
            self.levels[name].waiting = []
        recorder = self.levels[name]
        return recorder.watch(steps(recorder.target(model), recorder.draft(draft)))

    def note(self, alpha: list[float], matching: list[float]) -> None:
        """For a decoder that runs elsewhere: what is known of the step that it gives next; its times are not."""
        self.now = Iteration(None, None, None, None, alpha=alpha, matching=matching)

    def watch(self, decoder: Iterator[Step]) -> Iterator[Step]:
        self.samples.append([])
        while True:
            self.now = Iteration()
            self.proposal = NOTHING
            self.q = []
            start = self.clock()
            step = next(decoder, None)
            seconds = self.clock() - start
            self.seconds += seconds
            if step is None:
                return self.take_details()
            if self.now.seconds is not None:  # else it runs elsewhere: see note()
                self.now.seconds = seconds
            self.note_step(step)
            self.samples[-1].append(self.now)
            yield step

    def note_step(self, step: Step) -> None:
        self.now.step = step
        self.now.levels = {name: recorder.taken() for name, recorder in self.levels.items()}
        if isinstance(self.proposal, Tree):
            return self.note_tree(step)
        self.now.by = self.now.by[: step.drafted]  # which a stop text may have cut
        if self.waiting is not None:
            return self.waiting.append((self.now, self.proposal, self.q))
        self.take_chances(self.now, self.proposal, self.q)
        if self.details and len(self.q):  # a loop on the device shows none
            self.held.append((self.now, self.proposal, self.q, [*self.draws]))
            if sum(len(proposal.p) + len(q) for _, proposal, q, _ in self.held) * len(self.q[0]) > HELD:
                self.take_details()

    def take_chances(self, iteration: Iteration, proposal, q) -> None:  # q [m + 1, n_vocab]
        step = iteration.step
        n_met = min(len(step.tokens), step.drafted)  # none after the first that is rejected, or after a stop
        del iteration.alpha[n_met:], iteration.matching[n_met:]
        for p_i, q_i in list(zip(proposal.p, q, strict=False))[:n_met]:  # [n_vocab] each
            iteration.alpha.append(float(acceptance_chance(p_i, q_i / self.lenience)))
            iteration.matching.append(float(matching_chance(p_i, q_i)))

    def taken(self) -> list[Iteration]:
        """Of a level: the iterations since this was asked last."""
        for iteration, proposal, q in self.waiting:
            self.take_chances(iteration, proposal, q)
        self.waiting.clear()
        iterations = self.iterations
        self.samples.clear()
        return iterations

    def note_tree(self, step: Step) -> None:
        tree = self.proposal
        path = tree.walk(step.tokens[: step.accepted])
        nodes = range(1, len(tree.tokens))
        if step.drafted < len(nodes):  # a stop text has cut it: what is left is the path
            nodes = path
        place = {node: i for i, node in enumerate([0, *nodes])}
        self.now.by = [tree.by] * len(nodes)
        self.now.alpha = acceptance_by_depth(tree, self.q, path, self.lenience)
        self.now.tree = {
            "tokens": [tree.tokens[node] for node in nodes],
            "parents": [place[tree.parents[node]] for node in nodes],
            "path": [place[node] for node in path],
        }

    def take_details(self) -> None:
        for iteration, proposal, q, draws in self.held:
            iteration.details = details(iteration.step, proposal.tokens, proposal.p, q, draws, self.lenience)
        self.held.clear()

    def watch_batch(self, decoder: Iterator[list], n_prompts: int, n_batch: int) -> Iterator[list]:
        """The same for prompts that are decoded together, n_batch at a time: a sample for each.

        The decoder yields, for each call of the target, (number of the prompt, Step, alpha, matching) of those that it
        served.
        """
        samples = [[] for _ in range(n_prompts)]
        self.samples += samples
        while True:
            start = self.clock()
            rows = next(decoder, None)
            self.seconds += self.clock() - start
            if rows is None:
                return
            self.row_calls += n_batch
            for number, step, alpha, matching in rows:
                self.note(alpha, matching)
                self.now.step = step
                samples[number].append(self.now)
            yield rows

    @property
    def iterations(self) -> list[Iteration]:
        return [iteration for sample in self.samples for iteration in sample]

    @property
    def n_tokens(self) -> int:
        return sum(len(i.step.tokens) for i in self.iterations)


def origins(iteration: Iteration) -> list[str]:
    """Where each of a step's tokens came from. The drafts come first; the last token is the target's own.

    A draft that is not the draft model's own is "accepted: " and the name of who proposed it.
    """
    step = iteration.step
    whole = step.accepted == step.drafted
    if iteration.tree:  # whose path is whole where it ends in a leaf
        last = [0, *iteration.tree["path"]][-1]
        whole = last not in iteration.tree["parents"]
    own = "bonus" if whole else "resampled"
    if step.drafted == 0:
        own = "autoregressive"
    by = [*iteration.by, *["model"] * step.accepted][: step.accepted]
    accepted = ["accepted" if name == "model" else f"accepted: {name}" for name in by]
    return [*accepted, own][: len(step.tokens)]
