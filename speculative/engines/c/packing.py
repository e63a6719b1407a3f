"""Packed weights: each matrix cut into the tiles that the C engine reads, in one of the weight formats."""

import ctypes
from typing import NamedTuple

import numpy as np

from speculative.checkpoints.weights import Shape
from speculative.engines.c.library import library
from speculative.engines.formats import Format, format_of


def aligned(shape, dtype=np.float32):  # -> [*shape], at a multiple of 64 bytes: a cache line, and the largest register
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)  # [size + 64]
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def address(array: np.ndarray) -> int:
    if array.flags.writeable and array.size:
        first = ctypes.c_char.from_buffer(array)  # type: ignore[arg-type]  # in a third of the time of the way below
        return ctypes.addressof(first)
    return array.__array_interface__["data"][0]


LAYOUT = 2  # the number of the order in which numbers lie in tiles: packs of another one do not fit


class PackedWeight(NamedTuple):
    """A matrix, cut into tiles of `lanes` output channels; zeros fill up the last one."""

    shape: Shape  # [n_in, n_out]; of the embedding [n_embd, n_vocab]
    format: Format
    tiles: np.ndarray  # uint8 [n_tiles, bytes of a tile], all of which each product reads


def tiles_shape(shape: Shape, format: Format) -> Shape:
    n_in, n_out = shape
    return -(-n_out // library().lanes()), library().tile_bytes(library().numbers["format"][format.name], n_in)


def pack_matrix(w, format: Format) -> PackedWeight:  # [n_in, n_out]
    w = np.asarray(w, np.float32)
    n_in, n_out = w.shape
    row, column = (stride // w.itemsize for stride in w.strides)
    shape = tiles_shape(w.shape, format)
    tiles = aligned(shape, np.uint8)
    library().pack(library().numbers["format"][format.name], w.ctypes.data, n_in, n_out, row, column, tiles.ctypes.data)
    return PackedWeight(w.shape, format, tiles)


def can_stay(name: str, array: np.ndarray) -> bool:
    """Return True for a matrix [n_in, n_out] whose channels fill up whole tiles. The embedding lies transposed."""
    return name != "wte" and array.flags.c_contiguous and array.shape[1] % library().lanes() == 0


def pack(dtype: str, name: str, array: np.ndarray, in_place: bool = False) -> PackedWeight | np.ndarray:
    """Return a tensor as CompiledPass takes it, of a model in the format dtype: matrices in tiles, and all else as a
    copy. in_place: leave matrices of float32 in the file, if engine.c can use them there. Raises UserError if a number
    does not go into the format."""
    format = format_of(name, array, dtype)
    if format is None:
        return np.array(array)
    if in_place and format.name == "float32" and can_stay(name, array):
        return array
    return pack_matrix(array.T if name == "wte" else array, format)
