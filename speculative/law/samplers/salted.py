"""Real random numbers, with another salt in each text.

The law of texts that are drawn needs other numbers in each text. But somebody's code may begin each text with the same
seed, as default_rng(0) does. So every seed is mixed with a salt, the number of the text, before it is used. Within one
text two generators of the same seed still give the same numbers: if that is a mistake, it shows.
"""

import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np

from speculative.law.generators import OF_TYPES
from speculative.law.samplers.stand_ins import StandIns, jax_random


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

    def seed(self, seed: Any):
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
