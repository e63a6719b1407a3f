"""The weights of a model: arrays by name, read from the tensors in its files.

The index of a checkpoint is {name: Tensor}: the type, shape and place of each tensor in a file. The names are OpenAI's
("wte", "h0/attn/c_attn/w") without their "model/". The files are mapped into memory, so a tensor is an array without
having been copied, and the system reads its pages when they are used.
"""

import math
import mmap
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from speculative.checkpoints.advice import advice_on_tensors
from speculative.checkpoints.disk import MappedFile, bad_file, leave, note_of, state_of
from speculative.support.errors import UserError

N_THREADS = min(8, os.cpu_count() or 1)  # threads that read tensors, each its own; more would hold too many
N_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a number


# ---- The parameters --------------------------------------------------------------------------------------------------


Shape = tuple[int, ...]
Shapes = dict[str, Shape]  # the shapes of tensors by name


def checkpoint_shapes(hparams: dict) -> Shapes:
    """Return {name: shape} of every parameter."""
    n = hparams["n_embd"]
    n_inner = hparams.get("n_inner", 4 * n)
    block: Shapes = {
        "ln_1/g": (n,),
        "ln_1/b": (n,),
        "ln_2/g": (n,),
        "ln_2/b": (n,),
        "attn/c_attn/w": (n, 3 * n),
        "attn/c_attn/b": (3 * n,),
        "attn/c_proj/w": (n, n),
        "attn/c_proj/b": (n,),
        "mlp/c_fc/w": (n, n_inner),
        "mlp/c_fc/b": (n_inner,),
        "mlp/c_proj/w": (n_inner, n),
        "mlp/c_proj/b": (n,),
    }
    shapes: Shapes = {"wte": (hparams["n_vocab"], n), "wpe": (hparams["n_ctx"], n)}
    for i in range(hparams["n_layer"]):
        for name, shape in block.items():
            shapes[f"h{i}/{name}"] = shape
    return shapes | {"ln_f/g": (n,), "ln_f/b": (n,)}


def parameter_count(hparams: dict) -> int:
    """Return the number of parameters. Each takes 4 bytes as float32."""
    return sum(map(math.prod, checkpoint_shapes(hparams).values()))


def nested(values: dict) -> dict:
    """{"h0/ln_1/g": value, ...} -> {"blocks": [{"ln_1": {"g": value}}, ...], ...}, as gpt2.gpt2 takes it."""
    params: dict = {}
    for name, value in values.items():
        *keys, last = name.split("/")
        inner = params
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = value
    layers = [name for name in params if name.startswith("h")]
    params["blocks"] = [params.pop(f"h{i}") for i in range(len(layers))]
    return params


# ---- One tensor ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """A tensor in a mapped file."""

    file: MappedFile
    dtype: str  # one of N_BYTES, or another one, which array_of refuses
    shape: Shape
    begin: int  # byte of the file

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * N_BYTES[self.dtype]

    def check_sum(self, name: str, content: np.ndarray) -> None:  # uint8 [n_bytes]
        """Raise UserError if a checksum says that the tensor is damaged. Only OpenAI's files have any."""


Index = dict[str, Tensor]
Change = Callable[[str, np.ndarray], np.ndarray]  # a change of a tensor, by its name
V = TypeVar("V")


def array_of(tensor: Tensor, name: str, is_checked: bool = False) -> np.ndarray:  # -> float32 [*shape]
    """Return a tensor as an array, which is the mapped file itself if that holds float32. Raises UserError.

    is_checked: an earlier run found its checksum right and its numbers finite.
    """
    content = content_of(tensor, name)
    if not is_checked:
        tensor.check_sum(name, content)
    with np.errstate(over="ignore", invalid="ignore"):
        array = as_float32(content, tensor.dtype)
        if not is_checked and not is_finite(array):  # rounding would hide it: an int8 weight is a number in any case
            raise bad_file(tensor.file.path, f"tensor {name} holds NaN or infinity, or more than float32 can")
    return array.reshape(tensor.shape)


def content_of(tensor: Tensor, name: str) -> np.ndarray:  # -> uint8 [n_bytes]
    """Return the bytes of a tensor. Raises UserError for another type, and for a file that is cut."""
    if tensor.dtype not in N_BYTES:
        raise bad_file(tensor.file.path, f"tensor {name} is {tensor.dtype}, not {', '.join(N_BYTES)}")
    rest = np.frombuffer(tensor.file.content, np.uint8)[tensor.begin :]
    content = rest[: tensor.n_bytes]
    if len(content) < tensor.n_bytes:
        raise bad_file(tensor.file.path, f"it ends before tensor {name} does")
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


class Weights:
    """The weights of a checkpoint by name. Files that an earlier run found right are not checked again."""

    def __init__(self, index: Index, hparams: dict, change: Change | None = None):
        """change: applies settings that gpt2.py does not have (config.settings_in_weights). Raises UserError."""
        self.index = index
        self.stored_shapes = checkpoint_shapes(hparams)
        self.shapes = self.stored_shapes  # shapes of the arrays: a padded model's are larger
        self.change = change
        check_names(index, self.stored_shapes)
        check_shapes(index, self.stored_shapes)
        self.note = note_of(sorted(index.items()))
        self.is_checked = self.note is not None and os.path.exists(self.note)  # not if the folder is another user's

    def array(self, name: str) -> np.ndarray:  # -> float32 [*shapes[name]]
        """Read a tensor: it is the mapped file itself if that holds float32. Raises UserError."""
        array = array_of(self.index[name], name, self.is_checked).reshape(self.stored_shapes[name])
        return self.change(name, array) if self.change else array

    def release(self, name: str) -> None:
        """Give back the memory of a tensor that was converted."""
        if name in self.index:  # else it was made, as a layer of a padded model
            forget_pages(self.index[name])

    def finish(self) -> None:
        """Note that all is right, once every tensor was read. Raises UserError if a file has changed meanwhile."""
        states = {tensor.file.path: tensor.file.state for tensor in self.index.values()}
        for path, state in states.items():
            if state_of(path) != state:
                raise UserError(f"{path}: changed while it was read")
        if self.note and not self.is_checked:
            leave(self.note)


def read_all(weights: Weights, convert: Callable[[str, np.ndarray], Any] | None = None) -> dict:
    """Read all tensors -> the nested dict that gpt2.gpt2 takes. Raises UserError.

    convert("h0/attn/c_attn/w", array), for example, is called for each tensor, in several threads, and its result takes
    the array's place: two whole copies never exist.
    """

    def read(name: str) -> Any:
        array = weights.array(name)
        value = convert(name, array) if convert else array
        if value is not array:
            weights.release(name)
        return value

    values = by_threads(read, weights.shapes)
    weights.finish()
    return nested(values)


def by_threads(function: Callable[[str], V], names: Iterable[str]) -> dict[str, V]:
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
    path = next(iter(index.values())).file.path if index else "the checkpoint"
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
        raise bad_file(tensor.file.path, f"tensor {name} is {tensor.shape!s:.100}{hint}, and {shape} by its settings")
