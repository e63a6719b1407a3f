"""A drafter of the user's own: a function draft(x, k) -> (tokens, p), as load_pair(drafter=draft) takes it."""

import re
from collections.abc import Callable

import numpy as np

from plumbing.errors import UserError
from speculative.drafters.base import NOTHING, Kind, Parts, Proposal


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
            proposal = Proposal(*function(x, k))
            tokens = [int(token) for token in proposal.tokens]
            if len(tokens) > k:
                raise UserError(f"the drafter {name} proposes {len(tokens)} tokens, and {k} were asked for")
            if len(proposal.p) != len(tokens) or (tokens and np.shape(proposal.p) != (len(tokens), parts.n_vocab)):
                raise UserError(
                    f"the drafter {name} gives p of shape {np.shape(proposal.p)} for {len(tokens)} tokens: "
                    f"it should be ({len(tokens)}, {parts.n_vocab})"
                )
            return Proposal(tokens, proposal.p, [name] * len(tokens))

        return draft

    return Kind(name, "a function of the user's own", chain)
