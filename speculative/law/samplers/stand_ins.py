"""Stand-ins, which are put in the place of somebody's random numbers.

NumPy's and Python's generators are written in C and cannot be told to give unknown numbers. So each thing that gives
random numbers, a generator, its class or its method, has a stand-in. places.py says where it is put.
"""

import os
import pickle
import random
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch
from zlib import crc32

import numpy as np

from speculative.law.generators import OF_TYPES, UnknownGenerator, unfollowed
from speculative.law.unknown import MATH, Float

SYSTEM = random.SystemRandom  # a generator without a state


OF_THE_SYSTEM: dict[str, Callable] = {  # other in each call, from the likeliest random number to the least likely
    "os.urandom": os.urandom,
    "uuid.uuid4": uuid.uuid4,
    "uuid.uuid1": uuid.uuid1,
    "time.time_ns": time.time_ns,
    "time.time": time.time,
}


class Asked(NamedTuple):
    """A call of one of these."""

    name: str
    file: str
    line: int


class StandIns(ABC):
    """The stand-in of each thing."""

    def __init__(self, stand_ins: dict):
        """stand_ins: {a thing: its stand-in}."""
        self.held = {id(thing): (thing, stand_in) for thing, stand_in in stand_ins.items()}  # as some have no hash

    def add(self, thing, stand_in) -> None:
        self.held[id(thing)] = (thing, stand_in)

    def of(self, thing):
        """The stand-in, None if the thing may stay. A tuple cannot be changed: if a part has one, so has the tuple."""
        if type(thing) is not tuple:
            return self.held.get(id(thing), (None, None))[1]
        stand_ins = [self.of(part) for part in thing]
        if all(stand_in is None for stand_in in stand_ins):
            return None
        parts = zip(thing, stand_ins, strict=True)
        return tuple(part if stand_in is None else stand_in for part, stand_in in parts)

    @abstractmethod
    def in_torch(self) -> AbstractContextManager:
        """Within, PyTorch has its stand-ins. It needs a way of its own: its tensors compute with the numbers."""


class UnknownStandIns(StandIns):
    """Unknown numbers."""

    def __init__(self) -> None:
        super().__init__(OF_TYPES | MATH | {np.random.default_rng: UnknownGenerator, float: Float})
        self.asked: dict[Asked, None] = {}  # in the order of the first calls
        for name, function in OF_THE_SYSTEM.items():
            self.add(function, self.noted(name, function))
        for name, thing in vars(jax_random()).items():
            if callable(thing):
                self.add(thing, unfollowed(f"jax.random.{name}"))
        hidden = self.of(np.random.mtrand._rand)  # type: ignore[attr-defined]
        for name in ("seed", "sample", "ranf"):  # functions of np.random that draw from its hidden generator
            self.add(getattr(np.random, name), getattr(hidden, name))

    def of(self, thing):
        """The stand-in of a generator, too, or of its method. All functions of np.random and random are methods."""
        if id(thing) in self.held:
            return self.held[id(thing)][1]
        if type(thing) in OF_TYPES:
            self.add(thing, OF_TYPES[type(thing)](state_of(thing)))
        elif isinstance(thing, BuiltinMethodType | MethodType) and type(thing.__self__) in OF_TYPES:
            generator = self.of(thing.__self__)
            self.add(thing, getattr(generator, thing.__name__))
        return super().of(thing)

    def noted(self, name: str, function: Callable) -> Callable:
        """The function, whose calls are noted: what it returns cannot be followed, and may be a name or a time."""

        def ask(*args, **named):
            frame = sys._getframe(1)
            self.asked[Asked(name, frame.f_code.co_filename, frame.f_lineno)] = None
            return function(*args, **named)

        return ask

    def in_torch(self) -> AbstractContextManager:
        from speculative.law.pytorch import unknown_tensors

        return unknown_tensors()


def jax_random() -> ModuleType:
    """JAX's module, if somebody has imported it, else an empty one. Its numbers cannot be followed: they are drawn."""
    return sys.modules.get("jax.random", ModuleType("jax.random"))


def state_of(generator: object) -> int | None:
    """Return a hash of a generator's state: generators of one state give the same numbers. (The class, which comes
    first, may have its stand-in already.)"""
    if type(generator) is SYSTEM:
        return None
    return hash(pickle.dumps(generator.__reduce_ex__(4)[1:]))


# ---- Real random numbers, with another salt in each text -------------------------------------------------------------
#
# The law of texts that are drawn needs other numbers in each text. But somebody's code may begin each text with the
# same seed, as default_rng(0) does. So every seed is mixed with a salt, the number of the text, before it is used.
# Within one text two generators of the same seed still give the same numbers: if that is a mistake, it shows.


class SaltedStandIns(StandIns):
    """In the place of what takes a seed: the same, with the salted seed."""

    def __init__(self) -> None:
        super().__init__({})
        self.salt = 0
        of_jax = vars(jax_random())
        for function in (np.random.default_rng, random.seed, np.random.seed, of_jax.get("key"), of_jax.get("PRNGKey")):
            if function:
                self.add(function, self.salted(function))
        for kind in OF_TYPES.keys() - {np.random.Generator}:
            self.add(kind, self.salted_class(kind))

    def begin_text(self) -> np.random.Generator:
        """Take the next salt, with which the generators of NumPy, Python and PyTorch begin again. Return the text's."""
        self.salt += 1
        np.random.seed(0)  # these are stand-ins, too
        random.seed(0)
        if torch := sys.modules.get("torch"):
            torch.manual_seed(0)
        return np.random.Generator(np.random.PCG64(self.seed("rng")))

    def seed(self, seed: object):
        """The salted seed. A generator or the like stays."""
        if seed is None or isinstance(seed, int | str | np.integer | list | tuple):
            return crc32(f"{seed!r} {self.salt}".encode())
        return seed

    def salted(self, function: Callable) -> Callable:
        """The function, with a salted seed."""
        return lambda seed=None, *more, **named: function(self.seed(seed), *more, **named)

    def salted_class(self, kind: Any) -> type:
        """The class, whose objects begin with a salted seed. NumPy asks whether something is of its classes."""
        salted_seed = self.seed

        class WithSalt(kind):
            def __init__(self, seed=None, *more, **named):
                super().__init__(salted_seed(seed), *more, **named)

        return WithSalt

    def in_torch(self) -> AbstractContextManager:
        import torch

        salted_seed = self.seed

        class Generator(torch.Generator):
            def manual_seed(self, seed):
                return super().manual_seed(salted_seed(seed))

        return patch.multiple(torch, Generator=Generator, manual_seed=self.salted(torch.manual_seed))
