"""gpt2.py's nested dicts in engine.c's structs, and the memory that these point to."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from speculative.engines.c.library import numbers, struct
from speculative.engines.c.packing import PackedWeight


def address(array: np.ndarray) -> int:
    if array.flags.writeable and array.size:
        first = ctypes.c_char.from_buffer(array)  # type: ignore[arg-type]  # in a third of the time of the way below
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
