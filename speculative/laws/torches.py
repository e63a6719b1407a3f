"""PyTorch while somebody's function is followed: what gives its numbers to Python, or takes them from there."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from speculative.laws.replaced import Salted
from speculative.laws.tensors import UnknownTensors
from speculative.laws.unknown import UnknownNumber

EXITS = ("item", "tolist", "numpy", "__array__", "__int__", "__bool__")  # methods of a tensor
ENTRIES = ("tensor", "as_tensor", "from_numpy")  # functions of torch


def out_of(mode: UnknownTensors, name: str) -> Callable:
    """The method of a tensor, whose unknown numbers it gives as UnknownNumbers."""
    method = getattr(torch.Tensor, name)

    def leave(tensor, *args, **named):
        if mode.is_off or not mode.has_unknown(tensor):
            return method(tensor, *args, **named)
        with mode.off():
            objects = mode.objects_of(tensor) if mode.codes_of(tensor).any() else None
        if objects is None:
            return method(tensor, *args, **named)
        return objects if name in ("numpy", "__array__") else getattr(objects, name)()

    return leave


def into(mode: UnknownTensors, name: str) -> Callable:
    """The function of torch, which takes UnknownNumbers too."""
    function = getattr(torch, name)

    def enter(given, *args, **named):
        if isinstance(given, torch.Tensor | float | int | str) or not has_unknown(given):
            return function(given, *args, **named)
        dtype = args[0] if args else named.get("dtype")
        return mode.tensor_of(given, dtype)

    return enter


def has_unknown(given: Any) -> bool:
    """Whether there are UnknownNumbers in a number, an array or nested lists."""
    if isinstance(given, list | tuple):
        return any(has_unknown(part) for part in given)
    if isinstance(given, np.ndarray):
        return given.dtype == object
    return isinstance(given, UnknownNumber)


@contextlib.contextmanager
def put(holder: Any, names: dict[str, Any]) -> Iterator[None]:
    """Within, these attributes have these values."""
    with contextlib.ExitStack() as stack:
        for name, value in names.items():
            if name in vars(holder):
                stack.callback(setattr, holder, name, vars(holder)[name])
            else:  # it is inherited
                stack.callback(delattr, holder, name)
            setattr(holder, name, value)
        yield


@contextlib.contextmanager
def followed() -> Iterator[None]:
    """Within, PyTorch's random numbers are unknown. What it would compile is run as it is written."""
    mode = UnknownTensors()
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # PyTorch's compiler
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(put(torch.Tensor, {name: out_of(mode, name) for name in EXITS}))
        stack.enter_context(put(torch, {name: into(mode, name) for name in ENTRIES}))
        stack.enter_context(put(UnknownNumber, {"tensor_of": staticmethod(mode.tensor_of)}))
        stack.enter_context(mode)
        yield


@contextlib.contextmanager
def salted(stand_ins: Salted) -> Iterator[None]:
    """Within, a seed of PyTorch gives other numbers in each text."""

    class Generator(torch.Generator):
        def manual_seed(self, seed):
            return super().manual_seed(stand_ins.seed(seed))

    def manual_seed(seed, function=torch.manual_seed):
        return function(stand_ins.seed(seed))

    with put(torch, {"Generator": Generator, "manual_seed": manual_seed}):
        yield
