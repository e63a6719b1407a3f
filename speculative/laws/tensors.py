"""PyTorch's tensors of random numbers that are not known yet.

An unknown number is a NaN in an ordinary tensor. A NaN has room for a code beside "not a number": here the place of the
UnknownNumber in a list. So PyTorch itself moves unknown numbers about: an index, a view, a copy, torch.where, or a
write into a part of another tensor need nothing from us. Of the rest, PyTorch's own tags tell the kind (operations.py):

- what draws (nondeterministic_seeded): the numbers are unknown ones;
- what computes with each number by itself (pointwise): PyTorch computes with what is known, where the unknown numbers
  are NaN; then each unknown one takes the same step (unknown.py), and a comparison is a fork;
- argmax, topk, sort, searchsorted: forks too (races.py);
- anything else that reads unknown numbers, as sum or softmax, cannot be followed.

PyTorch shows each of its operations to a TorchDispatchMode while that is active, whoever called it: nothing has to be
replaced but what gives numbers to Python (item, tolist, numpy) and takes them from there (torch.tensor): torches.py. A
generator is left as it is. Its state tells which numbers come next, so that two generators of one seed have the same.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from speculative.laws.operations import N_VALUES, Call, draw, kind_of, tensors_in
from speculative.laws.traced import TracedRandom
from speculative.laws.unknown import Computed, Numbers, UnknownNumber
from speculative.support.errors import UserError

# The type of the bits of a number, the bits of the NaN with code 0, and the number of codes that there is room for.
NANS = {
    torch.float64: (torch.int64, 0x7FF8000000000000, 2**22),
    torch.float32: (torch.int32, 0x7FC00000, 2**22),
    torch.float16: (torch.int16, 0x7E00, 2**9),
    torch.bfloat16: (torch.int16, 0x7FC0, 2**6),
}


class UnknownTensors(TorchDispatchMode):
    """Follow all of PyTorch's operations within, except our own: PyTorch takes a mode off while it asks it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's question whether to load its compiler, to say that it shall not compile this class."""
        return False

    def __init__(self):
        super().__init__()
        self.path_number = 0  # of the path that the numbers belong to
        self.numbers: list[UnknownNumber] = []  # number i has the code i + 1
        self.storages: dict = {}  # {address: the memory that unknown numbers were written into}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if self.path_number != TracedRandom.walk.path_number:
            self.path_number = TracedRandom.walk.path_number
            self.numbers, self.storages = [], {}
        call = Call(operation, args, kwargs or {})
        kind = kind_of(operation)
        if kind is draw or (self.storages and any(map(self.has_unknown, tensors_in([args, kwargs])))):
            return kind(self, call)
        return call.run()

    def has_unknown(self, tensor) -> bool:
        """Whether unknown numbers were written into its memory. It may be a view of another part."""
        return tensor.untyped_storage().data_ptr() in self.storages

    def note(self, result):
        """Note that there may be unknown numbers in these tensors."""
        for tensor in tensors_in(result):
            if tensor.dtype in NANS and tensor.numel():
                storage = tensor.untyped_storage()
                self.storages[storage.data_ptr()] = storage
        return result

    # ---- Codes -------------------------------------------------------------------------------------------------------

    def codes_of(self, tensor) -> np.ndarray:
        """The codes of its numbers, 0 of those that are known."""
        if tensor.dtype not in NANS or not self.has_unknown(tensor):
            return np.zeros(tuple(tensor.shape), int)
        bits, nan, _ = NANS[tensor.dtype]
        cells = tensor.detach().contiguous().view(bits)
        codes = cells.long().numpy() - nan
        is_code = (codes > 0) & (codes <= len(self.numbers))
        return np.where(is_code, codes, 0)

    def objects_of(self, tensor) -> Numbers:
        """A copy of its numbers, the unknown ones as UnknownNumbers."""
        objects = tensor.detach().double().numpy().astype(object)
        codes = self.codes_of(tensor)
        is_unknown = codes > 0
        objects[is_unknown] = [self.numbers[code - 1] for code in codes[is_unknown]]
        return objects.view(Numbers)

    def write(self, tensor, changed: dict[tuple, Any]):
        """Write numbers, known and unknown ones, into their places in a tensor."""
        new = tensor.detach().clone(memory_format=torch.contiguous_format)
        bits, nan, room = NANS.get(tensor.dtype, (tensor.dtype, 0, 0))
        cells = new.view(bits)
        for place, number in changed.items():
            if isinstance(number, UnknownNumber) and tensor.dtype in N_VALUES:
                number = number.then(Computed(rounding(tensor.dtype)))
            if not isinstance(number, UnknownNumber):
                new[place] = np.asarray(number).item()
                continue
            self.numbers.append(number)
            if len(self.numbers) >= room:
                raise UserError(f"{len(self.numbers)} random numbers in {tensor.dtype} cannot be followed")
            cells[place] = nan + len(self.numbers)
        with torch.no_grad():
            tensor.copy_(new)
        return self.note(tensor)

    def tensor_of(self, given, dtype=None, *_, **__):
        """A tensor of numbers, unknown ones among them: torch.tensor for such, on the CPU."""
        numbers = np.asarray(given, object)
        with _disable_current_modes():
            if not any(isinstance(number, UnknownNumber) for number in numbers.flat):
                return torch.tensor(numbers.tolist(), dtype=dtype)
            blank = torch.zeros(numbers.shape, dtype=dtype)
            return self.write(blank, dict(np.ndenumerate(numbers)))


@cache
def rounding(dtype: torch.dtype) -> Callable:
    """The rounding to a half type, as a step of an unknown number."""

    def rounded(x):
        return torch.as_tensor(x, dtype=torch.float64).to(dtype).double().numpy()[()]

    return rounded
