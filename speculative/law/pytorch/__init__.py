"""PyTorch's random numbers that are not known yet.

    u = torch.rand(1)       # a NaN with the code 1, which stands for a random number in a list
    v = u[0] / 2            # the index is PyTorch's own; the half is computed here: a NaN with the code 2
    v < 0.3                 # a fork: a tensor of True or of False
    v.item() < 0.3          # the same of a number in Python, an UnknownNumber
    torch.stack([v]).sum()  # NotFollowed

Each of PyTorch's operations that meets unknown numbers goes to its kind, a function of operations.py.

PyTorch shows its operations to a dispatch mode while that is active, whoever called them. Its own tags tell most of
the kinds:

    draw                      what draws (nondeterministic_seeded): the numbers are unknown ones
    move, put                 views, and what puts numbers elsewhere: PyTorch does it
    compute, convert          what computes with each number by itself (pointwise): each unknown one takes the same
                              step (forks.py), and a comparison is a fork
    find_largest, find_order  argmax and max, topk and sort: forks too (races.py)
    search                    searchsorted: a fork
    refuse                    anything else, as sum or softmax: of unknown numbers it cannot be followed
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from speculative.law.pytorch.codes import (
    DispatchMode,
    coded_numbers,
    codes_of,
    current_mode,
    may_be_unknown,
    objects_of,
    overload_of,
    resolve,
    without_modes,
    write,
)
from speculative.law.pytorch.operations import (
    ATEN,
    Call,
    ask_for_ints,
    check_known,
    compute,
    convert,
    draw,
    find_largest,
    find_order,
    move,
    name_of,
    out_of_place,
    put,
    refuse,
    search,
    tensors_in,
)
from speculative.law.unknown import Numbers, UnknownNumber

# Operations that move numbers, or read none of their tensor, beside all that are views. (See name_of.)
MOVES = """
    clone cat stack index index_select gather take masked_select where masked_fill masked_scatter scatter copy flip
    roll repeat select_scatter slice_scatter index_copy index_fill constant_pad_nd lift_fresh _unsafe_view
    contiguous _reshape_alias _reshape_copy resize empty_like zeros_like ones_like full_like new_empty new_zeros
    new_ones new_full fill zero
"""
OTHERS: dict[str, Callable] = {"_to_copy": convert, "index_put": put}
OTHERS |= dict.fromkeys(("argmax", "argmin", "max", "min"), find_largest)
OTHERS |= dict.fromkeys(("topk", "sort"), find_order)
OTHERS |= dict.fromkeys(("searchsorted", "bucketize"), search)


@cache
def kind_of(operation) -> Callable:
    name = name_of(operation)
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return draw
    if operation is ATEN.view.dtype or "reduce" in overload_of(operation):  # the bits of another type, or sums
        return refuse
    if name in MOVES.split() or operation.is_view:
        return move
    if torch.Tag.pointwise in out_of_place(operation).tags:
        return compute
    return OTHERS.get(name, refuse)


class UnknownMode(DispatchMode):
    """Within, each operation goes to its kind. While an operation is here, the mode is off: so what the kinds ask of
    PyTorch is done by PyTorch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's question whether to load its compiler, to say that it shall not compile this class."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        call = Call(operation, args, kwargs or {})
        kind = kind_of(operation)
        if not coded_numbers():
            return draw(call) if kind is draw else call.run()
        tensors = tensors_in([args, kwargs])
        ask_for_ints(call, kind, tensors)
        if kind is draw or any(map(may_be_unknown, tensors)):
            return kind(call)
        return call.run()


def tensor_of(given, dtype=None, *_, **__):
    """A tensor of numbers, unknown ones among them: torch.tensor for such, on the CPU."""
    if dtype is None and isinstance(given, np.ndarray):
        dtype = torch.float64
    numbers = np.asarray(given, object)
    with without_modes():
        if not any(isinstance(number, UnknownNumber) for number in numbers.flat):
            return torch.tensor(numbers.tolist(), dtype=dtype)
        blank = torch.zeros(numbers.shape, dtype=dtype)
        return write(blank, dict(np.ndenumerate(numbers)))


# ---- While somebody's function is followed ---------------------------------------------------------------------------
#
# The mode sees what becomes of tensors. It does not see what gives their numbers to Python (the exits: item, tolist,
# numpy) or shows where they are (data_ptr), nor what takes numbers from there (the entries: torch.tensor): these
# functions are replaced.


# Methods of a tensor, as functions of its Numbers.
EXITS: dict[str, Callable] = {
    "item": Numbers.item,
    "tolist": Numbers.tolist,
    "numpy": Numbers.view,
    "__array__": Numbers.view,
    "__int__": lambda numbers: int(numbers.item()),
    "__bool__": lambda numbers: bool(numbers.item()),
}
ADDRESSES = ("data_ptr", "__dlpack__")  # its methods by which others read its memory, as Triton's interpreter does
ENTRIES = ("tensor", "as_tensor", "from_numpy")  # functions of torch


@contextlib.contextmanager
def unknown_tensors() -> Iterator[None]:
    """Within, PyTorch's random numbers are unknown. What it would compile is run as it is written."""
    mode = UnknownMode()
    exits: dict[str, Any] = {name: exit_of(mode, name) for name in EXITS}
    exits |= {name: address_of(mode, name) for name in ADDRESSES}
    entries: dict[str, Any] = {name: entry_of(name) for name in ENTRIES}
    with contextlib.ExitStack() as stack:
        # PyTorch divides even a softmax of a few rows among threads, which takes longer than the softmax.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
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
        is_ours = current_mode() is not mode  # a call of this package's, which wants the NaNs
        if is_ours or not coded_numbers():
            return method(tensor, *args, **named)
        with without_modes():
            resolve(tensor, few=True)
            if not codes_of(tensor).any():
                return method(tensor, *args, **named)
            objects = objects_of(tensor)
        return EXITS[name](objects)

    return leave


def address_of(mode: UnknownMode, name: str) -> Callable:
    """The method of a tensor, which refuses to show where its unknown numbers are: they would be read as NaNs."""
    method = getattr(torch.Tensor, name)

    def show(tensor, *args, **named):
        if current_mode() is mode and coded_numbers():
            with without_modes():
                resolve(tensor)
                check_known(name, tensor)
        return method(tensor, *args, **named)

    return show


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
