"""The parts of a drafter, and the entry by which a file of this folder declares one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from speculative.filters import Filters


class Drafter(NamedTuple):
    """A drafter, as a decoder takes it."""

    chain: Callable  # draft(x, k) -> Proposal
    parts: Sequence[Callable]  # of a+b those of a and of b; the chain is the first that proposes anything
    tree: Callable | None = None  # draft(x, widths) -> trees.Tree, if it can


def always(margin: float) -> bool:
    """go_on where K is a number: always one more."""
    return True


def until_unsure(margins: Sequence[float], go_on: Callable) -> int:
    """Return the number of drafts, of those with these margins: up to the first after which not to go on."""
    for n, margin in enumerate(margins, start=1):
        if not go_on(margin):
            return n
    return len(margins)


class Context(NamedTuple):
    """The decode that a drafter is made for."""

    n_vocab: int
    rng: np.random.Generator  # the decoder's own: a second generator of the same seed would draw the same numbers
    filters: Filters  # from the draft's logits to p
    greedy: bool  # whether the target decodes greedily: a tree then holds the draft's likeliest tokens
    models: Mapping[str, Any]  # by role


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """One way to draft: an entry of the registry."""

    name: str
    chain: Callable[[Context], Callable]  # -> draft(x, k, go_on=always) -> Proposal
    tree: Callable[[Context], Callable] | None = None  # -> draft(x, widths) -> Tree
    by_text: Callable | None = None  # n_vocab -> draft(x, k, go_on), if drafts depend on x alone:
    # predictions then ask it again about a text that was decoded by other drafts
    with_argument: Callable | None = None  # the argument of NAME:ARGUMENT -> the DrafterSpec
    roles: tuple[str, ...] = ()  # in Context.models: "draft", the format of a copy of the target, or name
    has_model: bool = False  # whether models[roles[0]] is a model(x, n_last), for which another drafter may draft
    load: Callable | None = None  # load(models) -> Context.models[name], before any network is read
    check: Callable | None = None  # check(what load gave, models): UserError if it is for other networks
    scale: float = 0.6  # of the error of its margins, before AutoK has learned it
    phrase: str = ""  # its name in a sentence; "" is the name itself
    mark: str = ""  # the letter at its drafts on a page, where several drafters proposed
    not_on_jax: str = ""  # the reason why it cannot draft with --engine jax

    @property
    def label(self) -> str:
        """Its name in a sentence."""
        return self.phrase or self.name
