"""The drafters, which propose tokens: a file for each, their registry, and the way from a name to a drafter.

    a+b  is a, or b if a has nothing to propose
    a/b  is a, for which b drafts (staged.py): two levels, a the outer one; + binds closer than /

To add a drafter, write a file with a SPEC in it, and add that to DRAFTERS.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType

from speculative.drafters import heads, lookup, model, ngram, quantized
from speculative.drafters.base import Context, Drafter, DrafterSpec
from speculative.drafters.staged import staged
from speculative.rules import TOKEN, Rule
from speculative.support.errors import UserError, did_you_mean
from speculative.support.names import Name, split

DRAFTERS = {spec.name: spec for spec in (model.SPEC, *quantized.SPECS, lookup.SPEC, ngram.SPEC, heads.SPEC)}


# ---- From a name to the drafters that it stands for ------------------------------------------------------------------


def parse_drafter(
    text: str, functions: Mapping[str, DrafterSpec] = MappingProxyType({}), trees: bool = False
) -> list[list[DrafterSpec]]:
    """ "a/b+c" -> [[a], [b, c]], from the outermost level in. functions: of the user. trees: whether it is to draft
    trees. Raises UserError."""
    specs = {**DRAFTERS, **functions}
    levels = [[spec_named(name, specs) for name in names] for names in split(text)]
    names = [spec.name for spec in chain.from_iterable(levels)]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--drafter {text:.80} names {name} twice: once is enough")
    for level in levels[:-1]:
        if len(level) > 1:
            raise UserError(f"--drafter {text:.80}: + can only join drafters of the last level")
        if not level[0].has_model:
            able = names_of(spec for spec in DRAFTERS.values() if spec.has_model)
            raise UserError(f"--drafter {text:.80}: {level[0].name} has no model to draft for; {able} have one")
    if trees:
        check_trees(levels)
    return levels


def check_trees(levels: Sequence[Sequence[DrafterSpec]]) -> None:
    """Raise UserError if these drafters cannot draft trees."""
    if len(levels) > 1:
        raise UserError(f"--tree does not go with a staged drafter: {levels[0][0].name}/ drafts a chain")
    for spec in levels[0]:
        if spec.tree is None:
            able = names_of(spec for spec in DRAFTERS.values() if spec.tree)
            raise UserError(f"--drafter {spec.name} drafts chains, not trees: {able} draft trees")


def names_of(specs: Iterable[DrafterSpec]) -> str:
    return ", ".join(spec.name for spec in specs)


def spec_named(name: Name, specs: Mapping[str, DrafterSpec]) -> DrafterSpec:
    """Return the spec of a name, with its argument. Raises UserError."""
    spec = specs.get(name.name)
    if spec is None:
        fault = f"{name.name!r:.80} is unknown" if name.name else "lacks a name, as a + or a / joins two"
        hint = did_you_mean(name.name, specs) or f"; there are {', '.join(specs)}, a+b and a/b"
        raise UserError(f"--drafter {fault}{hint}")
    if not name.argument:
        return spec
    if spec.with_argument is None:
        raise UserError(f"--drafter {name!s:.80}: {name.name} takes nothing after its name")
    return spec.with_argument(name.argument)


# ---- From the specs to the drafter of a decode -----------------------------------------------------------------------


def make_drafter(
    levels: Sequence, context: Context, lookaheads: Sequence = (), rule: Rule = TOKEN, trees: bool = False
) -> Drafter:
    """Return the drafter of these levels (parse_drafter).

    lookaheads: those inside the levels, from the outermost in: a FixedK or an AutoK of lookahead.py for each.
    rule: of acceptance inside the levels; TOKEN replaces one that is not lossless. trees: whether to draft trees.
    """
    *outer, innermost = levels
    drafts = [spec.chain(context) for spec in innermost]
    tree = first_of([spec.tree(context) for spec in innermost]) if trees else None
    accept = rule.accept if rule.lossless else TOKEN.accept
    for specs, lookahead in zip(reversed(outer), reversed(lookaheads), strict=True):
        [spec] = specs
        model = context.models[spec.roles[0]]
        new_draft = partial(lookahead.drafter_of, drafts, model)
        drafts = [staged(spec.name, model, new_draft, lookahead.K_max, context.rng, accept)]
    return Drafter(first_of(drafts), drafts, tree)


def first_of(drafts: Sequence[Callable]) -> Callable:
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
