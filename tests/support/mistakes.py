"""Mistakes that are planted while the tests run: a function of the product gives way to a wrong twin, which a check has
to see."""

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from speculative.support.errors import UserError

SEEN = (AssertionError, pytest.fail.Exception, UserError)  # how a check fails; an accident of the twin is none of these


class Mistake(NamedTuple):
    """A wrong twin, and what has to see it."""

    seen_by: Any  # a check that fails, or options with which an enumeration differs
    owner: Any  # the module or the class of the function
    name: str  # of the function
    twin: Callable

    def __str__(self) -> str:
        return getattr(self.twin, "__name__", self.name)


class Mistakes(list[Mistake]):
    """The mistakes of a file of tests.

    @mistakes.plant(check, owner, name) stands above each wrong twin, which has the parameters of owner.name. Where the
    tests import that function by its name, they keep the right one: the twin may call it.
    """

    def plant(self, seen_by: Any, owner: Any, name: str) -> Callable:
        """Take the function below as a wrong twin."""

        def take(twin):
            self.append(Mistake(seen_by, owner, name, twin))
            return twin

        return take

    @property
    def checks(self) -> list[Callable]:
        """Each check once."""
        return [*dict.fromkeys(mistake.seen_by for mistake in self)]


def parameters(function: Callable) -> list[str]:
    return [*inspect.signature(function).parameters]


def make(monkeypatch, mistake: Mistake) -> None:
    """Replace the function wherever it is used, until the test ends."""
    _, owner, name, twin = mistake
    function = vars(owner)[name]
    if not isinstance(function, property):
        assert parameters(twin) == parameters(function), f"{name} has other parameters now: write its wrong twin anew"
    for user in [one for one_name, one in sys.modules.items() if one_name.startswith("speculative.")]:
        for key, value in [*vars(user).items()]:
            if value is function:
                monkeypatch.setattr(user, key, twin)
            for row_name, row in [*value.items()] if isinstance(value, dict) else ():  # of a table, such as LINES
                if hasattr(row, "_fields") and any(cell is function for cell in row):
                    cells = [twin if cell is function else cell for cell in row]
                    monkeypatch.setitem(value, row_name, type(row)(*cells))
    monkeypatch.setattr(owner, name, twin)
