"""PyTorch while somebody's function is followed: what gives its numbers to Python, or takes them from there."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from speculative.laws.pytorch.tensors import UnknownTensors
from speculative.laws.samplers.stand_ins import SaltedStandIns
from speculative.laws.unknown import Numbers, UnknownNumber

# Methods of a tensor, as functions of its Numbers.
EXITS: dict[str, Callable] = {
    "item": Numbers.item,
    "tolist": Numbers.tolist,
    "numpy": Numbers.view,
    "__array__": Numbers.view,
    "__int__": lambda numbers: int(numbers.item()),
    "__bool__": lambda numbers: bool(numbers.item()),
}
ENTRIES = ("tensor", "as_tensor", "from_numpy")  # functions of torch


def out_of(mode: UnknownTensors, name: str) -> Callable:
    """The method of a tensor, whose unknown numbers it gives as UnknownNumbers."""
    method = getattr(torch.Tensor, name)

    def leave(tensor, *args, **named):
        if not mode.numbers or _get_current_dispatch_mode() is not mode:  # or if we ask
            return method(tensor, *args, **named)
        with _disable_current_modes():
            if not mode.codes_of(tensor).any():
                return method(tensor, *args, **named)
            objects = mode.objects_of(tensor)
        return EXITS[name](objects)

    return leave


def into(mode: UnknownTensors, name: str) -> Callable:
    """The function of torch, which takes UnknownNumbers too."""
    function = getattr(torch, name)

    def enter(given, *args, **named):
        make = mode.tensor_of if has_unknown(given) else function
        return make(given, *args, **named)

    return enter


def has_unknown(given) -> bool:
    """Whether there are UnknownNumbers in a number, an array or nested lists."""
    if isinstance(given, list | tuple):
        return any(has_unknown(part) for part in given)
    if isinstance(given, np.ndarray):
        return given.dtype == object
    return isinstance(given, UnknownNumber)


@contextlib.contextmanager
def unknown_tensors() -> Iterator[None]:
    """Within, PyTorch's random numbers are unknown. What it would compile is run as it is written."""
    mode = UnknownTensors()
    exits: Any = {name: out_of(mode, name) for name in EXITS}
    entries: Any = {name: into(mode, name) for name in ENTRIES}
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # PyTorch's compiler
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(patch.multiple(torch.Tensor, **exits))
        stack.enter_context(patch.multiple(torch, **entries))
        stack.enter_context(mode)
        yield


def salted(stand_ins: SaltedStandIns) -> contextlib.AbstractContextManager:
    """Within, a seed of PyTorch gives other numbers in each text."""

    class Generator(torch.Generator):
        def manual_seed(self, seed):
            return super().manual_seed(stand_ins.seed(seed))

    return patch.multiple(torch, Generator=Generator, manual_seed=stand_ins.salted(torch.manual_seed))
