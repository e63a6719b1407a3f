"""Notes what happens in a run: a recorder that stands around a decoder and its models."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from speculative.engines.plain import common_prefix
from speculative.measure.analysis import acceptance_chance, matching_chance
from speculative.measure.details import details
from speculative.sampling import Step
from speculative.trees import Tree, TreeStep, chances

HELD = 2**24  # probabilities, 64 MB, that wait for the end of the run before their details are taken
IN_TREE = 32  # tokens: no path down a tree is longer
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
    proposers: list[str] = field(default_factory=list)  # who proposed each draft, where the drafter tells
    inner: tuple[int, int] | None = None  # how many tokens a staged drafter's inner one proposed, and got accepted
    tree: dict | None = None  # {tokens, parents, path}, where the draft was one; node 0 is the last token of the text
    details: dict | None = None  # what decided this step (details.py), if that is kept


class Noted:
    """A generator whose random() adds what it gives to draws; in all else the generator itself."""

    def __init__(self, rng: np.random.Generator, draws: list[float]):
        self.rng, self.draws = rng, draws

    def random(self) -> float:
        self.draws.append(self.rng.random())
        return self.draws[-1]

    def __getattr__(self, name):
        return getattr(self.rng, name)


class Recorder:
    """Notes every step of a decoder:

        recorder = Recorder()
        decoder = speculative_sampling(x, recorder.draft(draft), recorder.target(target_model), N, K, rng)
        for step in recorder.watch(decoder):
            ...

    Only the decoder's own time is counted, neither what is done with a step nor the recorder's bookkeeping. p and q are
    held for no longer than that step; where details are kept, up to HELD of them, as a pause between two steps would
    send the threads of a small model to sleep and make the next step slower.

    A decoder that runs elsewhere, where its parts cannot be timed, calls note() before each step. What is known of its
    times is written into prefill, t_draft and t_target.
    """

    def __init__(self, lenience: float = 1.0, clock: Callable[[], float] = time.perf_counter, details: bool = False):
        """lenience: as the decoder's. α is Σ min(p, q / lenience), the chance that a draft is accepted with it.

        details: whether to keep what decided each step. The decoder's generator is then to be self.rng(rng).
        """
        self.lenience, self.clock, self.details = lenience, clock, details
        self.samples = []  # a list of Iterations for each decoder that was watched
        self.seconds = 0.0
        self.prefill = None  # seconds of it, where they are measured and not reckoned from the iterations
        self.t_draft, self.t_target = None, {}  # likewise those of a drafted token, and {rows: seconds}
        self.row_calls = 0  # of prompts decoded together: how many rows all calls of the target had, idle ones included
        self.now = Iteration()
        self.x_draft, self.p, self.q = [], [], []
        self.draws = []  # the random numbers since the target's last call
        self.held = []  # (iteration, x_draft, p, q, draws), of which the details are still to be taken
        self.seen = self.drafted = np.empty(0, int)  # the text of the target's last call, and what the draft has read

    def rng(self, rng: np.random.Generator) -> np.random.Generator:
        return Noted(rng, self.draws) if self.details else rng

    def draft(self, draft: Callable) -> Callable:
        def recorded(x, k):
            start = self.clock()
            self.proposal = self.x_draft, self.p = draft(x, k)
            self.now.drafting = self.clock() - start
            self.now.proposers, self.now.inner = getattr(draft, "proposers", []), getattr(draft, "inner", None)
            is_tree = isinstance(self.proposal, Tree)
            self.now.draft_prefill = len(x) - common_prefix(self.drafted, x) > (IN_TREE if is_tree else IN_STEP)
            self.drafted = np.append(x, [] if is_tree else self.x_draft).astype(int)
            return self.proposal

        return recorded

    def target(self, target_model: Callable) -> Callable:
        def recorded(x, n_last=1):  # or a tree
            start = self.clock()
            self.q = target_model(x, n_last)  # [n_last, n_vocab]
            self.now.scoring = self.clock() - start
            most = IN_TREE if isinstance(n_last, Tree) else n_last
            self.now.prefill = len(x) - common_prefix(self.seen, x) > most
            self.seen = np.asarray(x)
            self.draws.clear()
            return self.q

        return recorded

    def note(self, alpha: list[float], matching: list[float]) -> None:
        """Notes of the step that comes next what is known of it."""
        self.now = Iteration(None, None, None, None, alpha=alpha, matching=matching)

    def watch(self, decoder: Iterator[Step]) -> Iterator[Step]:
        self.samples.append([])
        while True:
            self.now, self.x_draft, self.p, self.q = Iteration(), [], [], []
            start = self.clock()
            step = next(decoder, None)
            seconds = self.clock() - start
            self.seconds += seconds
            if step is None:
                return self.take_details()
            self.now.step = step
            if self.now.seconds is not None:
                self.now.seconds = seconds
            self.now.proposers = self.now.proposers[: step.drafted]  # which a stop text may have cut
            if isinstance(step, TreeStep):
                self.note_tree(step)
                self.samples[-1].append(self.now)
                yield step
                continue
            n_met = min(len(step.tokens), step.drafted)  # none after the first that is rejected, or after a stop
            del self.now.alpha[n_met:], self.now.matching[n_met:]
            for p, q in list(zip(self.p, self.q, strict=False))[:n_met]:  # [n_vocab] each
                self.now.alpha.append(float(acceptance_chance(p, q / self.lenience)))
                self.now.matching.append(float(matching_chance(p, q)))
            if self.details and len(self.q):  # a loop on the device shows none
                self.held.append((self.now, self.x_draft, self.p, self.q, [*self.draws]))
                if sum(len(p) + len(q) for _, _, p, q, _ in self.held) * len(self.q[0]) > HELD:
                    self.take_details()
            self.samples[-1].append(self.now)
            yield step

    def note_tree(self, step: TreeStep) -> None:
        tree = self.proposal
        self.now.alpha = chances(tree, self.q, step.path, self.lenience)
        self.now.tree = {"tokens": tree.tokens[1:], "parents": tree.parents[1:], "path": step.path}

    def take_details(self) -> None:
        for iteration, x_draft, p, q, draws in self.held:
            iteration.details = details(iteration.step, x_draft, p, q, draws, self.lenience)
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


def origins(step: Step, proposers: Sequence[str] = ()) -> list[str]:
    """Where each of a step's tokens came from. The drafts come first; the last token is the target's own.

    proposers: who proposed each draft; then a draft that is not the draft model's own is "accepted: " and its name.
    """
    at_end = getattr(step, "bonus", step.accepted == step.drafted)  # of the window, or of a path down a tree
    own = "autoregressive" if step.drafted == 0 else "bonus" if at_end else "resampled"
    by = [*proposers, *["model"] * step.accepted][: step.accepted]
    return [*("accepted" if name == "model" else f"accepted: {name}" for name in by), own][: len(step.tokens)]
