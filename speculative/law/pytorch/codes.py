"""An unknown number in an ordinary tensor: a NaN with a code.

A NaN has room for a code beside "not a number": here the index of the UnknownNumber in a list, from 1. So PyTorch
itself moves unknown numbers about: an index, a view, a copy, torch.where, or a write into a part of another tensor need
nothing from us.

PyTorch's private names, which another version may not have, stand here and nowhere else.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _python_dispatch

from speculative.law.forks import WALK, NotFollowed
from speculative.law.unknown import Numbers, UnknownNumber, computed

PRIVATE = (
    "torch.utils._python_dispatch:TorchDispatchMode",
    "torch.utils._python_dispatch:_disable_current_modes",
    "torch.utils._python_dispatch:_get_current_dispatch_mode",
    "torch:Tensor._make_subclass",
    "torch:_C._disabled_torch_function_impl",
    "torch._ops:OpOverload",
    "torch:ops.aten.add.Tensor._schema",
    "torch:ops.aten.add.Tensor._overloadname",
)
DispatchMode: Any = _python_dispatch.TorchDispatchMode
without_modes = _python_dispatch._disable_current_modes
current_mode = _python_dispatch._get_current_dispatch_mode
Operation = torch._ops.OpOverload
make_subclass = torch.Tensor._make_subclass
WITHOUT_FUNCTION: Any = torch._C._disabled_torch_function_impl  # for a class from which PyTorch makes plain tensors


def schema_of(operation) -> Any:
    """The parameters of an operation, with their defaults."""
    return operation._schema


def overload_of(operation) -> str:
    """The name of one of an operation's overloads, such as "Tensor" of add.Tensor."""
    return operation._overloadname


class Nans(NamedTuple):
    """The NaNs of a type."""

    of_bits: torch.dtype  # the type of their bits
    first: int  # the bits of the NaN with code 0
    n_codes: int  # number of codes for which there is room


NANS = {
    torch.float64: Nans(torch.int64, 0x7FF8000000000000, 2**22),
    torch.float32: Nans(torch.int32, 0x7FC00000, 2**22),
    torch.float16: Nans(torch.int16, 0x7E00, 2**9),
    torch.bfloat16: Nans(torch.int16, 0x7FC0, 2**6),
    torch.int64: Nans(torch.int64, -0x5A5A_5A5A_5A5A_5A5A, 2**22),  # no NaNs, but numbers that nobody else has
}
N_VALUES = {torch.float16: 2**11, torch.bfloat16: 2**8}  # values of PyTorch's uniform numbers, if they are few


def coded_numbers() -> dict[torch.dtype, list]:
    """The unknown numbers in the tensors of this path, by their types: number i of a type has the code i + 1."""
    return WALK.of_path.setdefault("tensors", defaultdict(list))


def may_be_unknown(tensor) -> bool:
    """Whether there is a NaN in it, or a whole number that may be a code."""
    if tensor.dtype == torch.int64:
        return torch.int64 in coded_numbers() and tensor.numel() > 0 and bool(tensor.min() < -(2**62))
    return tensor.dtype in NANS and bool(tensor.isnan().any())


def codes_of(tensor) -> np.ndarray:
    """The codes of its numbers, in its shape: 0 of those that are known."""
    if not may_be_unknown(tensor):
        return np.zeros(tuple(tensor.shape), int)
    nans = NANS[tensor.dtype]
    bits = tensor.detach().contiguous().view(nans.of_bits)
    codes = bits.long().numpy() - nans.first  # no code if it is a number, or another NaN
    is_code = (codes > 0) & (codes <= len(coded_numbers()[tensor.dtype]))
    return np.where(is_code, codes, 0)


def objects_of(tensor) -> Numbers:
    """A copy of its numbers, the unknown ones as UnknownNumbers."""
    objects = tensor.detach().double().numpy().astype(object)
    codes = codes_of(tensor)
    is_unknown = codes > 0
    numbers = coded_numbers()[tensor.dtype]
    objects[is_unknown] = [numbers[code - 1] for code in codes[is_unknown]]
    return objects.view(Numbers)


def resolve(tensor, few: bool = False) -> None:
    """Fork: write whole numbers in the place of their codes, because somebody asks which they are; those of few values
    alone if asked so."""
    if tensor.dtype != torch.int64 or not may_be_unknown(tensor):
        return
    codes = codes_of(tensor)
    for index in zip(*np.nonzero(np.atleast_1d(codes)), strict=True):
        index = index if tensor.dim() else ()
        number = coded_numbers()[torch.int64][codes[index] - 1]
        if not few or number.has_few:
            tensor.detach().numpy()[index] = int(number)


def write(tensor, changed: dict):
    """Write numbers, known and unknown ones, into a tensor: {index: number}."""
    new = tensor.detach().clone(memory_format=torch.contiguous_format)
    nans = NANS.get(tensor.dtype, Nans(tensor.dtype, 0, 0))
    bits = new.view(nans.of_bits).numpy()  # the same memory; an array takes a number faster than a tensor does
    for index, number in changed.items():
        if isinstance(number, UnknownNumber) and tensor.dtype in N_VALUES:
            number = computed(rounding(tensor.dtype), [number])
        if isinstance(number, UnknownNumber) and tensor.dtype not in NANS:
            number = int(number)
        if isinstance(number, UnknownNumber):
            bits[index] = nans.first + new_code(number, tensor.dtype, nans.n_codes)
        else:
            new[index] = np.asarray(number).item()
    with torch.no_grad():
        tensor.copy_(new)
    return tensor


def new_code(number: UnknownNumber, dtype: torch.dtype, n_codes: int) -> int:
    """Note an unknown number in a tensor of this type. Raises NotFollowed if there is no room for its code."""
    numbers = coded_numbers()[dtype]
    numbers.append(number)
    if len(numbers) >= n_codes:
        raise NotFollowed(f"{len(numbers)} random numbers in {dtype} cannot be followed")
    return len(numbers)


@cache
def rounding(dtype: torch.dtype) -> Callable:
    """The rounding to a half type, as a step of an unknown number."""

    def rounded(x):
        return torch.as_tensor(x, dtype=torch.float64).to(dtype).double().numpy()[()]

    return rounded
