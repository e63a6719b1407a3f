"""The loops of sampling.py over loaded models: each model with its filters, the drafter, and both decoders."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol

from speculative import drafters
from speculative.engines.model import join
from speculative.level_costs import measure_levels
from speculative.loading import Models
from speculative.lookahead import AfterFirst, AutoK, FixedK
from speculative.plan import Plan
from speculative.sampling import Step, autoregressive_sampling, speculative_sampling
from speculative.steps import Served
from speculative.trees import TreeInTheLoop

DECODERS = ("autoregressive", "speculative")
READ_FIRST = 40  # tokens; the target reads a prompt this long before its copies draft, so that it is read only once


class Loops(Protocol):
    """Both decoders: loops in Python, or programs on a device (engines/jax/loops.py)."""

    def measure(self, x) -> None:  # [n]
        """Measure, after this text, the costs by which K is chosen, unless they are known."""

    def ready(self, prompts: Sequence, N: int) -> None:
        """Do before a decode what is not part of its time. prompts: token ids [n_prompts][n]."""

    def calls(self, name: str, prompts: Sequence, N: int, rngs: Sequence, stopped: Callable) -> Iterator[list[Served]]:
        """Yield the result of each call of the target: a Served for each text that it served, of N tokens at most.
        name: one of DECODERS. rngs: the random numbers of each text. stopped(text_index): True if the caller needs no
        more tokens of this text."""


class PythonLoops:
    """The loops of sampling.py, over the models of a plan."""

    def __init__(self, plan: Plan, models: Models, n_vocab: int, n_ctx: int):
        self.plan = plan
        self.models = models
        self.networks: Mapping[str, Any] | Models = models  # by role, with the parts of drafters
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.copies = [role for role in plan.networks if models.shares_cache(role)]
        self.lookaheads = new_lookaheads(plan)
        self.n_texts = 1  # whose rows a call has

    def over(self, networks: Mapping[str, Any]) -> "PythonLoops":
        """Return the same loops over other networks, such as those of one text of a batch."""
        loops = copy(self)
        loops.networks = networks
        return loops

    # ---- The parts of a decode ---------------------------------------------------------------------------------------

    def model(self, role: str) -> Any:
        """The model of a role with its filters: model(x, n_last) -> distributions."""
        loaded = self.networks[role]
        if role not in self.plan.models:
            return loaded
        return loaded.with_probs(self.plan.filters(role))

    def drafter(self, rng: Any, depth: int = 0, target: Any = None) -> drafters.Drafter:
        """The drafter, or its levels from this depth on. rng: the decoder's generator. target: the model of this
        decode, as heads read its last hidden row."""
        plan = self.plan
        models = {role: self.model(role) for role in plan.roles}
        models["target"] = target or models["target"]
        join(models.values())
        context = drafters.Context(self.n_vocab, rng, plan.draft_filters, plan.is_greedy, models)
        levels = plan.levels[depth:]
        inner = self.lookaheads[depth + 1 :]
        trees = bool(plan.tree)
        return drafters.make_drafter(levels, context, inner, plan.rule, trees)

    # ---- Before a decode ---------------------------------------------------------------------------------------------

    def measure(self, x) -> None:  # [n]
        measure_levels(self, x)

    def call_seconds(self, role: str, x, n_rows: int) -> float:  # x [n]
        """The seconds of a call of a model for so many rows after the text x."""
        if role in self.plan.networks:
            return self.models.engine.window_seconds(self.models[role], x, n_rows * self.n_texts)
        model = self.model(role)
        drafts = [x[-1]] * n_rows
        began = time.perf_counter()
        model([*x, *drafts], n_rows)
        return time.perf_counter() - began

    def ready(self, prompts: Sequence, N: int) -> None:
        if self.plan.depends_on_times:
            self.measure(prompts[0])
        self.models.forget(self.plan.networks)

    # ---- The loops ---------------------------------------------------------------------------------------------------

    def calls(self, name: str, prompts: Sequence, N: int, rngs: Sequence, stopped: Callable) -> Iterator[list[Served]]:
        """One prompt at a time. stopped is not asked, as nobody asks for a step after the stop text."""
        [x], [rng] = prompts, rngs
        return ([Served(0, step)] for step in self.steps(name, x, N, rng))

    def steps(self, name: str, x: Sequence, N: int, rng: Any) -> Iterator[Step]:
        if name == "autoregressive":
            return autoregressive_sampling(x, self.model("target"), N, rng)
        return self.speculative_steps(x, N, rng)

    def speculative_steps(self, x: Sequence, N: int, rng: Any) -> Iterator[Step]:
        plan = self.plan
        target = self.model("target")
        drafter = self.drafter(rng, target=target)
        if plan.tree:
            tree = TreeInTheLoop(drafter.tree, target.score_tree, plan.tree)
            depth = len(plan.tree)
            return speculative_sampling(x, tree.draft, tree.target_model, N, depth, rng, plan.rule.accept_tree)
        lookahead = self.lookaheads[0]
        draft = lookahead.drafter_of(drafter.parts, target)
        if self.copies and len(x) >= READ_FIRST:
            draft = AfterFirst(draft)
        return speculative_sampling(x, draft, target, N, lookahead.K_max, rng, plan.rule.accept)


def new_lookaheads(plan: Plan) -> list[Any]:
    """Return a FixedK or an AutoK for each level of the drafter, from the outermost in."""
    lookaheads: list[Any] = []
    for K, specs in zip(plan.Ks, plan.levels, strict=True):
        scales = [spec.scale for spec in specs]
        lookaheads.append(FixedK(K) if isinstance(K, int) else AutoK(scales))
    return lookaheads
