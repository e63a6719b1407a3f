"""The plan of a run: the meaning of its options as plain values, before any weights are read.

Options say what was asked, a plan says what will run. Combinations of options that cannot run are refused here; those
that are wrong by their names alone, in options.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from speculative.drafters import parse_drafter
from speculative.drafters.base import DrafterSpec
from speculative.drafters.user import as_drafter
from speculative.engines.formats import FORMATS
from speculative.filters import Filters
from speculative.options import ModelOptions
from speculative.rules import Rule, as_rule, parse_rule
from speculative.support.errors import UserError
from speculative.values import as_typed

AnyOptions = TypeVar("AnyOptions", bound=ModelOptions)


class Functions(NamedTuple):
    """A user's functions, by the names that stand for them among the options."""

    drafter: Mapping[str, DrafterSpec] = MappingProxyType({})
    accept: Mapping[str, Rule] = MappingProxyType({})

    def taken_from(self, given: dict) -> tuple[dict, "Functions"]:
        """Return the options with names in place of functions, and these functions beside the earlier ones."""
        named = dict(given)
        functions = self._asdict()
        for option, make in (("drafter", as_drafter), ("accept", as_rule)):
            if callable(given.get(option)):
                made: Any = make(given[option])
                named[option] = made.name
                functions[option] = {**functions[option], made.name: made}
        return named, Functions(**functions)


NO_FUNCTIONS = Functions()


class Wanted(NamedTuple):
    """A model that an option names."""

    size: str
    dtype: str  # its weight format


@dataclass(frozen=True)
class Plan:
    """What will run.

    Of --drafter heads+ngram the roles are [target, heads, ngram], the networks [target], the loaded_parts those of
    heads and ngram, the parts_without_a_model [heads], and the models [target, ngram].
    """

    levels: Sequence[Sequence[DrafterSpec]]  # the drafter's, from the outermost in
    Ks: Sequence[int | str]  # for each level, its K: a number or "auto"
    tree: tuple[int, ...]  # the number of children at each depth; () for a chain
    rule: Rule
    target_filters: Filters  # from the target's logits to q
    draft_filters: Filters  # from the draft's logits to p
    seed: int
    stop: str | tuple[str, ...] | None
    special: bool  # whether <|endoftext|> in a prompt is the token
    batch: int  # texts that are decoded together
    wanted: Mapping[str, Wanted] = field(repr=False)  # by role, the models that the options name

    @property
    def specs(self) -> list[DrafterSpec]:
        return [*chain.from_iterable(self.levels)]

    @property
    def roles(self) -> list[str]:
        """The names under which models and other parts are loaded, the target first."""
        needed = [role for spec in self.specs for role in spec.roles]
        return [*dict.fromkeys(["target", *needed])]

    @property
    def networks(self) -> list[str]:
        """The roles of networks: "target", "draft", or the weight format of the target's copy."""
        return [role for role in self.roles if role in self.wanted]

    @property
    def loaded_parts(self) -> list[DrafterSpec]:
        """The drafters that load something of their own, under their names."""
        return [spec for spec in self.specs if spec.load]

    @property
    def parts_without_a_model(self) -> list[str]:
        """The names of parts that are not models, to which no filters apply."""
        return [spec.name for spec in self.loaded_parts if not spec.has_model]

    @property
    def models(self) -> list[str]:
        """The roles to which filters apply: networks, and drafters that are models."""
        return [role for role in self.roles if role not in self.parts_without_a_model]

    @property
    def is_greedy(self) -> bool:
        return self.target_filters.temperature == 0

    @property
    def depends_on_times(self) -> bool:
        """Whether some K is chosen by measured times, so that the seed alone does not decide the text."""
        return "auto" in self.Ks

    def target_of(self, level: int) -> str:
        """The role of the model for which a level drafts: the target, or the model of the level around it."""
        return self.levels[level - 1][0].roles[0] if level else "target"

    def filters(self, role: str) -> Filters:
        return self.target_filters if role == "target" else self.draft_filters

    def rng(self, number: int) -> np.random.Generator:
        """The random numbers of a decoder's text. Text 0 has those of the blog."""
        return np.random.default_rng([self.seed, number] if number else self.seed)


def make_plan(o: ModelOptions, engine: Any, functions: Functions = NO_FUNCTIONS) -> Plan:
    """Return the plan of these options, in which --fast is spelled out. engine: a contract.Engine. Raises UserError if
    they cannot run together, or not with this engine."""
    rule = parse_rule(o.accept, functions.accept)
    if o.tree and not rule.accept_tree:
        raise UserError(f"--accept {o.accept} tests a chain, and --tree drafts a tree: leave one of them out")
    levels = parse_drafter(o.drafter, functions.drafter, trees=bool(o.tree))
    plan = Plan(
        levels=levels,
        Ks=one_K_a_level(o, len(levels)),
        tree=o.tree or (),
        rule=rule,
        target_filters=target_filters(o),
        draft_filters=draft_filters(o),
        seed=o.seed,
        stop=o.stop,
        special=o.special,
        batch=o.batch,
        wanted=wanted_models(o, engine),
    )
    check_copies(plan)
    engine.check(plan)
    return plan


def one_K_a_level(o: ModelOptions, n_levels: int) -> list[int | str]:
    """For each level of the drafter its K. A level without a K of its own has that of the level around it."""
    Ks = list(o.K) if isinstance(o.K, tuple) else [o.K]
    if len(Ks) > n_levels:
        raise UserError(f"--K {as_typed('K', Ks)} is for {len(Ks)} levels, and --drafter {o.drafter} has {n_levels}")
    return Ks + Ks[-1:] * (n_levels - len(Ks))


def target_filters(o: ModelOptions) -> Filters:
    return Filters(**{name: getattr(o, name) for name in Filters._fields})


def draft_filters(o: ModelOptions) -> Filters:
    """Return the target's filters, at the draft's temperature."""
    temperature = o.temperature if o.draft_temperature is None else o.draft_temperature
    if o.tree and o.temperature == 0 and temperature == 0:
        temperature = 1.0  # at 0 only one token has a probability, and a tree needs several, the likeliest first
    return target_filters(o)._replace(temperature=temperature)


def wanted_models(o: ModelOptions, engine: Any) -> dict[str, Wanted]:
    """Return by role all models that the options name: the target, the draft, and the target's copies by format."""
    draft_dtype = engine.draft_dtype(o.dtype) if o.draft_dtype == "auto" else o.draft_dtype
    models = {
        "target": Wanted(o.target_model_size, o.dtype),
        "draft": Wanted(o.draft_model_size, draft_dtype),
    }
    for dtype in FORMATS:
        models[dtype] = Wanted(o.target_model_size, dtype)
    return models


def check_copies(plan: Plan) -> None:
    """Raise UserError if a copy of the target saves no bytes."""
    own = plan.wanted["target"].dtype
    for role in plan.networks:
        if role in FORMATS and FORMATS[role].weight_bytes >= FORMATS[own].weight_bytes:
            raise UserError(f"--drafter {role} takes no fewer bytes than the target, whose weights are {own}")


def spelled_out(o: AnyOptions, drafter: str) -> AnyOptions:
    """Return the options that --fast is short for, with this drafter (Models.fast_drafter)."""
    accept = "block" if o.temperature > 0 else "token"
    return replace(o, drafter=drafter, K="auto", tree=None, accept=accept)
