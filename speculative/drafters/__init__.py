"""The drafters, which propose tokens: a file for each, their registry, and the way from a name to its drafters.

    a+b  is a, or b if a has nothing to propose
    a/b  is a, for which b drafts (staged.py): two levels, a the outer one; + binds closer than /

To add a drafter, write a file with a class in it, and add an object of that to DRAFTERS.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from speculative.drafters.base import Drafter
from speculative.drafters.heads import HeadsOfTarget
from speculative.drafters.lookup import PromptLookup
from speculative.drafters.model import Copy, DraftModel
from speculative.drafters.ngram import NGram
from speculative.engines.formats import FORMATS
from speculative.support.errors import Option, UserError, did_you_mean

COPIES = [Copy(format) for format in [*FORMATS][1:]]  # all but float32
DRAFTERS = {drafter.name: drafter for drafter in (DraftModel(), *COPIES, PromptLookup(), NGram(), HeadsOfTarget())}


def parse_drafter(text: str, functions: Mapping[str, Drafter], trees: bool) -> list[list[Drafter]]:
    """ "a/b+c" -> [[a], [b, c]], from the outermost level in. functions: of the user. trees: whether it is to draft
    trees. Raises UserError."""
    drafters = {**DRAFTERS, **functions}
    names_of_levels = [level.split("+") for level in text.split("/")]
    names = [*chain.from_iterable(names_of_levels)]
    for name in names:
        if name not in drafters:
            fault = f"{name!r:.80} is unknown" if name else "lacks a name, as a + or a / joins two"
            hint = did_you_mean(name, drafters) or f"there are {', '.join(drafters)}, a+b and a/b"
            raise UserError(Option("drafter"), f" {fault}", hint=hint)
    for name in names:
        if names.count(name) > 1:
            raise UserError(Option("drafter"), f" {text:.80} names {name} twice: once is enough")
    levels = [[drafters[name] for name in level] for level in names_of_levels]
    for [outer, *others] in levels[:-1]:
        if others:
            raise UserError(Option("drafter"), f" {text:.80}: + can only join drafters of the last level")
        if not outer.has_model:
            able = names_with("has_model")
            raise UserError(Option("drafter"), f" {text:.80}: {outer.name} has no model to draft for; {able} have one")
        if trees:
            raise UserError(Option("tree"), f" does not go with a staged drafter: {outer.name}/ drafts a chain")
    for drafter in levels[-1]:
        if trees and drafter.tree is None:
            raise UserError(
                Option("drafter"), f" {drafter.name} drafts chains, not trees: {names_with('tree')} draft trees"
            )
    return levels


def names_with(part: str) -> str:
    """Return the names of the drafters that have this part."""
    return ", ".join(name for name, drafter in DRAFTERS.items() if getattr(drafter, part))


def first_of(drafters: Sequence) -> Callable:
    """Return a drafter that asks these in turn, and gives the first proposal that is not empty.

    Whether a proposal is empty must not depend on draws: to drop a draft after seeing it would change its distribution.
    """
    if len(drafters) == 1:
        return drafters[0]

    def draft(x, size):  # [n], k or widths -> Proposal or Tree
        for drafter in drafters:
            proposal = drafter(x, size)
            if len(proposal.tokens):
                break
        return proposal

    return draft
