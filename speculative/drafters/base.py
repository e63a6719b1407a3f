"""The entry by which a file of this folder declares a drafter, and what a drafter is made from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from speculative.filters import Filters


class Context(NamedTuple):
    """The decode that a drafter is made for."""

    n_vocab: int
    rng: Any  # the decoder's own: a second generator of the same seed would draw the same numbers
    filters: Filters  # from the draft's logits to p
    greedy: bool  # whether the target decodes greedily: a tree then holds the draft's likeliest tokens
    models: Mapping[str, Any]  # by role


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """One way to draft: an entry of the registry."""

    name: str

    # How it drafts.
    chain: Callable[[Context], Callable]  # -> draft(x, k, go_on=None) -> Proposal
    tree: Callable[[Context], Callable] | None = None  # -> draft(x, widths) -> Tree
    # n_vocab -> draft(x, k, go_on), if drafts depend on x alone: predictions then ask it again about a decoded text
    by_text: Callable | None = None
    scale: float = 0.6  # how far its margins are usually off: the s of learned.py to begin with

    # What it drafts with.
    role: str = ""  # in Context.models: "draft", the format of a copy such as "int8", or its own name; "" if none
    has_model: bool = False  # whether models[role] is a model(x, n_last), for which another drafter may draft
    needs_weights: bool = False  # whether it needs the target's weights, which a user's function has not
    load: Callable | None = None  # load(models) -> Context.models[name], before any network is read
    check: Callable | None = None  # check(what load gave, models): UserError if it is for other networks
    not_on_jax: str = ""  # the reason why it cannot draft with --engine jax

    # What it is called.
    phrase: str = ""  # its name in a sentence; "" is the name itself
    mark: str = ""  # the letter at its drafts on a page, where several drafters proposed


def until_unsure(margins: Sequence[float], go_on: Callable | None) -> int:
    """Return the number of drafts, of those with these margins: up to the first after which go_on says not to go on.
    go_on: None where K is a number."""
    for n, margin in enumerate(margins, start=1):
        if go_on and not go_on(margin):
            return n
    return len(margins)
