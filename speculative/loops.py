"""The loops of sampling.py over loaded models, for one text or for several together."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from speculative.decode_parts import DecodeParts, Loaded
from speculative.engines.together import Meeting
from speculative.level_costs import LevelCosts
from speculative.sampling import NOTHING, Step, autoregressive_sampling, speculative_sampling
from speculative.steps import PlacedStep
from speculative.trees import TreeAdapter

DECODERS = ("autoregressive", "speculative")
# With a prompt of so many tokens the first step drafts nothing: the target reads the prompt, and its copies, which
# share its cache, need not.
READ_FIRST = 40  # tokens


class Loops(Protocol):
    """Both decoders: loops in Python, or programs on a device (engines/jax/loops.py)."""

    batch: int  # texts that are decoded together

    def measure(self, x) -> None:  # [n]
        """Measure, after this text, the costs by which K is chosen, unless they are known."""

    def ready(self, inputs: Sequence, N: int) -> None:
        """Do before a decode what is not part of its time. inputs: token ids [n_prompts][n]."""

    def rounds(
        self, name: str, inputs: Sequence, N: int, rngs: Sequence, is_stopped: Callable
    ) -> Iterator[Sequence[PlacedStep]]:
        """Yield, for each call of the target, the step that it gave each text, of N tokens at most. name: one of
        DECODERS. rngs: the random numbers of each text. is_stopped(place): True if the caller needs no more tokens of
        this text."""


class PythonLoops:
    """The loops of sampling.py, over the parts of each decode."""

    def __init__(self, parts: DecodeParts):
        self.parts = parts
        self.plan = parts.plan
        self.models = parts.models
        self.batch = parts.plan.batch
        self.costs = LevelCosts(parts)

    def measure(self, x) -> None:  # [n]
        self.costs.measure(x)

    def ready(self, inputs: Sequence, N: int) -> None:
        if self.plan.depends_on_times:
            self.measure(inputs[0])
        self.models.forget(self.plan.network_roles)

    def rounds(self, name: str, inputs: Sequence, N: int, rngs: Sequence, is_stopped: Callable) -> Iterator:
        """One prompt, or as many together as --batch says: each text has its own loop, caches and random numbers, and a
        call of a model computes the rows of all texts that wait for it, to the bit those of each alone."""
        if self.batch == 1:
            return self.rounds_of_one(name, inputs, N, rngs)
        return self.rounds_together(name, inputs, N, rngs, is_stopped)

    def rounds_of_one(self, name: str, inputs: Sequence, N: int, rngs: Sequence) -> Iterator:
        [x], [rng] = inputs, rngs
        for step in self.steps(name, x, N, rng, self.models):
            yield [PlacedStep(0, step)]

    def rounds_together(self, name: str, inputs: Sequence, N: int, rngs: Sequence, is_stopped: Callable) -> Iterator:
        texts = [partial(self.steps, name, x, N, rng) for x, rng in zip(inputs, rngs, strict=True)]
        loaded = {role: self.models[role] for role in self.plan.roles}
        n_seats = min(len(texts), self.batch)
        return Meeting(loaded, n_seats).steps(texts, is_stopped)

    def steps(self, name: str, x: Sequence[int], N: int, rng: np.random.Generator, loaded: Loaded) -> Iterator[Step]:
        """The steps of the decoder `name` for one text."""
        plan = self.plan
        target = self.parts.model("target", loaded)
        if name == "autoregressive":
            return autoregressive_sampling(x, target, N, rng)
        context = self.parts.context(rng, loaded, target)
        if plan.tree:
            tree = TreeAdapter(self.parts.draft_tree(context), target.score_tree, plan.tree)
            depth = len(plan.tree)
            return speculative_sampling(x, tree.draft, tree.target_model, N, depth, rng, plan.rule.accept_tree)
        lookahead = self.parts.lookaheads[0]
        draft = lookahead.drafter_of(self.parts.drafts_of_level(0, context), target)
        if len(x) >= READ_FIRST and any(map(self.models.shares_cache, plan.network_roles)):
            draft = after_first(draft, len(x))
        return speculative_sampling(x, draft, target, N, lookahead.K_max, rng, plan.rule.accept)


def after_first(draft: Callable, n: int) -> Callable:
    """Return a drafter that proposes nothing until the text has more than n tokens."""
    return lambda x, k: draft(x, k) if len(x) > n else NOTHING
