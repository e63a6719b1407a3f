"""The loops of sampling.py over loaded models, for one text or for several together."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from speculative.drafters.base import Context
from speculative.engines.contract import PlacedStep
from speculative.engines.together import Meeting
from speculative.run.cost_timer import CostTimer
from speculative.run.decode_parts import DecodeParts, Loaded
from speculative.sampling import NOTHING, Step, autoregressive_sampling, speculative_sampling
from speculative.trees import TreeAdapter

DECODERS = ("autoregressive", "speculative")
LONG_PROMPT = 40  # tokens: see after_prompt


class Loops(Protocol):
    """Both decoders: loops in Python, or programs on a device (engines/jax/device_loops.py)."""

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
        self.cost_timer = CostTimer(parts)

    def measure(self, x) -> None:  # [n]
        self.cost_timer.time_levels(x)

    def ready(self, inputs: Sequence, N: int) -> None:
        """Measure costs if they decide K, and empty the caches, which hold the measured texts."""
        if self.plan.depends_on_times:
            self.measure(inputs[0])
        self.models.forget(self.plan.network_roles)

    def rounds(self, name: str, inputs: Sequence, N: int, rngs: Sequence, is_stopped: Callable) -> Iterator:
        """One prompt, or as many together as --batch says: each text has its own loop, caches and random numbers, and a
        call of a model computes the rows of all texts that wait for it, to the bit those of each alone."""
        if self.batch > 1:
            return self.rounds_together(name, inputs, N, rngs, is_stopped)
        [x], [rng] = inputs, rngs
        steps = self.steps(name, x, N, rng, self.models)
        return map(round_of_one, steps)  # the caller breaks off if the text is stopped

    def rounds_together(self, name: str, inputs: Sequence, N: int, rngs: Sequence, is_stopped: Callable) -> Iterator:
        texts = [partial(self.steps, name, x, N, rng) for x, rng in zip(inputs, rngs, strict=True)]
        loaded = {role: self.models[role] for role in self.plan.roles}
        n_seats = min(len(texts), self.batch)
        return Meeting(loaded, n_seats).rounds(texts, is_stopped)

    def steps(self, name: str, x: Sequence[int], N: int, rng: np.random.Generator, loaded: Loaded) -> Iterator[Step]:
        """The steps of the decoder `name` for one text."""
        if name == "autoregressive":
            return autoregressive_sampling(x, self.parts.model("target", loaded), N, rng)
        context = self.parts.new_context(rng, loaded)
        return self.tree_steps(x, N, context) if self.plan.tree else self.chain_steps(x, N, context)

    def chain_steps(self, x: Sequence[int], N: int, context: Context) -> Iterator[Step]:
        target = context.models["target"]
        lookahead = self.parts.lookaheads[0]
        draft = lookahead.drafter_of(self.parts.drafters_of_level(0, context), target)
        has_copies = any(map(self.models.shares_cache, self.plan.network_roles))
        if has_copies and len(x) >= LONG_PROMPT:
            draft = after_prompt(draft, len(x))
        return speculative_sampling(x, draft, target, N, lookahead.K_max, context.rng, self.plan.rule.accept)

    def tree_steps(self, x: Sequence[int], N: int, context: Context) -> Iterator[Step]:
        """The same loop, in which a tree of drafts takes the place of a chain."""
        score_tree = context.models["target"].score_tree
        widths = self.plan.tree
        tree = TreeAdapter(self.parts.draft_tree(context), score_tree, widths)
        accept = self.plan.rule.accept_tree
        return speculative_sampling(x, tree.draft, tree.target_model, N, len(widths), context.rng, accept)


def round_of_one(step: Step) -> list[PlacedStep]:
    return [PlacedStep(0, step)]


def after_prompt(drafter: Callable, n: int) -> Callable:
    """Return a drafter that proposes nothing after a prompt of n tokens: the target reads it, and then the target's
    copies, which share its cache, need not read it as well."""
    return lambda x, k: drafter(x, k) if len(x) > n else NOTHING
