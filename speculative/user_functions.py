"""A user's functions as a drafter and as a rule of acceptance, given to load_pair or session.changed.

drafter=draft    draft(x, k) -> (tokens, p)
accept=accept    accept(proposal, q, rng) -> tokens, as sampling.token_by_token
"""

import re
from collections.abc import Callable, Container
from functools import wraps
from typing import Any

import numpy as np

from speculative.drafters import DRAFTERS
from speculative.drafters.base import Context, DrafterSpec, always, until_unsure
from speculative.rules import RULES, Rule
from speculative.sampling import Proposal
from speculative.support.errors import UserError, first_line

ROUNDING = 0.01  # by which the sum of a row may differ from 1, as in float16
NOT_IDS = (TypeError, ValueError, OverflowError)  # raised for something that is not a list of numbers


def name_of(function: Callable, taken: Container[str]) -> str:
    """Return the function's own name, with _function after it if something else has that name."""
    name = re.sub(r"\W", "", str(getattr(function, "__name__", ""))) or "function"
    return f"{name}_function" if name in taken else name


def ids_of(given: Any) -> list[int]:
    """Return token ids as whole numbers. Raises one of NOT_IDS."""
    given = list(given)
    ids = [int(token) for token in given]
    if ids != given:
        raise ValueError(f"{given} are not token ids")
    return ids


def as_rule(function: Callable) -> Rule:
    """Return the function as a rule. Its attribute lossless = True claims that it keeps the target's distribution.

    The chances of its tests are unknown, so α is not measured and the page shows no tests.
    """
    name = name_of(function, RULES)

    @wraps(function)
    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        try:
            tokens = ids_of(function(proposal, q, rng))
        except NOT_IDS as error:
            raise UserError(f"the rule {name} should return a list of tokens: {first_line(error)}") from error
        *accepted, last = tokens or [-1]
        if accepted != [*proposal.tokens][: len(accepted)] or len(tokens) > len(q) or not 0 <= last < q.shape[1]:
            some = ", ".join(map(str, tokens[:8])) or "no token"
            raise UserError(f"the rule {name} returns {some}: it should be the accepted drafts, then one more token id")
        return tokens

    lossless = bool(getattr(function, "lossless", False))
    return Rule(name, accept, None, lambda step: [], lossless=lossless, formula="unknown")


def as_drafter(function: Callable) -> DrafterSpec:
    """Return the function as a drafter."""
    name = name_of(function, DRAFTERS)

    def drafter(context: Context) -> Callable:
        def draft(x, k, go_on=always):  # [n], k -> [m], [m, n_vocab]
            if k == 0:
                return Proposal([], [])
            k = until_unsure([1.0] * k, go_on)  # its margins are unknown
            proposed = function(np.array(x), k)  # a copy, as x itself is the text
            try:
                return proposal_of(proposed, k, context.n_vocab, name)
            except NOT_IDS as error:
                raise UserError(f"the drafter {name} should return (tokens, p): {first_line(error)}") from error

        return draft

    return DrafterSpec(name, drafter)


def proposal_of(proposed: Any, k: int, n_vocab: int, name: str) -> Proposal:
    """The pair that the function returned, as a Proposal whose rows of p sum to 1.

    Raises UserError if the tokens cannot have been drawn from p: the text would no longer be the target's, unnoticed.
    """
    given, p, *_ = proposed
    tokens = ids_of(given)
    m = len(tokens)
    if m > k:
        raise UserError(f"the drafter {name} proposes {m} tokens, and {k} were asked for")
    if m == 0:
        return Proposal([], [])
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


MAKERS: dict[str, Callable] = {"drafter": as_drafter, "accept": as_rule}
NO_FUNCTIONS: dict[str, dict] = {"drafter": {}, "accept": {}}  # {option: {name: what its function was made into}}


def name_functions(options: dict[str, Any], known: dict[str, dict]) -> tuple[dict[str, Any], dict[str, dict]]:
    """Put the names of functions in their place among the options, and add the functions to the known ones."""
    for option, make in MAKERS.items():
        if callable(options.get(option)):
            made = make(options[option])
            options = options | {option: made.name}
            known = known | {option: known[option] | {made.name: made}}
    return options, known
