"""The loops of sampling.py over loaded models: each model with its filters, the drafter, and both decoders."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from speculative.drafters import first_of
from speculative.drafters.base import Context, Drafter, DrafterSpec
from speculative.drafters.staged import staged
from speculative.engines.model import join_decode
from speculative.engines.together import Meeting
from speculative.loading import Models
from speculative.lookahead import WINDOW_ROWS, AutoK, FixedK
from speculative.plan import Plan
from speculative.rules import TOKEN
from speculative.sampling import NOTHING, Step, autoregressive_sampling, speculative_sampling
from speculative.steps import StepOfText
from speculative.support.progress import working
from speculative.trees import TreeAdapter

DECODERS = ("autoregressive", "speculative")
# With a prompt of so many tokens the first step drafts nothing: the target reads the prompt, and its copies, which
# share its cache, need not.
READ_FIRST = 40  # tokens
N_COST_TOKENS = 8  # tokens at the end of a prompt: costs are measured with them as the text


class Loops(Protocol):
    """Both decoders: loops in Python, or programs on a device (engines/jax/loops.py)."""

    batch: int  # texts that are decoded together

    def measure(self, x) -> None:  # [n]
        """Measure, after this text, the costs by which K is chosen, unless they are known."""

    def ready(self, inputs: Sequence, N: int) -> None:
        """Do before a decode what is not part of its time. inputs: token ids [n_prompts][n]."""

    def rounds(
        self, name: str, inputs: Sequence, N: int, rngs: Sequence, stopped: Callable
    ) -> Iterator[Sequence[StepOfText]]:
        """Yield, for each call of the target, the step that it gave each text, of N tokens at most. name: one of
        DECODERS. rngs: the random numbers of each text. stopped(place): True if the caller needs no more tokens of
        this text."""


class PythonLoops:
    """The loops of sampling.py, over the models of a plan."""

    def __init__(self, plan: Plan, models: Models):
        self.plan = plan
        self.models = models
        self.batch = plan.batch
        self.n_vocab = models.spec("target").encoder.n_vocab
        self.n_ctx = models.smallest_context(plan).n_ctx
        self.lookaheads: list[Any] = []  # of each level of the drafter, from the outermost in
        for K, specs in zip(plan.Ks, plan.levels, strict=True):
            scales = [spec.scale for spec in specs]
            self.lookaheads.append(FixedK(K) if isinstance(K, int) else AutoK(scales, is_alone=plan.batch == 1))

    # ---- The parts of a decode ---------------------------------------------------------------------------------------
    # loaded[role]: a network, or what a drafter loads. Those of the session, or those of one text of a batch.

    def model(self, role: str, loaded: Any) -> Any:
        """The model of a role with its filters: model(x, n_last) -> distributions."""
        network = loaded[role]
        return network.with_probs(self.plan.filters(role)) if role in self.plan.filtered_roles else network

    def drafter(self, rng: Any, loaded: Any, level: int = 0, target: Any = None) -> Drafter:
        """The drafter, or its levels from this one on. rng: the decoder's generator. target: the model of this
        decode, as heads read its last hidden row."""
        plan = self.plan
        models = self.models_of_decode(loaded, target)
        context = Context(self.n_vocab, rng, plan.draft_filters, plan.is_greedy, models)
        innermost = plan.levels[-1]
        drafts = [spec.chain(context) for spec in innermost]
        tree = None
        if plan.tree:
            tree = first_of([spec.tree(context) for spec in innermost])
        levels_around = range(level, len(plan.levels) - 1)  # of int8/model: level 0, that of int8
        for outer in reversed(levels_around):
            drafts = [self.staged_at(outer, drafts, models, rng)]
        return Drafter(first_of(drafts), drafts, tree)

    def models_of_decode(self, loaded: Any, target: Any) -> dict[str, Any]:
        """The model of each role, the given target among them. They are joined, so that copies may read what the target
        has written to its cache."""
        models = {role: self.model(role, loaded) for role in self.plan.roles}
        if target is not None:
            models["target"] = target
        join_decode(models.values())
        return models

    def staged_at(self, level: int, drafts: Sequence, models: dict[str, Any], rng) -> Callable:
        """The drafter of this level, for whose model the drafts of the next level are made."""
        plan = self.plan
        [spec] = plan.levels[level]
        model = models[spec.model_role]
        lookahead = self.lookaheads[level + 1]
        new_draft = partial(lookahead.drafter_of, drafts, model)
        rule = plan.rule if plan.rule.lossless else TOKEN
        return staged(spec.name, model, new_draft, lookahead.K_max, rng, rule.accept)

    # ---- Before a decode ---------------------------------------------------------------------------------------------

    def measure(self, x) -> None:  # [n]
        """The innermost level is measured first: a token that the level around it drafts costs what it takes."""
        unknown = [level for level, lookahead in enumerate(self.lookaheads) if not lookahead.is_measured]
        most_text = max(1, self.n_ctx - max(WINDOW_ROWS))  # tokens; the rest of the context is for windows
        x = np.asarray(x)[-min(N_COST_TOKENS, most_text) :]  # [n]
        with working("timing calls, from which K is chosen", len(unknown), "level", quiet=not unknown, delay=1) as bar:
            for level in reversed(unknown):
                self.measure_level(level, x)
                bar.update(1)

    def measure_level(self, level: int, x) -> None:  # [n]
        """Measure the costs of a level of the drafter, in a small part of the time that a decode takes."""
        rng = np.random.default_rng(0)
        drafts = self.drafter(rng, self.models, level).parts
        specs = self.plan.levels[level]
        timers = []
        for spec, draft in zip(specs, drafts, strict=True):
            timers.append(partial(self.time_draft, level, spec, draft, x))
        time_window = partial(self.time_call, self.plan.target_of(level), x)
        most_rows = self.n_ctx - len(x)
        self.lookaheads[level].measure(time_window, timers, most_rows)

    def time_draft(self, level: int, spec: DrafterSpec, draft, x) -> float:  # [n]
        """The seconds of a token that a drafter of this level drafts."""
        lookahead, *inside = self.lookaheads[level:]
        if inside and inside[0].token_seconds:  # as measured before
            return inside[0].token_seconds
        if spec.has_model and not inside:  # a call for each token
            return self.time_call(spec.model_role, x, 1)
        return self.batch * time_by_clock(draft, x, lookahead.clock)

    def time_call(self, role: str, x, n_rows: int) -> float:  # [n]
        """The seconds of a call of a model for so many rows of each text after x."""
        return self.models.engine.window_seconds(self.models[role], x, n_rows * self.batch)

    def ready(self, inputs: Sequence, N: int) -> None:
        if self.plan.depends_on_times:
            self.measure(inputs[0])
        self.models.forget(self.plan.network_roles)

    # ---- The loops ---------------------------------------------------------------------------------------------------

    def rounds(self, name: str, inputs: Sequence, N: int, rngs: Sequence, stopped: Callable) -> Iterator:
        """One prompt, or as many together as --batch says: each text has its own loop, caches and random numbers, and a
        call of a model computes the rows of all texts that wait for it, to the bit those of each alone."""
        if self.batch == 1:
            return self.rounds_of_one(name, inputs, N, rngs)
        return self.rounds_together(name, inputs, N, rngs, stopped)

    def rounds_of_one(self, name, inputs, N, rngs) -> Iterator:
        [x], [rng] = inputs, rngs
        for step in self.steps(name, x, N, rng, self.models):
            yield [StepOfText(0, step)]

    def rounds_together(self, name, inputs, N, rngs, stopped) -> Iterator:
        texts = [partial(self.steps, name, x, N, rng) for x, rng in zip(inputs, rngs, strict=True)]
        loaded = {role: self.models[role] for role in self.plan.roles}
        n_seats = min(len(texts), self.batch)
        return Meeting(loaded, n_seats).steps(texts, stopped)

    def steps(self, name: str, x: Sequence, N: int, rng: Any, loaded: Any) -> Iterator[Step]:
        """The steps of one text over these networks and parts of drafters."""
        plan = self.plan
        target = self.model("target", loaded)
        if name == "autoregressive":
            return autoregressive_sampling(x, target, N, rng)
        drafter = self.drafter(rng, loaded, target=target)
        if plan.tree:
            tree = TreeAdapter(drafter.tree, target.score_tree, plan.tree)
            depth = len(plan.tree)
            return speculative_sampling(x, tree.draft, tree.target_model, N, depth, rng, plan.rule.accept_tree)
        lookahead = self.lookaheads[0]
        draft = lookahead.drafter_of(drafter.parts, target)
        if len(x) >= READ_FIRST and any(map(self.models.shares_cache, plan.network_roles)):
            draft = after_first(draft, len(x))
        return speculative_sampling(x, draft, target, N, lookahead.K_max, rng, plan.rule.accept)


def after_first(draft: Callable, n: int) -> Callable:
    """Return a drafter that proposes nothing until the text has more than n tokens."""
    return lambda x, k: draft(x, k) if len(x) > n else NOTHING


def time_by_clock(draft: Callable, x, clock: Callable) -> float:  # [n]
    """The seconds of a draft after a text that the drafter has read."""
    draft(x, 1)
    began = clock()
    draft(x, 1)
    return clock() - began
