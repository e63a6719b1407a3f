"""A user's function as a drafter: draft(x, k) -> (tokens, p), given as load_pair(drafter=draft)."""

import re
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from speculative.drafters.base import Context, DrafterSpec
from speculative.sampling import Proposal
from speculative.support.errors import UserError, first_line

ROUNDING = 0.01  # by which the sum of a row may differ from 1, as in float16


def spec_of(function: Callable, taken: Container[str]) -> DrafterSpec:
    """The function as a drafter, under its own name, or with _function after it if another drafter has that name."""
    name = re.sub(r"\W", "", str(getattr(function, "__name__", ""))) or "function"
    name += "_function" if name in taken else ""

    def drafter(context: Context) -> Callable:
        def draft(x, k):  # [n], k -> [m], [m, n_vocab]
            if k == 0:
                return Proposal([], [])
            proposed = function(np.array(x), k)  # a copy, as x itself is the text
            try:
                return checked(proposed, k, context.n_vocab, name)
            except (TypeError, ValueError, OverflowError, np.ma.MAError) as error:  # not a pair, not numbers, ...
                raise UserError(f"the drafter {name} should return (tokens, p): {first_line(error)}") from error

        return draft

    return DrafterSpec(name, drafter)


def checked(proposed: Any, k: int, n_vocab: int, name: str) -> Proposal:
    """The pair that the function returned, as a Proposal whose rows of p sum to 1.

    Raises UserError if the tokens cannot have been drawn from p: the text would no longer be the target's, unnoticed.
    """
    given, p, *_ = proposed
    given = list(given)
    tokens = [int(token) for token in given]
    m = len(tokens)
    if tokens != given:
        raise ValueError(f"{given} are not token ids")
    if m > k:
        raise UserError(f"the drafter {name} proposes {m} tokens, and {k} were asked for")
    if m == 0:
        return Proposal([], [])
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise UserError(f"the drafter {name} proposes the token {token}: ids go from 0 to {n_vocab - 1}")
    if np.ma.is_masked(p):
        raise ValueError("entries of p are masked")
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
    return Proposal(tokens, p, [name] * m)
