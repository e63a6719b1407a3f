"""The parts of a decode, made from a plan and loaded models: each model with its filters, and the drafter."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from speculative.drafters import first_of
from speculative.drafters.base import Context, DrafterSpec
from speculative.drafters.staged import staged
from speculative.engines.model import join_decode
from speculative.lookahead.lookahead import AutoK, FixedK, Lookahead
from speculative.rules import TOKEN
from speculative.run.loaded_models import Models
from speculative.run.plan import Plan

Loaded = Models | Mapping[str, Any]  # by role, a network or what a drafter loads: of the session, or of a batch's text


class DecodeParts:
    """Makes the models and the drafter of each decode. The lookaheads are shared by all, as K auto learns."""

    def __init__(self, plan: Plan, models: Models):
        self.plan = plan
        self.models = models
        self.n_vocab = models.spec("target").encoder.n_vocab
        self.lookaheads: list[Lookahead] = []  # of each level of the drafter, from the outermost in
        for K, specs in zip(plan.Ks, plan.levels, strict=True):
            self.lookaheads.append(self.new_lookahead(K, specs))

    def new_lookahead(self, K: int | str, specs: Sequence[DrafterSpec]) -> Lookahead:
        """The lookahead of a level with these drafters. K: a number, or "auto"."""
        if isinstance(K, int):
            return FixedK(K)
        scales = [spec.scale for spec in specs]
        return AutoK(scales, is_alone=self.plan.batch == 1)

    def model(self, role: str, loaded: Loaded) -> Any:
        """The model of a role with its filters: model(x, n_last) -> distributions."""
        network = loaded[role]
        return network.with_probs(self.plan.filters(role)) if role in self.plan.filtered_roles else network

    # ---- The drafter -------------------------------------------------------------------------------------------------

    def new_context(self, rng: np.random.Generator, loaded: Loaded, target: Any = None) -> Context:
        """What the drafters of a decode are made from, its models among it. These are joined, so that copies may read
        what the target has written to its cache.

        rng: the decoder's generator. target: the model of the target, if the caller has one, as in a user's own loop:
        heads read its last hidden row.
        """
        models = {role: self.model(role, loaded) for role in self.plan.roles}
        if target is not None:
            models["target"] = target
        join_decode(models.values())
        return Context(self.n_vocab, rng, self.plan.draft_filters, self.plan.is_greedy, models)

    def draft_tree(self, context: Context) -> Callable:
        """draft(x, widths) -> Tree."""
        return first_of([spec.tree(context) for spec in self.plan.specs])

    def drafters_of_level(self, level: int, context: Context) -> list[Callable]:
        """draft(x, k) of each drafter of a level. Of int8/prompt_lookup+model, level 0 has one and level 1 has two.
        Each level asks the next, and the last one ends it."""
        if level < len(self.plan.levels) - 1:
            return [self.staged_draft(level, context)]
        return [spec.chain(context) for spec in self.plan.levels[level]]

    def staged_draft(self, level: int, context: Context) -> Callable:
        """draft(x, k) of a level for whose model the next level drafts: of int8, for which prompt_lookup and the draft
        model do."""
        [spec] = self.plan.levels[level]
        model = context.models[spec.role]
        inner_drafters = self.drafters_of_level(level + 1, context)
        lookahead = self.lookaheads[level + 1]
        new_draft = partial(lookahead.drafter_of, inner_drafters, model)
        rule = self.plan.rule if self.plan.rule.lossless else TOKEN  # its tokens have to follow the p that it gives
        return staged(spec.name, model, new_draft, lookahead.K_max, context.rng, rule.accept)
