"""The entry by which a file of this folder declares a drafter, the context from which a drafter is made, and the
reading of a user's functions' results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from speculative.filters import Filters
from speculative.sampling import NOTHING, ROUNDING, Proposal
from speculative.support.errors import UserError, first_line


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
    chain: Callable[[Context], Callable]  # -> draft(x, k, go_on=None) -> Proposal
    tree: Callable[[Context], Callable] | None = None  # -> draft(x, widths) -> Tree
    # n_vocab -> draft(x, k, go_on), if drafts depend on x alone: predictions then ask it again about a decoded text
    by_text: Callable | None = None
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


NOT_IDS = (TypeError, ValueError, OverflowError)  # raised for something that is not a list of numbers


def whole_numbers(given: Iterable) -> list[int]:
    """Return token ids as whole numbers. Raises one of NOT_IDS."""
    given = list(given)
    ids = [int(token) for token in given]
    if ids != given:
        raise ValueError(f"{given} are not token ids")
    return ids


def proposal_of(proposed: Sequence, k: int, n_vocab: int, name: str) -> Proposal:
    """Return the pair or Proposal that a user's drafter returned, as a Proposal whose rows of p sum to 1.

    Raises UserError if the tokens cannot have been drawn from p: the text would no longer be the target's, unnoticed.
    """
    try:
        return read_proposal(proposed, k, n_vocab, name)
    except NOT_IDS as error:
        raise UserError(f"the drafter {name} should return (tokens, p): {first_line(error)}") from error


def read_proposal(proposed: Sequence, k: int, n_vocab: int, name: str) -> Proposal:
    """Return the proposal. Raises UserError, or one of NOT_IDS."""
    if not isinstance(proposed, tuple | list) or len(proposed) < 2:
        raise UserError(f"the drafter {name} should return (tokens, p), not {proposed!r:.80}")
    given, p, *_ = proposed
    margins = [float(margin) for margin in proposed.margins] if isinstance(proposed, Proposal) else []
    tokens = whole_numbers(given)
    m = len(tokens)
    if m > k:
        raise UserError(f"the drafter {name} proposes {m} tokens, and {k} were asked for")
    if m == 0:
        return NOTHING
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise UserError(f"the drafter {name} proposes the token {token}: ids go from 0 to {n_vocab - 1}")
    p = np.asarray(p)  # [m, n_vocab]
    if p.shape != (m, n_vocab):
        raise UserError(f"the drafter {name} gives p of shape {p.shape} for {m} tokens: it should be ({m}, {n_vocab})")
    p = p.astype(np.float64, casting="same_kind")  # raises TypeError for complex numbers
    sums = np.sum(p, axis=-1, keepdims=True)  # [m, 1]
    if not (np.all(p >= 0) and np.all(np.abs(sums - 1) <= ROUNDING)):
        raise UserError(f"the drafter {name} gives rows of p that are not distributions: entries >= 0 whose sum is 1")
    p = (p / sums).astype(np.float32)  # [m, n_vocab]; 1e-50 becomes 0
    if not np.all(p[np.arange(m), tokens] > 0):
        raise UserError(f"the drafter {name} proposes a token whose p is 0: the token must be drawn from p")
    return Proposal(tokens, p, [name] * m, margins=margins[:m])


def with_arrays(proposal: Proposal, n_vocab: int) -> Proposal:
    """The proposal of sampling.as_proposal as a user's rule sees it: p is [m, n_vocab], also without drafts."""
    return proposal._replace(p=np.reshape(proposal.p, (len(proposal.tokens), n_vocab)))  # [m, n_vocab]
