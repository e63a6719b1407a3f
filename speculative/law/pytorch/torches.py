"""PyTorch while somebody's function is followed: the mode, the exits and the entries.

The mode (tensors.py) sees what becomes of tensors. It does not see what gives their numbers to Python (item, tolist,
numpy), nor what takes numbers from there (torch.tensor): these functions are replaced.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from speculative.law.pytorch.codes import coded_numbers, codes_of, objects_of
from speculative.law.pytorch.tensors import UnknownMode, tensor_of
from speculative.law.unknown import Numbers, UnknownNumber

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


@contextlib.contextmanager
def unknown_tensors() -> Iterator[None]:
    """Within, PyTorch's random numbers are unknown. What it would compile is run as it is written."""
    mode = UnknownMode()
    exits: Any = {name: exit_of(mode, name) for name in EXITS}
    entries: Any = {name: entry_of(name) for name in ENTRIES}
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # PyTorch's compiler
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(patch.multiple(torch.Tensor, **exits))
        stack.enter_context(patch.multiple(torch, **entries))
        stack.enter_context(mode)
        yield


def exit_of(mode: UnknownMode, name: str) -> Callable:
    """The method of a tensor, whose unknown numbers it gives as UnknownNumbers."""
    method = getattr(torch.Tensor, name)

    def leave(tensor, *args, **named):
        is_ours = _get_current_dispatch_mode() is not mode  # a call of this package's, which wants the NaNs
        if is_ours or not coded_numbers():
            return method(tensor, *args, **named)
        with _disable_current_modes():
            if not codes_of(tensor).any():
                return method(tensor, *args, **named)
            objects = objects_of(tensor)
        return EXITS[name](objects)

    return leave


def entry_of(name: str) -> Callable:
    """The function of torch, which takes UnknownNumbers too."""
    function = getattr(torch, name)

    def enter(given, *args, **named):
        make = tensor_of if has_unknown(given) else function
        return make(given, *args, **named)

    return enter


def has_unknown(given) -> bool:
    """Whether there are UnknownNumbers in a number, an array or nested lists."""
    if isinstance(given, list | tuple):
        return any(has_unknown(part) for part in given)
    if isinstance(given, np.ndarray):
        return given.dtype == object
    return isinstance(given, UnknownNumber)
