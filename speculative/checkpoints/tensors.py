"""Tensors in files, and how they become the parameters of a GPT-2.

The index of a checkpoint is {name: Tensor}: the type, shape and place of each tensor in a file. The names are OpenAI's
("wte", "h0/attn/c_attn/w") without their "model/". The files are mapped into memory, so a tensor is an array without
having been copied, and the system reads its pages when they are used.
"""

import contextlib
import hashlib
import math
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from speculative.checkpoints.official import MODEL_SIZES
from speculative.support.errors import UserError
from speculative.support.files import cache_home, size_of

N_THREADS = min(8, os.cpu_count() or 1)  # that read, check and convert tensors, each its own; more would hold too many
N_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # of a number


def bad_file(path: str | os.PathLike, fault: str) -> UserError:
    """Return the UserError for a file that is not what it should be, but can be read. A download lists its files."""
    if 0 < size_of(path) < 1024 and Path(path).read_bytes().startswith(b"version https://git-lfs"):
        fault = "a pointer of git-lfs: git lfs pull gets the file"
    folder, name = os.path.split(path)
    sums = Path(folder, "SHA256SUMS")
    comes_back = os.path.basename(folder) in MODEL_SIZES and sums.is_file() and f"  {name}\n" in sums.read_text()
    return UserError(f"{path}: {fault}" + "; delete it to have it downloaded again" * comes_back)


class Tensor(NamedTuple):
    """A tensor in a mapped file."""

    path: str  # of the file, for messages
    file: mmap.mmap
    dtype: str  # one of N_BYTES
    shape: tuple[int, ...]
    begin: int  # byte of the file
    crc32c: int | None = None  # masked, as TensorFlow stores it; None if the format has none

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * N_BYTES[self.dtype]


def mapped(path: str | os.PathLike) -> mmap.mmap:
    """Map a file into memory, to be read. Raises UserError, OSError."""
    if os.path.getsize(path) == 0:
        raise bad_file(path, "empty")
    with open(path, "rb") as f:
        return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)


def masked_crc32c(content: bytes | np.ndarray) -> int:  # uint8 [n]
    """Return the CRC32C as TensorFlow stores it: rotated, since a sum over data that hold sums has too many zeros."""
    from google_crc32c import value

    crc = value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def read(tensor: Tensor, name: str, checked: bool = False) -> np.ndarray:  # -> float32 [*shape]
    """Return a tensor as an array, which is the mapped file itself if that holds float32. Raises UserError.

    checked: an earlier run found its CRC32C right and its numbers finite.
    """
    if tensor.dtype not in N_BYTES:
        raise bad_file(tensor.path, f"tensor {name} is {tensor.dtype}, not {', '.join(N_BYTES)}")
    if tensor.begin + tensor.n_bytes > len(tensor.file):
        raise bad_file(tensor.path, f"it ends before tensor {name} does")
    content = np.frombuffer(tensor.file, np.uint8, tensor.n_bytes, tensor.begin)
    if not checked and tensor.crc32c is not None and masked_crc32c(content) != tensor.crc32c:
        raise bad_file(tensor.path, f"tensor {name} is damaged: its CRC32C is not the one in the index")
    with np.errstate(over="ignore", invalid="ignore"):
        if tensor.dtype == "bfloat16":  # the upper half of a float32
            array = (content.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.require(content.view(tensor.dtype), np.float32, "A")
        finite = checked or np.isfinite(np.dot(array, array)) or np.isfinite([array.min(), array.max()]).all()
    if not finite:  # rounding would hide it: an int8 weight is a number in any case
        raise bad_file(tensor.path, f"tensor {name} holds NaN or infinity, or more than float32 can")
    return array.reshape(tensor.shape)


def states_of(index: dict[str, Tensor]) -> list[tuple]:
    """Return path, bytes, times of change and number of each file."""
    paths = sorted({os.path.abspath(tensor.path) for tensor in index.values()})
    found = zip(paths, map(os.stat, paths), strict=True)
    return [(path, at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino) for path, at in found]


def checkpoint_shapes(hparams: dict) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of every parameter."""
    n = hparams["n_embd"]
    n_inner = hparams.get("n_inner", 4 * n)
    block = {
        **{"ln_1/g": (n,), "ln_1/b": (n,), "ln_2/g": (n,), "ln_2/b": (n,)},
        **{"attn/c_attn/w": (n, 3 * n), "attn/c_attn/b": (3 * n,), "attn/c_proj/w": (n, n), "attn/c_proj/b": (n,)},
        **{"mlp/c_fc/w": (n, n_inner), "mlp/c_fc/b": (n_inner,), "mlp/c_proj/w": (n_inner, n), "mlp/c_proj/b": (n,)},
    }
    blocks = {f"h{i}/{name}": shape for i in range(hparams["n_layer"]) for name, shape in block.items()}
    return {"wte": (hparams["n_vocab"], n), "wpe": (hparams["n_ctx"], n), **blocks, "ln_f/g": (n,), "ln_f/b": (n,)}


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
    path = next(iter(index.values())).path if index else "the checkpoint"
    # An optimizer keeps its numbers of a tensor below the tensor's name, and its own as scalars.
    slots = {name for name, tensor in index.items() if name.rpartition("/")[0] in shapes or not tensor.shape}
    for name in sorted(shapes.keys() ^ index.keys() - slots):
        raise bad_file(path, f"{'has' if name in index else 'lacks'} tensor {name!r:.100}, contrary to its settings")
    for name, shape in shapes.items():
        # OpenAI's matrices are those of a convolution of width 1: they have one more axis, in front.
        if index[name].shape not in (shape, (1, *shape)):
            other = " (transposed, as in nanoGPT's checkpoints)" if index[name].shape == shape[::-1] else ""
            raise bad_file(path, f"tensor {name} is {index[name].shape!s:.100}{other}, and {shape} by its settings")
    states = states_of(index)
    note = None  # an empty file, for later runs of this user
    with contextlib.suppress(RuntimeError):  # there is no home
        note = cache_home() / "checked" / hashlib.sha256(repr((index, states)).encode()).hexdigest()
    checked = note is not None and note.exists()

    def convert_one(name):
        tensor = index[name]
        array = read(tensor, name, checked).reshape(shapes[name])
        value = convert(name, array)
        parts = value if isinstance(value, tuple) else (value,)
        is_copied = all(part is not array for part in parts)
        if is_copied and hasattr(mmap, "MADV_DONTNEED"):  # the memory goes back: the file still holds it
            begin = tensor.begin - tensor.begin % mmap.PAGESIZE
            tensor.file.madvise(mmap.MADV_DONTNEED, begin, tensor.begin + tensor.n_bytes - begin)
        return value

    values = {}
    with ThreadPoolExecutor(N_THREADS) as threads:
        for name, value in zip(shapes, threads.map(convert_one, shapes), strict=True):
            values[name] = value
            progress(4 * math.prod(shapes[name]))
    if states_of(index) != states:
        raise UserError(f"{path}: changed while it was read")
    if note and not checked:
        with contextlib.suppress(OSError):  # then later runs check again
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    return nested(values)


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
