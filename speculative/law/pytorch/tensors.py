"""Each of PyTorch's operations that meets unknown numbers goes to its kind.

PyTorch shows its operations to a TorchDispatchMode while that is active, whoever called them. Its own tags tell most of
the kinds:

    draw                      what draws (nondeterministic_seeded): the numbers are unknown ones
    move, put                 views, and what puts numbers elsewhere: PyTorch does it
    compute, convert          what computes with each number by itself (pointwise): each unknown one takes the same
                              step (uniform.py), and a comparison is a fork
    find_largest, find_order  argmax and max, topk and sort: forks too (races.py)
    search                    searchsorted: a fork
    refuse                    anything else, as sum or softmax: of unknown numbers it cannot be followed
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from speculative.law.pytorch.codes import coded_numbers, may_be_unknown, write
from speculative.law.pytorch.draws import draw
from speculative.law.pytorch.operations import (
    ATEN,
    Call,
    compute,
    convert,
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
from speculative.law.unknown import UnknownNumber

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
    if operation is ATEN.view.dtype or "reduce" in operation._overloadname:  # the bits of another type, or sums
        return refuse
    if name in MOVES.split() or operation.is_view:
        return move
    if torch.Tag.pointwise in out_of_place(operation).tags:
        return compute
    return OTHERS.get(name, refuse)


class UnknownMode(TorchDispatchMode):
    """Within, each operation goes to its kind. While an operation is here, the mode is off: so what the kinds ask of
    PyTorch is done by PyTorch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's question whether to load its compiler, to say that it shall not compile this class."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        call = Call(operation, args, kwargs or {})
        kind = kind_of(operation)
        if kind is draw or (coded_numbers() and any(map(may_be_unknown, tensors_in([args, kwargs])))):
            return kind(call)
        return call.run()


def tensor_of(given, dtype=None, *_, **__):
    """A tensor of numbers, unknown ones among them: torch.tensor for such, on the CPU."""
    if dtype is None and isinstance(given, np.ndarray):
        dtype = torch.float64
    numbers = np.asarray(given, object)
    with _disable_current_modes():
        if not any(isinstance(number, UnknownNumber) for number in numbers.flat):
            return torch.tensor(numbers.tolist(), dtype=dtype)
        blank = torch.zeros(numbers.shape, dtype=dtype)
        return write(blank, dict(np.ndenumerate(numbers)))
