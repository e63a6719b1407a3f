"""A drafter of the user's own: a function draft(x, k) -> (tokens, p), as load_pair(drafter=draft) takes it."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from speculative.drafters.base import NOTHING, Kind, Parts, Proposal
from speculative.support.errors import UserError, first_line

ROUNDING = 0.01  # by which the sum of a row may differ from 1, as in float16


def kind_of(function: Callable, taken: dict[str, Kind]) -> Kind:
    """The function as a drafter, under its own name, or with a number where another one has that."""
    plain = re.sub(r"\W", "", getattr(function, "__name__", "")) or "own"
    name = plain
    number = 1
    while name in taken:
        number += 1
        name = f"{plain}_{number}"

    def chain(parts: Parts) -> Callable:
        def draft(x, k):  # [n], k -> [m], [m, n_vocab]
            if k == 0:
                return NOTHING
            proposed = function(np.array(x), k)  # a copy: x itself is the text
            try:
                return checked(proposed, k, parts.n_vocab, name)
            except (TypeError, ValueError, OverflowError) as error:  # no pair, no numbers, rows of several lengths
                raise UserError(f"the drafter {name} should give (tokens, p): {first_line(error)}") from error

        return draft

    return Kind(name, "a function of the user's own", chain)


def checked(proposed: Any, k: int, n_vocab: int, name: str) -> Proposal:
    """What the function gave, as a proposal, if no token is one that its p could not have drawn: with such a p the text
    would not be the target's, and nothing else would show it. Raises UserError."""
    tokens, p, *_ = proposed
    given = list(tokens)
    tokens = [int(token) for token in given]
    m = len(tokens)
    if tokens != given:
        raise ValueError(f"{given} are no ids of tokens")
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
    if p.dtype.kind != "f":
        p = p.astype(np.float64, casting="same_kind")  # not from texts
    sums = np.sum(p, axis=-1, dtype=np.float64)  # [m]
    if not (np.all(p >= 0) and np.all(np.abs(sums - 1) <= ROUNDING)):
        raise UserError(f"the drafter {name} gives p that is no distribution: none below 0, and the sum of a row is 1")
    if not np.all(p[np.arange(m), tokens] > 0):
        raise UserError(f"the drafter {name} proposes a token whose p is 0: p is what the token was drawn from")
    return Proposal(tokens, p, [name] * m)
