"""The drafters, which propose tokens: a file for each, their registry, and the way from a name to a drafter.

    a+b  is a, or b if a has nothing to propose
    a/b  is a, for which b drafts (staged.py): two levels, a the outer one; + binds closer than /

To add a drafter, write a file with a SPEC in it, and add that to DRAFTERS.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from speculative.drafters import heads, lookup, model, ngram, quantized
from speculative.drafters.base import Context, Drafter, DrafterSpec
from speculative.drafters.staged import staged
from speculative.rules import TOKEN, Rule
from speculative.sampling import Proposal
from speculative.support.errors import UserError, did_you_mean

DRAFTERS = {spec.name: spec for spec in (model.SPEC, *quantized.SPECS, lookup.SPEC, ngram.SPEC, heads.SPEC)}


def parse_drafter(
    text: str, functions: Mapping[str, DrafterSpec] = MappingProxyType({}), trees: bool = False
) -> list[list[DrafterSpec]]:
    """ "a/b+c" -> [[a], [b, c]], from the outermost level in. functions: of the user. trees: whether it is to draft
    trees. Raises UserError."""
    levels = [[spec_named(name, {**DRAFTERS, **functions}) for name in part.split("+")] for part in text.split("/")]
    names = re.split("[+/]", text)
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--drafter {text:.80} names {name} twice: once is enough")
    for specs in levels[:-1]:
        if len(specs) > 1:
            raise UserError(f"--drafter {text:.80}: + can only join drafters of the last level")
        if not specs[0].model:
            able = ", ".join(name for name, spec in DRAFTERS.items() if spec.model)
            raise UserError(f"--drafter {text:.80}: {specs[0].name} has no model to draft for; {able} have one")
    if trees and levels[1:]:
        raise UserError(f"--tree does not go with a staged drafter: {levels[0][0].name}/ drafts a chain")
    for spec in levels[0] if trees else ():
        if spec.tree is None:
            able = ", ".join(name for name, other in DRAFTERS.items() if other.tree)
            raise UserError(f"--drafter {spec.name} drafts chains, not trees: {able} draft trees")
    return levels


def spec_named(name: str, known: Mapping[str, DrafterSpec]) -> DrafterSpec:
    if name in known:
        return known[name]
    hint = did_you_mean(name, known) or f"; there are {', '.join(known)}, a+b and a/b"
    raise UserError(f"--drafter {name!r:.80} is unknown{hint}")


def roles_of(text: str) -> list[str]:
    """Return the roles of the models that a drafter needs, except those of a user's functions."""
    specs = [DRAFTERS[name] for name in re.split("[+/]", text) if name in DRAFTERS]
    return [*dict.fromkeys([role for spec in specs for role in spec.roles])]


def make_drafter(
    levels: Sequence, context: Context, lookaheads: Sequence = (), rule: Rule = TOKEN, trees: bool = False
) -> Drafter:
    """Return the drafter of these levels (parse_drafter).

    lookaheads: those inside the levels, from the outermost in: for each a FixedK, or an AutoK of lookahead.py.
    rule: of acceptance inside the levels; TOKEN replaces one that is not lossless. trees: whether to draft trees.
    """
    *outer, innermost = levels
    drafts = [spec.chain(context) for spec in innermost]
    tree = first_of([spec.tree(context) for spec in innermost]) if trees else None
    accept = (rule if rule.lossless else TOKEN).accept
    for [spec], K in reversed([*zip(outer, lookaheads, strict=True)]):
        model = context.models[spec.roles[0]]
        drafts = [staged(spec.name, model, partial(K.drafter_of, drafts, model), K.K_max, context.rng, accept)]
    return Drafter(first_of(drafts), drafts, tree)


def first_of(drafts: list[Callable]) -> Callable:
    """Return a drafter that asks these in turn, and gives the first proposal that is not empty.

    Whether a proposal is empty must not depend on draws: a drawn token is never withdrawn for what it is.
    """
    if len(drafts) == 1:
        return drafts[0]

    def draft(x, size):  # [n], k or widths -> Proposal or Tree
        for draft_alone in drafts:
            proposal = draft_alone(x, size)
            if len(proposal.tokens):
                break
        return proposal

    return draft


class FixedK(NamedTuple):
    """A K that is a number."""

    K_max: int

    def drafter_of(self, drafts: list[Callable], model: Callable) -> Callable:
        """The drafter draft(x, k) for one decode: the first of these that proposes anything."""
        return first_of(drafts)


def after_first(draft: Callable) -> Callable:
    """The drafter of one decode, which proposes nothing the first time that it is asked."""
    first = [Proposal([], [])]
    return lambda x, k: first.pop() if first else draft(x, k)
