"""Tensors in files, and how they become the parameters of a GPT-2.

The index of a checkpoint is {name: Tensor}: the type, shape and place of each tensor in a file. The names are OpenAI's
("wte", "h0/attn/c_attn/w") without their "model/". The files are mapped into memory, so a tensor is an array without
having been copied, and the system reads its pages when they are used.
"""

import math
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from speculative.checkpoints.advice import advice_on_tensors
from speculative.checkpoints.crc32c import crc32c, warn_about
from speculative.checkpoints.disk import MappedFile, Note, bad_file, check_unchanged

N_THREADS = min(8, os.cpu_count() or 1)  # that read, check and convert tensors, each its own; more would hold too many
Shapes = dict[str, tuple[int, ...]]  # of tensors by name
N_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # of a number


class Tensor(NamedTuple):
    """A tensor in a mapped file."""

    file: MappedFile
    dtype: str  # one of N_BYTES
    shape: tuple[int, ...]
    begin: int  # byte of the file
    crc32c: int | None = None  # masked, as TensorFlow stores it; None if the format has none

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * N_BYTES[self.dtype]


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
    if not is_checked:
        check_crc32c(tensor, name, content)
    with np.errstate(over="ignore", invalid="ignore"):
        array = as_float32(content, tensor.dtype)
        if not is_checked and not is_finite(array):  # rounding would hide it: an int8 weight is a number in any case
            raise bad_file(tensor.path, f"tensor {name} holds NaN or infinity, or more than float32 can")
    return array.reshape(tensor.shape)


def content_of(tensor: Tensor, name: str) -> np.ndarray:  # -> uint8 [n_bytes]
    """Return the bytes of a tensor. Raises UserError for another type, and for a file that is cut."""
    file, begin = tensor.file, tensor.begin
    if tensor.dtype not in N_BYTES:
        raise bad_file(file.path, f"tensor {name} is {tensor.dtype}, not {', '.join(N_BYTES)}")
    n_bytes = tensor.n_bytes
    if begin + n_bytes > len(file.content):
        raise bad_file(file.path, f"it ends before tensor {name} does")
    return np.frombuffer(file.content, np.uint8, n_bytes, begin)


def check_crc32c(tensor: Tensor, name: str, content: np.ndarray) -> None:
    if tensor.crc32c is not None and masked_crc32c(content) != tensor.crc32c:
        raise bad_file(tensor.path, f"tensor {name} is damaged: its CRC32C is not the one in the index")


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


def checkpoint_shapes(hparams: dict) -> Shapes:
    """Return {name: shape} of every parameter."""
    n = hparams["n_embd"]
    block = block_shapes(n, hparams.get("n_inner", 4 * n))
    shapes: Shapes = {}
    shapes["wte"] = (hparams["n_vocab"], n)
    shapes["wpe"] = (hparams["n_ctx"], n)
    for i in range(hparams["n_layer"]):
        for name in block:
            shapes[f"h{i}/{name}"] = block[name]
    shapes["ln_f/g"] = (n,)
    shapes["ln_f/b"] = (n,)
    return shapes


def block_shapes(n: int, n_inner: int) -> Shapes:
    """Return {name: shape} of the parameters of one layer. n: n_embd."""
    matrices = {
        "attn/c_attn": (n, 3 * n),
        "attn/c_proj": (n, n),
        "mlp/c_fc": (n, n_inner),
        "mlp/c_proj": (n_inner, n),
    }
    shapes: Shapes = {"ln_1/g": (n,), "ln_1/b": (n,), "ln_2/g": (n,), "ln_2/b": (n,)}
    for name, shape in matrices.items():
        shapes[f"{name}/w"] = shape
        shapes[f"{name}/b"] = shape[1:]
    return shapes


def parameter_count(hparams: dict) -> int:
    """Return the number of parameters. Each takes 4 bytes as float32."""
    return sum(math.prod(shape) for shape in checkpoint_shapes(hparams).values())


def build_params(index: dict[str, Tensor], hparams: dict, convert: Callable, progress: Callable) -> dict:
    """Read all tensors of a checkpoint -> the nested dict that gpt2.gpt2 takes. Raises UserError.

    convert("h0/attn/c_attn/w", array), for example, is called for each tensor, in several threads, and its result takes
    the array's place: two whole copies never exist. Files that an earlier run found right are not checked again.
    progress(n_bytes) is called after each.
    """
    shapes = checkpoint_shapes(hparams)
    check_names(index, shapes)
    check_shapes(index, shapes)
    note = Note(index_without_contents(index))
    is_checked = note.exists()
    if not is_checked:
        warn_about(sum(tensor.n_bytes for tensor in index.values() if tensor.crc32c is not None))

    def converted(name: str) -> Any:
        tensor = index[name]
        array = array_of(tensor, name, is_checked).reshape(shapes[name])
        value = convert(name, array)
        parts = value if isinstance(value, tuple) else (value,)
        if all(part is not array for part in parts):
            forget_pages(tensor)
        return value

    values = by_threads(converted, shapes, progress)
    check_unchanged({tensor.path: tensor.file for tensor in index.values()}.values())
    if not is_checked:
        note.write()
    return nested(values)


def by_threads(function: Callable, shapes: Shapes, progress: Callable) -> dict[str, Any]:
    """Return {name: function(name)} of all parameters, computed by several threads. progress(n_bytes) is called after
    each."""
    values = {}
    with ThreadPoolExecutor(N_THREADS) as threads:
        for name, value in zip(shapes, threads.map(function, shapes), strict=True):
            values[name] = value
            progress(4 * math.prod(shapes[name]))
    return values


def check_names(index: dict[str, Tensor], shapes: Shapes) -> None:
    """Raise UserError if the checkpoint lacks a parameter, or holds another tensor."""
    names = {name for name in index if not is_of_optimizer(name, index[name], shapes)}
    unlike = sorted(shapes.keys() ^ names)
    if not unlike:
        return
    name = unlike[0]
    path = next(iter(index.values())).path if index else "the checkpoint"
    verb = "has" if name in index else "lacks"
    raise bad_file(path, f"{verb} tensor {name!r:.100}, contrary to its settings{advice_on_tensors(index)}")


def is_of_optimizer(name: str, tensor: Tensor, shapes: Shapes) -> bool:
    """Return True for the numbers of an optimizer: those of a parameter are below its name, its own are scalars."""
    return not tensor.shape or name.rpartition("/")[0] in shapes


def check_shapes(index: dict[str, Tensor], shapes: Shapes) -> None:
    """Raise UserError for a tensor of another shape. OpenAI's matrices are those of a convolution of width 1: they have
    one more axis, in front."""
    for name, shape in shapes.items():
        tensor = index[name]
        if tensor.shape in (shape, (1, *shape)):
            continue
        hint = " (transposed, as in nanoGPT's checkpoints)" if tensor.shape == shape[::-1] else ""
        fault = f"tensor {name} is {tensor.shape!s:.100}{hint}, and {shape} by its settings"
        raise bad_file(tensor.path, fault)


def index_without_contents(index: dict[str, Tensor]) -> list[tuple]:
    """Return all that decides what the tensors are: their places, and the states of their files."""
    about = []
    for name, (file, *place) in sorted(index.items()):
        about.append((name, *place, os.path.abspath(file.path), file.state))
    return about


def nested(values: dict[str, Any]) -> dict:
    """{"h0/ln_1/g": value, ...} -> {"blocks": [{"ln_1": {"g": value}}, ...], ...}, as gpt2.gpt2 takes it."""
    params: dict[str, Any] = {}
    for name, value in values.items():
        *keys, last = name.split("/")
        inner = params
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = value
    n_layer = sum(name.startswith("h") for name in params)
    return params | {"blocks": [params.pop(f"h{i}") for i in range(n_layer)]}
