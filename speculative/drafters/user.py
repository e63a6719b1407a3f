"""A user's function as a drafter, given to load_pair or session.changed: drafter=draft, draft(x, k) -> (tokens, p)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from speculative.drafters import DRAFTERS
from speculative.drafters.base import Context, DrafterSpec, always, until_unsure
from speculative.rules import NOT_IDS, check_parameters, ids_of, name_of
from speculative.sampling import NOTHING, ROUNDING, Proposal
from speculative.support.errors import UserError, first_line


def as_drafter(function: Callable) -> DrafterSpec:
    """Return the function as a drafter."""
    check_parameters(function, "draft(x, k)")
    name = name_of(function, DRAFTERS)

    def drafter(context: Context) -> Callable:
        def draft(x, k, go_on=always):  # [n], k -> [m], [m, n_vocab]
            if k == 0:
                return NOTHING
            k = until_unsure([1.0] * k, go_on)  # its margins are unknown
            proposed = function(np.array(x), k)  # a copy, as x itself is the text
            try:
                return proposal_of(proposed, k, context.n_vocab, name)
            except NOT_IDS as error:
                raise UserError(f"the drafter {name} should return (tokens, p): {first_line(error)}") from error

        return draft

    return DrafterSpec(name=name, chain=drafter)


def proposal_of(proposed: Any, k: int, n_vocab: int, name: str) -> Proposal:
    """The pair that the function returned, as a Proposal whose rows of p sum to 1.

    Raises UserError if the tokens cannot have been drawn from p: the text would no longer be the target's, unnoticed.
    """
    if not isinstance(proposed, tuple | list) or len(proposed) < 2:
        raise UserError(f"the drafter {name} should return (tokens, p), not {proposed!r:.80}")
    given, p, *_ = proposed
    tokens = ids_of(given)
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
    return Proposal(tokens, p, [name] * m)
