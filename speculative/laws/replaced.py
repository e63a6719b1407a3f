"""Random numbers in the place of others, while somebody's function is followed; and everything given back after it.

A function gets its random numbers from somewhere: from np.random, a generator at the top of its file, one in a closure,
a default argument, an attribute, or a name that it has imported. All these hold NumPy's or Python's objects, which
are written in C and cannot be told to give unknown numbers. So other objects are put in their places, in two regions
and nowhere else:

- in the modules np.random, random, math and torch themselves, where everybody finds them by name;
- in what is reachable from the function without passing through a library: the modules that its authors wrote, and
  the closures, defaults, lists, dicts, classes and attributes there. What an installed package, the standard library
  or this package holds keeps its own (tempfile draws the names of files, for instance: they have to be strings).

A place is a dict and its key, or an object and its attribute. What it held is written down before it is changed, so
that an error or Ctrl-C between two changes leaves nothing behind.
"""

import contextlib
import gc
import math
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from operator import setitem
from types import BuiltinMethodType, CellType, FunctionType, MethodType, ModuleType
from typing import Any
from zlib import crc32

import numpy as np

from speculative.laws.traced import OF_TYPES, OfPython, OfRandomState, TracedRandom, unfollowed
from speculative.laws.unknown import MATH, Float

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen", HERE)  # parts of their files' paths, and of ours
GLOBAL = {np.random: np.random.mtrand._rand, random: random._inst}  # type: ignore[attr-defined]  # module: its generator


class StandIns:
    """What is put in the place of each thing."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Any, Any]] = {}  # {id: (a thing, its stand-in)}

    def add(self, thing: Any, stand_in: Any) -> None:
        self.held[id(thing)] = (thing, stand_in)

    def of(self, thing: Any) -> Any:
        """The stand-in, None if the thing may stay."""
        if id(thing) in self.held:
            return self.held[id(thing)][1]
        return None

    def add_module(self, module: ModuleType, rng: Any) -> None:
        """The functions of a module, which are methods of its generator."""
        for name, thing in vars(module).items():
            if getattr(thing, "__self__", None) is GLOBAL[module]:
                self.add(thing, getattr(rng, name))


class Followed(StandIns):
    """Unknown numbers."""

    def __init__(self) -> None:
        super().__init__()
        for thing, stand_in in OF_TYPES.items():
            self.add(thing, stand_in)
        for name, function in MATH.items():
            self.add(getattr(math, name), function)
        self.add(np.random.default_rng, TracedRandom)
        for module, kind in ((np.random, OfRandomState), (random, OfPython)):
            self.add(GLOBAL[module], kind(state_of(GLOBAL[module])))
            self.add_module(module, self.of(GLOBAL[module]))
        self.add(np.random.seed, self.of(GLOBAL[np.random]).seed)
        self.add(np.random.get_state, unfollowed("get_state"))
        for name, thing in vars(jax_random()).items():
            if callable(thing):
                self.add(thing, unfollowed(f"jax.random.{name}"))

    def of(self, thing: Any) -> Any:
        if id(thing) not in self.held:
            owner = thing.__self__ if isinstance(thing, BuiltinMethodType | MethodType) else None
            if type(thing) in OF_TYPES:
                self.add(thing, OF_TYPES[type(thing)](state_of(thing)))
            elif type(owner) in OF_TYPES:  # a method of a generator
                self.add(thing, getattr(self.of(owner), thing.__name__))
        return super().of(thing)


class Salted(StandIns):
    """Real numbers, with other seeds in each text: those of one seed are still the same ones in one text."""

    def __init__(self, salt: Callable) -> None:
        """salt() -> a number, another one in each text."""
        super().__init__()
        self.salt = salt
        for kind in (*OF_TYPES,):
            if kind is not np.random.Generator:
                self.add(kind, self.salted_class(kind))
        for function in (np.random.default_rng, random.seed, np.random.seed):
            self.add(function, self.salted(function))

    def salted(self, function: Callable) -> Callable:
        """The function, with another seed."""
        return lambda seed=None, *more, **named: function(self.seed(seed), *more, **named)

    def salted_class(self, kind: Any) -> type:
        """The class, whose objects begin with another seed. NumPy asks whether something is of its classes."""
        other = self.seed

        class WithSalt(kind):
            def __init__(self, seed=None, *more, **named):
                super().__init__(other(seed), *more, **named)

        return WithSalt

    def seed(self, seed: Any) -> Any:
        """Return another seed, the same one in the same text. A generator or the like stays."""
        if seed is None or isinstance(seed, int | str | np.integer | list | tuple):
            return crc32(f"{seed!r} {self.salt()}".encode())
        return seed


def jax_random() -> ModuleType:
    """JAX's module, if somebody has imported it, else an empty one. Its numbers are refused, and so they are drawn."""
    return sys.modules.get("jax.random", ModuleType("jax.random"))


def state_of(generator: Any) -> int:
    """Those of one state give the same numbers."""
    return hash(pickle.dumps(generator))


@contextlib.contextmanager
def replaced(function: Callable, stand_ins: StandIns) -> Iterator[None]:
    """Put the stand-ins in their places, in np.random, random and math and in what the function reaches."""
    with contextlib.ExitStack() as stack:

        def change(setter: Callable, holder: Any, name: Any, old: Any, new: Any) -> None:
            stack.callback(setter, holder, name, old)
            setter(holder, name, new)

        for module in (np.random, random, math, jax_random()):
            change_values(vars(module), stand_ins, change)
        for holder in somebodys(function):
            if isinstance(holder, dict):
                change_values(holder, stand_ins, change)
                if "__builtins__" in holder and isinstance(stand_ins, Followed):
                    change(setitem, holder, "float", holder.get("float", float), Float)
            elif isinstance(holder, list):
                change_values(holder, stand_ins, change)
            elif isinstance(holder, CellType):
                change_cell(holder, stand_ins, change)
            elif isinstance(holder, FunctionType):
                change_defaults(holder, stand_ins, change)
            elif isinstance(holder, type):
                change_attributes(holder, stand_ins, change)
        yield


def change_values(holder: dict | list, stand_ins: StandIns, change: Callable) -> None:
    items = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for key, thing in [*items]:
        if (new := stand_ins.of(thing)) is not None:
            change(setitem, holder, key, thing, new)


def change_attributes(holder: type, stand_ins: StandIns, change: Callable) -> None:
    for name, thing in [*vars(holder).items()]:
        if (new := stand_ins.of(thing)) is not None:
            change(setattr, holder, name, thing, new)


def change_cell(cell: CellType, stand_ins: StandIns, change: Callable) -> None:
    try:
        thing = cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return
    if (new := stand_ins.of(thing)) is not None:
        change(setattr, cell, "cell_contents", thing, new)


def change_defaults(function: FunctionType, stand_ins: StandIns, change: Callable) -> None:
    values = function.__defaults__ or ()
    new = tuple(thing if (other := stand_ins.of(thing)) is None else other for thing in values)
    if any(a is not b for a, b in zip(values, new, strict=True)):
        change(setattr, function, "__defaults__", values, new)
    change_values(function.__kwdefaults__ or {}, stand_ins, change)


def somebodys(function: Callable) -> Iterator[Any]:
    """All that can be reached from a function without passing through a library."""
    seen: set[int] = set()
    left: list[Any] = [function]
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
    if isinstance(thing, ModuleType):
        return is_library(vars(thing))
    if isinstance(thing, FunctionType):
        return is_library(thing.__globals__)
    if isinstance(thing, type):
        module = sys.modules.get(thing.__module__)
        return (module is None and thing.__module__ == "builtins") or (module is not None and is_library(vars(module)))
    return False


def is_library(names: dict) -> bool:
    """Whether a module with these names is one of a library."""
    file = str(names.get("__file__", ""))
    is_builtin = not file and getattr(names.get("__spec__"), "origin", None) in ("built-in", "frozen")
    return is_builtin or any(part in file for part in LIBRARIES)
