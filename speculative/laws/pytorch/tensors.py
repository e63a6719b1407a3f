"""PyTorch's tensors of random numbers that are not known yet.

An unknown number is a NaN in an ordinary tensor. A NaN has room for a code beside "not a number": here the index of the
UnknownNumber in a list. So PyTorch itself moves unknown numbers about: an index, a view, a copy, torch.where, or a
write into a part of another tensor need nothing from us. Of the rest, PyTorch's own tags tell the kind (operations.py):

- what draws (nondeterministic_seeded): the numbers are unknown ones;
- what computes with each number by itself (pointwise): PyTorch computes with what is known, where the unknown numbers
  are NaN; then each unknown one takes the same step (uniform.py), and a comparison is a fork;
- argmax, topk, sort, searchsorted: forks too (races.py);
- anything else that reads unknown numbers, as sum or softmax, cannot be followed.

PyTorch shows each of its operations to a TorchDispatchMode while that is active, whoever called it: nothing has to be
replaced but what gives numbers to Python (item, tolist, numpy) and takes them from there (torch.tensor): torches.py. A
generator is left as it is. Its state tells which numbers come next, so that two generators of one seed have the same.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from speculative.laws.pytorch.operations import N_VALUES, Call, draw, kind_of, tensors_in
from speculative.laws.uniform import NotFollowed
from speculative.laws.unknown import Numbers, UnknownNumber, computed
from speculative.laws.walks import WALK


class Nans(NamedTuple):
    """The NaNs of a type."""

    of_bits: torch.dtype  # the type of their bits
    first: int  # the bits of the NaN with code 0
    n_codes: int  # that there is room for


NANS = {
    torch.float64: Nans(torch.int64, 0x7FF8000000000000, 2**22),
    torch.float32: Nans(torch.int32, 0x7FC00000, 2**22),
    torch.float16: Nans(torch.int16, 0x7E00, 2**9),
    torch.bfloat16: Nans(torch.int16, 0x7FC0, 2**6),
}


class UnknownTensors(TorchDispatchMode):
    """Follow all of PyTorch's operations within, except our own: PyTorch takes a mode off while it asks it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's question whether to load its compiler, to say that it shall not compile this class."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        call = Call(operation, args, kwargs or {})
        kind = kind_of(operation)
        if kind is draw or (self.numbers and any(map(may_be_unknown, tensors_in([args, kwargs])))):
            return kind(self, call)
        return call.run()

    @property
    def numbers(self) -> dict[torch.dtype, list]:
        """The unknown numbers of this path, by their types: number i of a type has the code i + 1."""
        return WALK.of_path.setdefault(self, defaultdict(list))

    # ---- Codes -------------------------------------------------------------------------------------------------------

    def codes_of(self, tensor) -> np.ndarray:
        """The codes of its numbers, in its shape: 0 of those that are known."""
        if not may_be_unknown(tensor):
            return np.zeros(tuple(tensor.shape), int)
        nans = NANS[tensor.dtype]
        bits = tensor.detach().contiguous().view(nans.of_bits)
        codes = bits.long().numpy() - nans.first  # no code if it is a number, or another NaN
        is_code = (codes > 0) & (codes <= len(self.numbers[tensor.dtype]))
        return np.where(is_code, codes, 0)

    def objects_of(self, tensor) -> Numbers:
        """A copy of its numbers, the unknown ones as UnknownNumbers."""
        objects = tensor.detach().double().numpy().astype(object)
        codes = self.codes_of(tensor)
        is_unknown = codes > 0
        numbers = self.numbers[tensor.dtype]
        objects[is_unknown] = [numbers[code - 1] for code in codes[is_unknown]]
        return objects.view(Numbers)

    def write(self, tensor, changed: dict):
        """Write numbers, known and unknown ones, into a tensor: {index: number}."""
        new = tensor.detach().clone(memory_format=torch.contiguous_format)
        nans = NANS.get(tensor.dtype, Nans(tensor.dtype, 0, 0))
        bits = new.view(nans.of_bits)  # the same memory
        numbers = self.numbers[tensor.dtype]
        for index, number in changed.items():
            if isinstance(number, UnknownNumber) and tensor.dtype in N_VALUES:
                number = computed(rounding(tensor.dtype), [number])
            if not isinstance(number, UnknownNumber):
                new[index] = np.asarray(number).item()
                continue
            numbers.append(number)
            if len(numbers) >= nans.n_codes:
                raise NotFollowed(f"{len(numbers)} random numbers in {tensor.dtype} cannot be followed")
            bits[index] = nans.first + len(numbers)
        with torch.no_grad():
            tensor.copy_(new)
        return tensor

    def tensor_of(self, given, dtype=None, *_, **__):
        """A tensor of numbers, unknown ones among them: torch.tensor for such, on the CPU."""
        if dtype is None and isinstance(given, np.ndarray):
            dtype = torch.float64
        numbers = np.asarray(given, object)
        with _disable_current_modes():
            if not any(isinstance(number, UnknownNumber) for number in numbers.flat):
                return torch.tensor(numbers.tolist(), dtype=dtype)
            blank = torch.zeros(numbers.shape, dtype=dtype)
            return self.write(blank, dict(np.ndenumerate(numbers)))


def may_be_unknown(tensor) -> bool:
    """Whether there is a NaN in it."""
    return tensor.dtype in NANS and bool(tensor.isnan().any())


@cache
def rounding(dtype: torch.dtype) -> Callable:
    """The rounding to a half type, as a step of an unknown number."""

    def rounded(x):
        return torch.as_tensor(x, dtype=torch.float64).to(dtype).double().numpy()[()]

    return rounded
