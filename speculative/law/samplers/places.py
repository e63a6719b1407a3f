"""The places of stand-ins, while somebody's function is followed; and everything given back after it.

A function gets its random numbers from somewhere: from np.random, a generator at the top of its file, one in a closure,
a default argument, an attribute, or a name that it has imported. Stand-ins are put in the place of all these, in two
regions and nowhere else:

- in the modules np.random, random, secrets, math, jax.random and others, where everybody finds them by name;
- in what is reachable from the function without passing through a library: the modules that its authors wrote, and
  the closures, defaults, lists, dicts, classes and attributes there. What a library holds keeps its own (tempfile
  draws the names of files, for instance: they have to be strings).

What a place held is written down before it is changed, so that an error or Ctrl-C between two changes leaves nothing
behind.

A library is an installed package, the standard library or this package. One that is imported while the stand-ins are in
their places keeps its own random numbers too.
"""

import builtins
import contextlib
import gc
import math
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import chain
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from speculative.law.samplers.stand_ins import StandIns, jax_random

HERE = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep  # this package
PARTS = ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen", ".pyx", HERE)  # in the paths of libraries' files


def is_file_of_library(path: str) -> bool:
    return any(part in path for part in PARTS)


def is_library(names: dict) -> bool:
    """Whether a module with these names is one of a library."""
    file = str(names.get("__file__", ""))
    is_builtin = not file and getattr(names.get("__spec__"), "origin", None) in ("built-in", "frozen")
    return is_builtin or is_file_of_library(file)


class Imports:
    """A finder of modules, which is asked before all others. A library that is imported meanwhile gets and keeps what
    the modules held, not the stand-ins: it draws its names and keys with them."""

    def __init__(self, modules: list[ModuleType]):
        self.held = [(vars(module), {**vars(module)}) for module in modules]

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and is_file_of_library(str(spec.origin)):
            self.watch(spec.loader)
        return spec

    def watch(self, loader: Any) -> None:
        """Let the loader run its module's code with the real things.

        Its method exec_module runs the code, the only moment at which the module takes what the others hold. So an
        attribute of the same name hides the method until then, and is deleted: the module keeps its loader.
        """
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


# ---- Places ----------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A key of a dict or list, or an attribute of an object."""

    holder: object
    name: Any
    thing: object  # what it holds

    def put(self, thing: object) -> None:
        if isinstance(self.holder, dict | list):
            self.holder[self.name] = thing
        else:
            setattr(self.holder, self.name, thing)


@contextlib.contextmanager
def replaced(function: Callable, stand_ins: StandIns) -> Iterator[None]:
    """Put the stand-ins in their places, in these modules and in what the function reaches."""
    modules = [np.random, random, secrets, math, os, time, uuid, jax_random()]
    imports = Imports(modules)
    with contextlib.ExitStack() as stack:
        for holder in chain(map(vars, modules), reached_from(function)):
            if is_namespace(holder) and "float" not in holder:
                # Its float is Python's own, which stays. The module gets a name of its own for it, whose place has a
                # stand-in as others have: float(u) in somebody's file is u.
                stack.callback(holder.pop, "float", None)
                holder["float"] = float
            for place in places_in(holder):
                stand_in = stand_ins.of(place.thing)
                if stand_in is not None:
                    stack.callback(place.put, place.thing)
                    place.put(stand_in)
        stack.callback(sys.meta_path.remove, imports)
        sys.meta_path.insert(0, imports)
        yield


def is_namespace(holder: object) -> bool:
    """Whether this is the dict of a module's names, among which Python puts its own."""
    return isinstance(holder, dict) and "__builtins__" in holder


def places_in(holder: object) -> Iterator[Place]:
    """The places in a dict, a list, a class, a function, or the cell of a variable in its closure."""
    if isinstance(holder, dict):
        for key, thing in [*holder.items()]:
            yield Place(holder, key, thing)
    elif isinstance(holder, list):
        for i, thing in enumerate(holder):
            yield Place(holder, i, thing)
    elif isinstance(holder, CellType):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield Place(holder, "cell_contents", holder.cell_contents)
    elif isinstance(holder, FunctionType):
        yield Place(holder, "__defaults__", holder.__defaults__)
    elif isinstance(holder, type):
        for name, thing in [*vars(holder).items()]:
            yield Place(holder, name, thing)


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


def is_of_library(thing: object) -> bool:
    """Whether a module, class or function is of a library; or a tensor, which holds nothing."""
    if type(thing).__module__ in ("torch", "numpy"):
        return True
    if isinstance(thing, type):
        thing = sys.modules.get(thing.__module__)
    if isinstance(thing, ModuleType):
        return is_library(vars(thing))
    return isinstance(thing, FunctionType) and is_library(thing.__globals__)
