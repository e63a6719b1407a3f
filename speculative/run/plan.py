"""The plan of a run: the meaning of its options as plain values, before any weights are read.

Options are the request, a plan is the run to come. Combinations of options that cannot run are refused here; those
that are wrong by their names alone, in options.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from speculative.drafters import parse_drafter
from speculative.drafters.base import Drafter
from speculative.drafters.user import NO_FUNCTIONS, Functions
from speculative.engines.contract import Engine
from speculative.engines.formats import FORMATS
from speculative.filters import Filters
from speculative.rules import Rule, parse_rule
from speculative.run.options import ModelOptions
from speculative.run.values import as_typed
from speculative.support.errors import Option, UserError

MODEL_ROLES = ("target", "draft", *FORMATS)  # a format is the role of the target's copy in it


@dataclass(frozen=True)
class Plan:
    """The run to come.

    For --drafter heads+ngram:

        roles           target, heads, ngram    all that is loaded
        network_roles   target                  those that are read from a checkpoint, or made from one
        loaded_parts    heads, ngram            those drafters that load something of their own
        filters         target, ngram           the models, from whose logits filters make distributions
    """

    levels: Sequence[Sequence[Drafter]]  # the drafter's, from the outermost in
    Ks: Sequence[int | str]  # for each level, its K: a number or "auto"
    tree: tuple[int, ...]  # the number of children at each depth; () for a chain
    rule: Rule
    target_filters: Filters  # from the target's logits to q
    draft_filters: Filters  # from the draft's logits to p
    seed: int
    stop: str | tuple[str, ...] | None
    special: bool  # whether <|endoftext|> in a prompt is the token
    batch: int  # texts that are decoded together
    drafters: Sequence[Drafter]  # the drafters of all levels
    roles: list[str]  # the names under which models and other parts are loaded, the target first
    network_roles: list[str]  # the roles whose networks have weights: see MODEL_ROLES
    loaded_parts: Sequence[Drafter]  # the drafters that load something of their own, under their names
    filters: Mapping[str, Filters]  # by role, of the networks and of those loaded parts that are models
    is_greedy: bool
    depends_on_times: bool  # whether some K is chosen by measured times, so that the seed does not decide the text

    def target_of(self, level: int) -> str:
        """The role of the model for which a level drafts: the target, or the model of the level around it."""
        return self.levels[level - 1][0].role if level else "target"

    def rng(self, sample: int) -> np.random.Generator:
        """The random numbers of a decoder's text. Text 0 has those of the blog."""
        return np.random.default_rng([self.seed, sample] if sample else self.seed)


def make_plan(o: ModelOptions, engine: Engine, functions: Functions = NO_FUNCTIONS) -> Plan:
    """Return the plan of these options. o: with --fast already replaced (load.spelled_out). Raises UserError if
    they cannot run together, or not with this engine."""
    rule = parse_rule(o.accept, functions.accept)
    if o.tree and not rule.takes_trees:
        raise UserError(
            Option("accept"),
            f" {o.accept} tests a chain, and ",
            Option("tree"),
            " drafts a tree: leave one of them out",
        )
    levels = parse_drafter(o.drafter, functions.drafter, trees=bool(o.tree))
    Ks = one_K_a_level(o, len(levels))
    drafters = [*chain.from_iterable(levels)]
    check_copies(drafters, o.dtype)
    needed = [drafter.role for drafter in drafters if drafter.role]
    roles = [*dict.fromkeys(["target", *needed])]
    network_roles = [role for role in roles if role in MODEL_ROLES]
    loaded_parts = [drafter for drafter in drafters if drafter.load]
    other_models = [drafter.name for drafter in loaded_parts if drafter.has_model]
    of_target = target_filters(o)
    of_drafts = draft_filters(o)
    plan = Plan(
        levels=levels,
        Ks=Ks,
        tree=o.tree or (),
        rule=rule,
        target_filters=of_target,
        draft_filters=of_drafts,
        seed=o.seed,
        stop=o.stop,
        special=o.special,
        batch=o.batch,
        drafters=drafters,
        roles=roles,
        network_roles=network_roles,
        loaded_parts=loaded_parts,
        filters=dict.fromkeys([*network_roles, *other_models], of_drafts) | {"target": of_target},
        is_greedy=o.temperature == 0,
        depends_on_times="auto" in Ks,
    )
    engine.check(plan)
    return plan


def one_K_a_level(o: ModelOptions, n_levels: int) -> list[int | str]:
    """Return the K of each level of the drafter. A level without a K of its own has that of the level around it."""
    Ks = list(o.K) if isinstance(o.K, tuple) else [o.K]
    if len(Ks) > n_levels:
        raise UserError(
            Option("K"),
            f" {as_typed('K', Ks)} is for {len(Ks)} levels, and ",
            Option("drafter"),
            f" {o.drafter} has {n_levels}",
        )
    return Ks + Ks[-1:] * (n_levels - len(Ks))


def target_filters(o: ModelOptions) -> Filters:
    return Filters(**{name: getattr(o, name) for name in Filters._fields})


def draft_filters(o: ModelOptions) -> Filters:
    """Return the target's filters, at the draft's temperature."""
    temperature = o.temperature if o.draft_temperature is None else o.draft_temperature
    if o.tree and o.temperature == 0 and temperature == 0:
        temperature = 1.0  # at 0 only one token has a probability, and a tree needs several, the likeliest first
    return target_filters(o)._replace(temperature=temperature)


def check_copies(drafters: Sequence[Drafter], dtype: str) -> None:
    """Raise UserError if a copy of the target, whose weights have this format, saves no bytes."""
    for drafter in drafters:
        copy = FORMATS.get(drafter.role)
        if copy and copy.weight_bytes >= FORMATS[dtype].weight_bytes:
            raise UserError(
                Option("drafter"), f" {copy.name} takes no fewer bytes than the target, whose weights are {dtype}"
            )
