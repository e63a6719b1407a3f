"""A user's functions as a drafter and as a rule of acceptance, given to load_pair or session.changed.

drafter=draft    draft(x, k) -> (tokens, p)
accept=accept    accept(proposal, q, rng) -> tokens, as sampling.token_by_token
"""

import re
from collections.abc import Callable, Container, Mapping
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from speculative.drafters import DRAFTERS
from speculative.drafters.base import Context, DrafterSpec
from speculative.rules import RULES, Rule
from speculative.sampling import Proposal
from speculative.support.errors import UserError, first_line

ROUNDING = 0.01  # by which the sum of a row may differ from 1, as in float16


class Functions(NamedTuple):
    """The functions that a session knows, by name."""

    drafters: Mapping[str, DrafterSpec] = {}
    rules: Mapping[str, Rule] = {}


NO_FUNCTIONS = Functions()


def name_functions(options: dict[str, Any], known: Functions) -> tuple[dict[str, Any], Functions]:
    """Put the names of functions in their place among the options, and add the functions to the known ones."""
    given = {name: options[name] for name in ("drafter", "accept") if callable(options.get(name))}
    if "drafter" in given:
        spec = as_drafter(given["drafter"])
        known = known._replace(drafters={**known.drafters, spec.name: spec})
        options = options | {"drafter": spec.name}
    if "accept" in given:
        rule = as_rule(given["accept"])
        known = known._replace(rules={**known.rules, rule.name: rule})
        options = options | {"accept": rule.name}
    return options, known


def name_of(function: Callable, taken: Container[str]) -> str:
    """Return the function's own name, with _function after it if something else has that name."""
    name = re.sub(r"\W", "", str(getattr(function, "__name__", ""))) or "function"
    return f"{name}_function" if name in taken else name


# ---- A rule ----------------------------------------------------------------------------------------------------------


def as_rule(function: Callable) -> Rule:
    """Return the function as a rule. Its attribute lossless = True claims that it keeps the target's distribution.

    The chances of its tests are unknown, so α is not measured and the page shows no tests.
    """
    name = name_of(function, RULES)

    @wraps(function)
    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        given = function(proposal, q, rng)
        try:
            given = list(given)
            tokens = [int(token) for token in given]
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"the rule {name} should return a list of tokens: {first_line(error)}") from error
        drafts = [int(token) for token in proposal.tokens]
        right = tokens == given and tokens and tokens[:-1] == drafts[: len(tokens) - 1] and len(tokens) <= len(q)
        if not right or not 0 <= tokens[-1] < q.shape[1]:
            some = ", ".join(map(str, given[:8])) or "no token"
            raise UserError(f"the rule {name} returns {some}: it should be the accepted drafts, then one more token id")
        return tokens

    lossless = bool(getattr(function, "lossless", False))
    return Rule(name, accept, None, lambda step: 0, lambda step: [], lossless=lossless, formula="unknown")


# ---- A drafter -------------------------------------------------------------------------------------------------------


def as_drafter(function: Callable) -> DrafterSpec:
    """Return the function as a drafter."""
    name = name_of(function, DRAFTERS)

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
