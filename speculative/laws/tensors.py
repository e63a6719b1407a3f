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

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from speculative.laws.operations import Call, draw, kind_of, tensors_in
from speculative.laws.traced import TracedRandom
from speculative.laws.unknown import Numbers, UnknownNumber
from speculative.support.errors import UserError

# The type of the bits of a number, the bits of the NaN with code 0, and the number of codes that there is room for.
NANS = {
    torch.float64: (torch.int64, 0x7FF8000000000000, 2**22),
    torch.float32: (torch.int32, 0x7FC00000, 2**22),
    torch.float16: (torch.int16, 0x7E00, 2**9),
    torch.bfloat16: (torch.int16, 0x7FC0, 2**6),
}


class UnknownTensors(TorchDispatchMode):
    """Follow all of PyTorch's operations within."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's question whether to load its compiler, to say that it shall not compile this class."""
        return False

    def __init__(self):
        super().__init__()
        self.is_off = False
        self.path: Any = None  # the one that the numbers belong to
        self.forget()

    def forget(self) -> None:
        self.numbers: list[UnknownNumber] = []  # number i has the code i + 1
        self.storages: dict = {}  # {address: the memory that unknown numbers were written into}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if self.path is not TracedRandom.walk.branches:
            self.path = TracedRandom.walk.branches
            self.forget()
        call = Call(operation, args, kwargs or {})
        kind = kind_of(operation)
        if self.is_off or (kind is not draw and not self.reads_unknown(call)):
            return call.run()
        with self.off():
            return kind(self, call)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Within, tensors are what they are."""
        was_off, self.is_off = self.is_off, True
        try:
            yield
        finally:
            self.is_off = was_off

    def reads_unknown(self, call: Call) -> bool:
        return bool(self.storages) and any(self.has_unknown(tensor) for tensor in tensors_in([call.args, call.kwargs]))

    def has_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether unknown numbers were written into its memory. It may be a view of another part."""
        return tensor.untyped_storage().data_ptr() in self.storages

    def note(self, result: Any) -> Any:
        """Note that there may be unknown numbers in these tensors."""
        for tensor in tensors_in(result):
            if tensor.dtype in NANS and tensor.numel():
                storage = tensor.untyped_storage()
                self.storages[storage.data_ptr()] = storage
        return result

    # ---- Codes -------------------------------------------------------------------------------------------------------

    def codes_of(self, tensor: torch.Tensor) -> np.ndarray:
        """The codes of its numbers, 0 of those that are known."""
        if tensor.dtype not in NANS or not self.has_unknown(tensor):
            return np.zeros(tuple(tensor.shape), int)
        bits, nan, _ = NANS[tensor.dtype]
        cells = tensor.detach().contiguous().view(bits)
        codes = cells.numpy().astype(int) - nan
        is_code = (codes > 0) & (codes <= len(self.numbers))
        return np.where(is_code, codes, 0)

    def objects_of(self, tensor: torch.Tensor) -> Numbers:
        """Its numbers, the unknown ones as UnknownNumbers."""
        values = tensor.detach().to(torch.float64, copy=True).numpy()
        objects = np.empty(values.shape, object)
        codes = self.codes_of(tensor)
        for place in np.ndindex(values.shape):
            code = codes[place]
            objects[place] = self.numbers[code - 1] if code else values[place]
        return objects.view(Numbers)

    def write(self, tensor: torch.Tensor, changed: dict[tuple, Any]) -> torch.Tensor:
        """Write numbers, known and unknown ones, into their places in a tensor."""
        new = tensor.detach().clone(memory_format=torch.contiguous_format)
        bits, nan, room = NANS.get(tensor.dtype, (tensor.dtype, 0, 0))
        cells = new.view(bits).numpy()
        for place, number in changed.items():
            if not isinstance(number, UnknownNumber):
                new[place] = number.item() if isinstance(number, np.generic) else number
                continue
            self.numbers.append(number)
            if len(self.numbers) >= room:
                raise UserError(f"{len(self.numbers)} random numbers in {tensor.dtype} cannot be followed")
            cells[place] = nan + len(self.numbers)
        with torch.no_grad():
            tensor.copy_(new)
        return self.note(tensor)

    def tensor_of(self, given: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor of numbers, unknown ones among them."""
        numbers = np.asarray(given, object)
        with self.off():
            if not any(isinstance(number, UnknownNumber) for number in numbers.flat):
                return torch.tensor(numbers.tolist(), dtype=dtype)
            blank = torch.zeros(numbers.shape, dtype=dtype)
            return self.write(blank, dict(np.ndenumerate(numbers)))
