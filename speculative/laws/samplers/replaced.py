"""Stand-ins in their places, while somebody's function is followed; and everything given back after it.

A function gets its random numbers from somewhere: from np.random, a generator at the top of its file, one in a closure,
a default argument, an attribute, or a name that it has imported. Stand-ins are put in the place of all these, in two
regions and nowhere else:

- in the modules np.random, random, math and torch themselves, where everybody finds them by name;
- in what is reachable from the function without passing through a library: the modules that its authors wrote, and
  the closures, defaults, lists, dicts, classes and attributes there. What an installed package, the standard library
  or this package holds keeps its own (tempfile draws the names of files, for instance: they have to be strings).

A place is a dict and its key, or an object and its attribute. What it held is written down before it is changed, so
that an error or Ctrl-C between two changes leaves nothing behind.
"""

import builtins
import contextlib
import gc
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import chain
from operator import delitem, setitem
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np

from speculative.laws.samplers.stand_ins import StandIns, jax_random

HERE = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep  # this package
LIBRARIES = ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen", HERE)  # parts of their files' paths, and of ours


@contextlib.contextmanager
def replaced(function: Callable, stand_ins: StandIns) -> Iterator[None]:
    """Put the stand-ins in their places, in np.random, random and math and in what the function reaches."""
    modules = [np.random, random, math, jax_random()]
    imports = Imports(modules)
    with contextlib.ExitStack() as stack:
        for holder in chain(map(vars, modules), reached_from(function)):
            for setter, name, thing in places_in(holder):
                if (new := stand_ins.of(thing)) is None:
                    continue
                if isinstance(holder, dict) and name not in holder:  # float
                    stack.callback(delitem, holder, name)
                else:
                    stack.callback(setter, holder, name, thing)
                setter(holder, name, new)
        stack.callback(sys.meta_path.remove, imports)
        sys.meta_path.insert(0, imports)
        yield


def places_in(holder) -> Iterator[tuple[Callable, Any, Any]]:
    """The places in a holder: how they are set, their names, and what is there."""
    if isinstance(holder, dict):
        if "__builtins__" in holder:  # of a module, where float is a name like the others
            yield setitem, "float", holder.get("float", float)
        for key, thing in [*holder.items()]:
            yield setitem, key, thing
    elif isinstance(holder, list):
        for i, thing in enumerate(holder):
            yield setitem, i, thing
    elif isinstance(holder, CellType):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield setattr, "cell_contents", holder.cell_contents
    elif isinstance(holder, FunctionType):
        yield setattr, "__defaults__", holder.__defaults__
    elif isinstance(holder, type):
        for name, thing in [*vars(holder).items()]:
            yield setattr, name, thing


def reached_from(function: Callable) -> Iterator[Any]:
    """All that can be reached from a function without passing through a library."""
    seen = {id(vars(builtins))}  # each function refers to it
    left: list = [function]
    while left:
        thing = left.pop()
        if id(thing) in seen or not gc.is_tracked(thing) or is_of_library(thing):
            continue
        seen.add(id(thing))
        yield thing
        left += gc.get_referents(thing)
        if not isinstance(thing, type) and hasattr(thing, "__dict__"):
            left.append(vars(thing))


def is_of_library(thing: Any) -> bool:
    """Whether a module, class or function is of a library or of this package; or a tensor, which holds nothing."""
    if type(thing).__module__ in ("torch", "numpy"):
        return True
    if isinstance(thing, type):
        thing = sys.modules.get(thing.__module__)
    if isinstance(thing, ModuleType):
        return is_library(vars(thing))
    return isinstance(thing, FunctionType) and is_library(thing.__globals__)


def is_library(names: dict) -> bool:
    """Whether a module with these names is one of a library."""
    file = str(names.get("__file__", ""))
    is_builtin = not file and getattr(names.get("__spec__"), "origin", None) in ("built-in", "frozen")
    return is_builtin or any(part in file for part in LIBRARIES)


# ---- Libraries that are imported meanwhile ---------------------------------------------------------------------------


class Imports:
    """A finder of modules, which is asked before all others. A library that is imported meanwhile gets and keeps what
    the modules held, not the stand-ins: it draws its names and keys with them."""

    def __init__(self, modules: list[ModuleType]):
        self.held = [(vars(module), {**vars(module)}) for module in modules]

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and is_library({"__file__": spec.origin}):
            self.watch(spec.loader)
        return spec

    def watch(self, loader: Any) -> None:
        """Let the loader run its module's code with the real things."""
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            with self.given_back():
                execute(module)

        loader.exec_module = exec_module

    @contextlib.contextmanager
    def given_back(self) -> Iterator[None]:
        before = [{**names} for names, _ in self.held]
        for names, held in self.held:
            names.update(held)
        try:
            yield
        finally:
            for (names, _), stand_ins in zip(self.held, before, strict=True):
                names.update(stand_ins)
