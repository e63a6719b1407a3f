"""What is put in the place of somebody's random numbers.

NumPy's and Python's generators are written in C and cannot be told to give unknown numbers. So each thing that gives
random numbers, a generator, its class or its method, has a stand-in. places.py says where it is put.
"""

import pickle
import random
import sys
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any

import numpy as np

from speculative.law.generators import OF_TYPES, UnknownGenerator, unfollowed
from speculative.law.of_python import MATH, Float

SYSTEM = random.SystemRandom  # which has no state


class StandIns(ABC):
    """What is put in the place of each thing."""

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
        for name, thing in vars(jax_random()).items():
            if callable(thing):
                self.add(thing, unfollowed(f"jax.random.{name}"))
        hidden = self.of(np.random.mtrand._rand)  # type: ignore[attr-defined]
        for name in ("seed", "sample", "ranf"):  # of np.random, no methods of its hidden generator, but draw from it
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

    def in_torch(self) -> AbstractContextManager:
        from speculative.law.pytorch.torches import unknown_tensors

        return unknown_tensors()


def jax_random() -> ModuleType:
    """JAX's module, if somebody has imported it, else an empty one. Its numbers cannot be followed: they are drawn."""
    return sys.modules.get("jax.random", ModuleType("jax.random"))


def state_of(generator: Any) -> int | None:
    """Those of one state give the same numbers. (The class, which comes first, may have its stand-in already.)"""
    if type(generator) is SYSTEM:
        return None
    return hash(pickle.dumps(generator.__reduce_ex__(4)[1:]))
