"""The entry by which a file of this folder declares a drafter, the context from which a drafter is made, and the
reading of a user's functions' results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from speculative.filters import Filters
from speculative.sampling import NOTHING, Proposal, as_proposal
from speculative.support.errors import UserError
from speculative.trees import Tree

Draft = Callable[..., Proposal]  # draft(x, k, go_on=None)
DraftTree = Callable[..., Tree]  # draft(x, widths)


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

    # How it drafts.
    chain: Callable[[Context], Draft]
    tree: Callable[[Context], DraftTree] | None = None
    # with the size of the vocabulary, if drafts depend on x alone: predictions then ask it again about a decoded text
    by_text: Callable[[int], Draft] | None = None
    scale: float = 0.6  # how far its margins are usually off: the s of learned.py to begin with

    # The model and the parts that it drafts with.
    role: str = ""  # in Context.models: "draft", the format of a copy such as "int8", or its own name; "" if none
    has_model: bool = False  # whether models[role] is a model(x, n_last), for which another drafter may draft
    needs_weights: bool = False  # whether it needs the target's weights, which a user's function has not
    load: Callable | None = None  # load(models) -> Context.models[name], before any network is read
    check: Callable | None = None  # check(the result of load, models): UserError if it is for other networks
    not_on_jax: str = ""  # the reason why it cannot draft with --engine jax

    # Its names.
    phrase: str = ""  # its name in a sentence; "" is the name itself
    mark: str = ""  # the letter at its drafts on a page, where several drafters proposed


def until_unsure(margins: Sequence[float], go_on: Callable | None) -> int:
    """Return the number of drafts, of those with these margins: up to the first after which go_on says not to go on.
    go_on: None where K is a number."""
    for n, margin in enumerate(margins, start=1):
        if go_on and not go_on(margin):
            return n
    return len(margins)


# ---- What users' functions return ------------------------------------------------------------------------------------


def proposal_of(proposed: object, k: int, n_vocab: int, name: str) -> Proposal:
    """Return the pair or Proposal that a user's drafter returned, as a Proposal whose rows of p sum to 1.

    Raises UserError as as_proposal does, and if a token has probability 0.
    """
    given = as_proposal(proposed, k, f"the drafter {name}")
    m = len(given.tokens)
    if m == 0:
        return NOTHING
    if given.p.shape[1] != n_vocab:
        raise UserError(
            f"the drafter {name} gives p of shape {given.p.shape} for {m} tokens: it should be ({m}, {n_vocab})"
        )
    p = given.p.astype(np.float64)  # [m, n_vocab]
    p = (p / np.sum(p, axis=-1, keepdims=True)).astype(np.float32)  # [m, n_vocab]; 1e-50 becomes 0
    tokens = given.tokens.tolist()
    if not np.all(p[np.arange(m), tokens] > 0):
        raise UserError(f"the drafter {name} proposes a token whose p is 0: the token must be drawn from p")
    return Proposal(tokens, p, [name] * m, margins=[float(margin) for margin in given.margins[:m]])


def with_arrays(proposal: Proposal, n_vocab: int) -> Proposal:
    """The proposal of sampling.as_proposal as a user's rule sees it: p is [m, n_vocab], also without drafts."""
    return proposal._replace(p=np.reshape(proposal.p, (len(proposal.tokens), n_vocab)))  # [m, n_vocab]
