"""The class that the drafters of this folder extend, the context in which one drafts, and the reading of a user's
functions' results."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from speculative.filters import Filters
from speculative.sampling import NOTHING, Proposal, as_proposal
from speculative.support.errors import UserError
from speculative.trees import Tree

Draft = Callable[..., Proposal]  # draft(x, k, go_on=None)
DraftTree = Callable[..., Tree]  # draft(x, widths)


class Context(NamedTuple):
    """The decode that drafts are for."""

    n_vocab: int
    rng: np.random.Generator  # the decoder's own: a second generator of the same seed would draw the same numbers
    filters: Filters  # from the draft's logits to p
    greedy: bool  # whether the target decodes greedily: a tree then holds the draft's likeliest tokens
    models: Mapping[str, Any]  # by role


class Loading(Protocol):
    """The part of a session's models that a drafter loads from (run/load.Models)."""

    ngram_text: str | None  # the file in which n-grams are counted

    def spec(self, role: str) -> Any:
        """Return the small files of a model (run/load.ModelSpec)."""

    def __getitem__(self, role: str) -> Any:
        """Return a network that is loaded."""


class Drafter:
    """One way to draft: a class for each, and an object of it in the registry."""

    name: str
    phrase = ""  # its name in a sentence; "" is the name itself
    mark = ""  # the letter at its drafts on a page, where several drafters proposed
    role = ""  # in Context.models: "draft", the format of a copy such as "int8", or its own name; "" if it has no model
    has_model = False  # whether models[role] is a model(x, n_last), for which another drafter may draft
    needs_weights = False  # whether it needs the target's weights, which a user's function has not
    not_on_jax = ""  # the reason why it cannot draft with --engine jax
    scale = 0.6  # how far its margins are usually off: the s of learned.py to begin with

    # Methods that some drafters have:
    tree: Callable[[Context], DraftTree] | None = None
    # by_text(n_vocab) -> a draft(x, k), if drafts depend on x alone: predictions then draft a decoded text once more
    by_text: Callable[[int], Draft] | None = None
    load: Callable[[Loading], Any] | None = None  # -> Context.models[name], before any network is read

    def chain(self, context: Context) -> Draft:
        """Return draft(x, k) for a decode."""
        raise NotImplementedError

    def check(self, loaded: Any, models: Loading) -> None:
        """Raise UserError if the result of load is for other networks than these."""


def until_unsure(margins: Sequence[float], go_on: Callable | None) -> int:
    """Return the number of drafts, of those with these margins: up to the first after which go_on says not to go on.
    go_on: None if K is a number."""
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
