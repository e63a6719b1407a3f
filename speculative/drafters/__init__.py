"""The drafters, which propose tokens: a file for each, their registry, and the way from a name to a drafter.

    a+b  is a, or b where a has nothing to propose
    a/b  is a, for which b drafts (level.py): two levels, a the outer one; + binds closer than /

To add a drafter, write a file with a KIND in it, and add that to KINDS.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from speculative.drafters import heads, lookup, model, ngram, own, self
from speculative.drafters.base import NOTHING, Drafter, Kind, Parts, Proposal
from speculative.drafters.level import level
from speculative.support.arguments import Flag, nearest, temperature
from speculative.support.errors import UserError
from speculative.trees import Tree

KINDS = {kind.name: kind for kind in (model.KIND, self.KIND, lookup.KIND, ngram.KIND, heads.KIND)}

RENAMED = {"staged": "model/ngram", "staged_lookup": "model/prompt_lookup"}

OF_FUNCTIONS = {}  # {function: its name in KINDS}


def name_of(value: Any) -> Any:
    """The name of a drafter. A function draft(x, k) -> (tokens, p) is added to KINDS, once, under a name of its own."""
    if not callable(value):
        return value
    key = value if isinstance(value, Hashable) else id(value)  # a dataclass that can be called is not; KINDS keeps it
    if key not in OF_FUNCTIONS:
        kind = own.kind_of(value, KINDS)
        KINDS[kind.name] = kind
        OF_FUNCTIONS[key] = kind.name
    return OF_FUNCTIONS[key]


def parse_drafter(text: str) -> list[list[Kind]]:
    """ "a/b+c" -> [[a], [b, c]], from the outermost level in. Raises UserError for what is no drafter."""
    levels = [[kind_named(name) for name in part.split("+")] for part in text.split("/")]
    [(name, times)] = Counter(re.split("[+/]", text)).most_common(1)
    if times > 1:
        raise UserError(f"in {text!r:.80} {name} stands twice: once is enough")
    for kinds in levels[:-1]:
        for kind in kinds:
            if kind.model is None:
                able = ", ".join(name for name, other in KINDS.items() if other.model)
                raise UserError(
                    f"in {text!r:.80} another drafter drafts for {kind.name}, which has no model: {able} have"
                )
        if len(kinds) > 1:
            raise UserError(f"in {text!r:.80} + stands before a /: it may join drafters of the last level alone")
    return levels


def kind_named(name: str) -> Kind:
    if name in KINDS:
        return KINDS[name]
    if name in RENAMED:
        raise UserError(f"--drafter {name} is now written {RENAMED[name]}")
    near = nearest(name, KINDS)
    hint = f" (did you mean {near}?)" if near else ""
    raise UserError(
        f"unknown drafter {name!r:.80}{hint}: there are {', '.join(KINDS)}; a+b: b where a has "
        "nothing to propose; a/b: b drafts for a"
    )


def kinds_of(text: str) -> list[Kind]:
    """Every kind that a drafter consists of."""
    return [kind for kinds in parse_drafter(text) for kind in kinds]


def needs(text: str, what: str) -> bool:
    """True if a drafter needs "draft", a model of its own, or "copy", the target rounded."""
    return any(what in kind.needs for kind in kinds_of(text))


def is_model(text: str) -> bool:
    """True if the drafter is a model, the draft or the copy, and nothing else."""
    return text in (model.KIND.name, self.KIND.name)


def make_drafter(text: str, parts: Parts, trees: bool = False) -> Drafter:
    """The drafter of that name. trees: whether it is to draft trees too, which check_tree() has to allow. Raises
    UserError where what was prepared for it belongs to another target."""
    *outer, innermost = parse_drafter(text)
    chain = first_of(*(kind.chain(parts) for kind in innermost))
    tree = None
    if trees:
        tree = first_tree_of(*(kind.tree(parts) for kind in innermost))
    # From the innermost level out. K is what is drafted at a time for this level's model, by all that is inside it.
    for [kind], K in reversed([*zip(outer, parts.inner_K, strict=True)]):
        chain = level(kind.name, kind.model(parts), chain, K, parts.rng, parts.record, parts.accept)
    return Drafter(chain, tree)


def first_of(*drafters: Callable) -> Callable:
    """The proposal of the first drafter that has one.

    Whether a drafter has one must not depend on what it draws: a token that was drawn is never withdrawn.
    """
    if len(drafters) == 1:
        return drafters[0]

    def draft(x, k):  # [n], k -> [m], [m, n_vocab]
        proposals = (Proposal(*drafter(x, k)) for drafter in drafters)
        return next((proposal for proposal in proposals if len(proposal.tokens)), NOTHING)

    return draft


def first_tree_of(*drafters: Callable) -> Callable:
    """The tree of the first drafter that proposes anything."""
    if len(drafters) == 1:
        return drafters[0]

    def draft(x, shape):
        trees = (drafter(x, shape) for drafter in drafters)
        return next((tree for tree in trees if len(tree.tokens) > 1), Tree([int(x[-1])]))

    return draft


def drafter(value: str) -> str:
    """The value of --drafter."""
    parse_drafter(value)
    return value


FLAG = Flag(
    "drafter",
    drafter,
    "who drafts; a+b: a, or b where a has nothing to propose; a/b: b drafts for a",
    "model",
    live=True,
)


def draws_nothing(o) -> str:
    """The reason why the drafter's own temperature would do nothing here; "" where it does something."""
    if any(kind.draws for kind in kinds_of(o.drafter)):
        return ""
    return f"--drafter {o.drafter} draws nothing at random"


TEMPERATURE = Flag(
    "draft_temperature",
    temperature,
    "temperature of the drafter alone; the output stays lossless",
    in_vain=draws_nothing,
    live=True,
)


def flags_of_kinds() -> Iterator[Flag]:
    """The flags of each kind, which do nothing without it."""
    for kind in KINDS.values():
        unused = partial(lacks, kind.name)
        for flag in kind.flags:
            yield flag._replace(in_vain=unused)


def lacks(name: str, o) -> str:
    """The reason why a flag of that kind would do nothing with these options; "" where it does something."""
    if name in re.split("[+/]", o.drafter):
        return ""
    return f"--drafter {o.drafter} has no {name} in it"


def without_draft_model(o) -> str:
    """The reason why a flag of the draft model would do nothing with these options; "" where it does something."""
    if needs(o.drafter, "draft"):
        return ""
    return f"--drafter {o.drafter} needs no draft model"


def help_of_kinds() -> list[str]:
    """A line for each kind, for --help."""
    return [f"{kind.name:13} {kind.help}" for kind in KINDS.values()]


def check_tree(text: str) -> None:
    """Raises UserError where a drafter cannot draft trees."""
    levels = parse_drafter(text)
    if len(levels) > 1:
        raise UserError(f"--tree does not go with the levels of --drafter {text}: a level drafts a chain")
    for kind in levels[0]:
        if kind.tree is None:
            able = ", ".join(name for name, other in KINDS.items() if other.tree)
            raise UserError(
                f"--tree does not go with --drafter {kind.name}, which drafts chains only: {able} draft trees"
            )
