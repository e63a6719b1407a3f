"""gpt2.py's nested dicts in engine.c's structs, the memory that these point to, and a text's KV cache."""

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from speculative.engines.c.library import lanes, numbers, struct
from speculative.engines.c.packing import PackedWeight, aligned


def address(array: np.ndarray) -> int:
    if array.flags.writeable and array.size:
        first = ctypes.c_char.from_buffer(array)  # type: ignore[arg-type]  # takes a third of the time of the next line
        return ctypes.addressof(first)
    return array.__array_interface__["data"][0]


class Memory:
    """Memory whose addresses engine.c has. It is kept as long as this object."""

    def __init__(self):
        self.kept: list[Any] = []

    def floats(self, array: np.ndarray) -> int:
        """The address of an array of float32."""
        array = np.ascontiguousarray(array, np.float32)
        self.kept.append(array)
        return address(array)

    def structs(self, name: str, dicts: Sequence[dict]) -> int:
        """The address of an array of engine.c's structs of this name."""
        kind = struct(name)
        array = (kind * len(dicts))(*[self.filled(kind, values) for values in dicts])
        self.kept.append(array)
        return ctypes.addressof(array)

    def filled(self, kind: Any, values: dict) -> ctypes.Structure:
        """A struct whose fields have the names of these arrays, dicts of arrays and weights."""
        if kind is struct("Linear"):
            return self.linear(**values)
        fields = {}
        for name, field_kind in kind._fields_:
            is_array = not issubclass(field_kind, ctypes.Structure)
            fields[name] = self.floats(values[name]) if is_array else self.filled(field_kind, values[name])
        return kind(**fields)

    def linear(self, w: PackedWeight | np.ndarray, b: np.ndarray | None = None) -> ctypes.Structure:
        """w: tiles, or a matrix of float32 that is used where it lies (packing.packer)."""
        n_in, n_out = w.shape
        linear = struct("Linear")(n_in=n_in, n_out=n_out, b=0 if b is None else self.floats(b))
        if isinstance(w, PackedWeight):
            linear.format = numbers("format")[w.format.name]
            tiles = w.tiles
        else:
            linear.format = numbers("format")["float32"]
            linear.row_bytes = w.strides[0]
            tiles = w
        linear.tiles = address(tiles)
        self.kept.append(tiles)
        return linear


# ---- A text's KV cache -----------------------------------------------------------------------------------------------


LARGE_PAGE = 2**22  # bytes from which on NumPy would ask for large pages


class Cache:
    """Keys as tiles of slots, and values as tiles of channels: see attention in engine.c."""

    def __init__(self, hparams: dict):
        L = lanes()
        n_head = hparams["n_head"]
        n_ctx = hparams["n_ctx"]
        d_head = hparams["n_embd"] // n_head
        heads = hparams["n_layer"], n_head
        self.keys = small_pages((*heads, -(-n_ctx // L), d_head, L))
        self.values = small_pages((*heads, -(-d_head // L), n_ctx, L))
        self.addresses = address(self.keys), address(self.values)

    def move(self, slots, to: int) -> None:  # [n]
        """Move the keys and values of these tokens to the places from `to` on."""
        L = lanes()
        new_slots = np.arange(to, to + len(slots))  # [n]
        tiles, lane = divmod(slots, L)  # [n] each
        new_tiles, new_lane = divmod(new_slots, L)  # [n] each
        keys = self.keys[:, :, tiles, :, lane]  # a copy
        self.keys[:, :, new_tiles, :, new_lane] = keys
        values = self.values[:, :, :, slots]  # a copy
        self.values[:, :, :, new_slots] = values


def small_pages(shape):  # -> float32 zeros [*shape]
    """Memory for a cache, of which only written pages are taken: in a large page one token, which has a place for each
    layer and head, would touch them all."""
    n_bytes = 4 * int(np.prod(shape))
    if n_bytes < LARGE_PAGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return aligned(shape)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)
