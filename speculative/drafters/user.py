"""A user's functions, given to load_pair or session.changed: drafter=draft, draft(x, k) -> (tokens, p), and
accept=rule, rule(proposal, q, rng) -> tokens. (run/load.py has the target.) A drafter may return a Proposal, and
take go_on as a third parameter: see drafters/model.py."""

import inspect
import re
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from speculative.drafters import DRAFTERS
from speculative.drafters.base import Context, Draft, Drafter, proposal_of, until_unsure, with_arrays
from speculative.rules import RULES, Rule
from speculative.sampling import NOT_IDS, NOTHING, parameters_of, whole_numbers
from speculative.support.errors import UserError, first_line


def name_of(function: Callable, taken: Container[str] = ()) -> str:
    """Return the function's own name, with _function after it if something else has that name."""
    name = re.sub(r"\W", "", str(getattr(function, "__name__", ""))) or "function"
    return f"{name}_function" if name in taken else name


def check_parameters(function: Callable, form: str) -> None:
    """Raise UserError if a user's function cannot be called in this form, such as "draft(x, k)"."""
    if not is_called_as(function, form):
        name = name_of(function)
        raise UserError(f"{name} is called as {form}, and takes other parameters: give it these")


def is_called_as(function: Callable, form: str) -> bool:
    """Return True if a function can be called in this form, or does not tell its parameters."""
    try:
        inspect.signature(function).bind(*form.split(","))  # as many arguments as the form names
    except TypeError:
        return False
    except ValueError:  # some functions that are not written in Python
        return True
    return True


# ---- Drafters --------------------------------------------------------------------------------------------------------


class UserDrafter(Drafter):
    """A user's function as a drafter."""

    def __init__(self, function: Callable):
        """Raises UserError if the function takes other parameters."""
        takes_three = is_called_as(function, "draft(x, k, go_on)")
        self.takes_go_on = takes_three and "go_on" in parameters_of(function)
        if not self.takes_go_on:
            check_parameters(function, "draft(x, k)")
        self.function = function
        self.name = name_of(function, DRAFTERS)

    def chain(self, context: Context) -> Draft:
        def draft(x, k, go_on=None):  # [n], k -> [m], [m, n_vocab]
            if k == 0:
                return NOTHING
            x = np.array(x)  # a copy, as x itself is the text
            if self.takes_go_on:
                proposed = self.function(x, k, go_on)
            else:
                k = until_unsure([1.0] * k, go_on)  # its margins are unknown
                proposed = self.function(x, k)
            return proposal_of(proposed, k, context.n_vocab, self.name)

        return draft


# ---- Rules -----------------------------------------------------------------------------------------------------------


class UserRule(Rule):
    """A user's function as a rule. Its attribute lossless = True claims that it keeps the target's distribution. The
    chances of its tests are unknown: α is not measured, the page shows no tests."""

    explains = False

    def __init__(self, function: Callable):
        super().__init__()
        check_parameters(function, "accept(proposal, q, rng)")
        self.function = function
        self.kind = name_of(function, RULES)
        self.lossless = bool(getattr(function, "lossless", False))

    def accept(self, proposal, q, rng):  # q [m + 1, n_vocab]
        n_vocab = q.shape[1]
        try:
            tokens = whole_numbers(self.function(with_arrays(proposal, n_vocab), q, rng))
        except NOT_IDS as error:
            should = f"the rule {self.name} should return a list of tokens, and only read its arrays"
            raise UserError(f"{should}: {first_line(error)}") from error
        *accepted, last = tokens or [-1]
        are_drafts = accepted == [*proposal.tokens][: len(accepted)]
        if not are_drafts or not 0 <= last < n_vocab:
            returned = ", ".join(map(str, tokens[:8])) or "no token"
            should = "it should be the accepted drafts, then one more token id"
            raise UserError(f"the rule {self.name} returns {returned}: {should}")
        return tokens


# ---- Both, by their names --------------------------------------------------------------------------------------------


MAKERS: dict[str, Callable[[Callable], UserDrafter | UserRule]] = {"drafter": UserDrafter, "accept": UserRule}


class Functions(NamedTuple):
    """A user's functions, by the names that stand for them among the options."""

    drafter: Mapping[str, Drafter] = MappingProxyType({})
    accept: Mapping[str, Rule] = MappingProxyType({})

    def taken_from(self, given: dict) -> tuple[dict, "Functions"]:
        """Return the options with names in place of functions, and these functions beside the earlier ones."""
        named = dict(given)
        functions = self._asdict()
        for option, make in MAKERS.items():
            if callable(given.get(option)):
                made = make(given[option])
                named[option] = made.name
                functions[option] = {**functions[option], made.name: made}
        return named, Functions(**functions)


NO_FUNCTIONS = Functions()
