"""Tensors in files, and how they become the parameters of a GPT-2.

The index of a checkpoint is {name: Tensor}: the type, shape and place of each tensor in a file. The names are OpenAI's
("wte", "h0/attn/c_attn/w") without their "model/". The files are mapped into memory, so a tensor is an array without
having been copied, and the system reads its pages when they are used.
"""

import math
import mmap
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from speculative.checkpoints.advice import advice_on_tensors
from speculative.checkpoints.crc32c import crc32c
from speculative.checkpoints.disk import MappedFile, bad_file
from speculative.checkpoints.shapes import Shape, Shapes

N_THREADS = min(8, os.cpu_count() or 1)  # that read, check and convert tensors, each its own; more would hold too many
N_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # of a number


class Tensor(NamedTuple):
    """A tensor in a mapped file."""

    file: MappedFile
    dtype: str  # one of N_BYTES, or another one, which array_of refuses
    shape: Shape
    begin: int  # byte of the file
    crc32c: int | None = None  # masked, as TensorFlow stores it; None if the format has none

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * N_BYTES[self.dtype]


Index = dict[str, Tensor]


def masked_crc32c(content: bytes | np.ndarray) -> int:  # uint8 [n]
    """Return the CRC32C as TensorFlow stores it: rotated, since a sum over data that hold sums has too many zeros."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


# ---- One tensor ------------------------------------------------------------------------------------------------------


def array_of(tensor: Tensor, name: str, is_checked: bool = False) -> np.ndarray:  # -> float32 [*shape]
    """Return a tensor as an array, which is the mapped file itself if that holds float32. Raises UserError.

    is_checked: an earlier run found its CRC32C right and its numbers finite.
    """
    content = content_of(tensor, name)
    if not is_checked and tensor.crc32c is not None and masked_crc32c(content) != tensor.crc32c:
        raise bad_file(tensor.path, f"tensor {name} is damaged: its CRC32C is not the one in the index")
    with np.errstate(over="ignore", invalid="ignore"):
        array = as_float32(content, tensor.dtype)
        if not is_checked and not is_finite(array):  # rounding would hide it: an int8 weight is a number in any case
            raise bad_file(tensor.path, f"tensor {name} holds NaN or infinity, or more than float32 can")
    return array.reshape(tensor.shape)


def content_of(tensor: Tensor, name: str) -> np.ndarray:  # -> uint8 [n_bytes]
    """Return the bytes of a tensor. Raises UserError for another type, and for a file that is cut."""
    if tensor.dtype not in N_BYTES:
        raise bad_file(tensor.path, f"tensor {name} is {tensor.dtype}, not {', '.join(N_BYTES)}")
    rest = np.frombuffer(tensor.file.content, np.uint8)[tensor.begin :]
    content = rest[: tensor.n_bytes]
    if len(content) < tensor.n_bytes:
        raise bad_file(tensor.path, f"it ends before tensor {name} does")
    return content


def as_float32(content: np.ndarray, dtype: str) -> np.ndarray:  # uint8 [n_bytes] -> float32 [n]
    if dtype == "bfloat16":  # the upper half of a float32
        return (content.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return np.require(content.view(dtype), np.float32, "A")


def is_finite(array: np.ndarray) -> bool:  # [n]
    """Return True if no number is NaN or infinite. The sum of squares is quicker to compute, and may overflow."""
    return bool(np.isfinite(np.dot(array, array)) or np.isfinite([array.min(), array.max()]).all())


def forget_pages(tensor: Tensor) -> None:
    """Give back the memory of a tensor that was converted: the file still holds it."""
    content = tensor.file.content
    if isinstance(content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        begin = tensor.begin - tensor.begin % mmap.PAGESIZE
        content.madvise(mmap.MADV_DONTNEED, begin, tensor.begin + tensor.n_bytes - begin)


# ---- All tensors of a model ------------------------------------------------------------------------------------------


def by_threads(function: Callable, names: Iterable[str]) -> dict:
    """Return {name: function(name)}, computed by several threads."""
    with ThreadPoolExecutor(N_THREADS) as threads:
        return dict(zip(names, threads.map(function, names), strict=True))


def check_names(index: Index, shapes: Shapes) -> None:
    """Raise UserError if the checkpoint lacks a parameter, or holds another tensor."""
    names = set()
    for name, tensor in index.items():
        parameter, _, _ = name.rpartition("/")
        is_optimizers = parameter in shapes or not tensor.shape  # "h0/ln_1/g/Adam", or a number such as beta1_power
        if not is_optimizers:
            names.add(name)
    unlike = sorted(shapes.keys() ^ names)
    if not unlike:
        return
    name = unlike[0]
    path = next(iter(index.values())).path if index else "the checkpoint"
    verb = "has" if name in index else "lacks"
    raise bad_file(path, f"{verb} tensor {name!r:.100}, contrary to its settings{advice_on_tensors(index)}")


def check_shapes(index: Index, shapes: Shapes) -> None:
    """Raise UserError for a tensor of another shape. OpenAI's matrices are those of a convolution of width 1: they have
    one more axis, in front."""
    for name, shape in shapes.items():
        tensor = index[name]
        if tensor.shape in (shape, (1, *shape)):
            continue
        hint = " (transposed, as in nanoGPT's checkpoints)" if tensor.shape == shape[::-1] else ""
        if "c_attn" in name and shape[0] < tensor.shape[-1] < shape[-1]:
            hint = " (its heads share keys and values: multi-query attention, which GPT-2 has not)"
        raise bad_file(tensor.path, f"tensor {name} is {tensor.shape!s:.100}{hint}, and {shape} by its settings")
