"""Packed weights: each matrix cut into the tiles that engine.c reads, in one of the weight formats.

gpt2.py may go on saying x @ w: that is the plain product with the matrix that the tiles stand for, which runs if there
is no compiler, and is the tests' oracle.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from speculative.engines import formats
from speculative.engines.library import lanes, library, n_cores

TILES = 8  # that a thread packs at a time


@functools.cache
def workers() -> ThreadPoolExecutor:
    """Threads for NumPy, which does not hold Python's lock in long operations."""
    return ThreadPoolExecutor(n_cores())


def aligned(shape, dtype=np.uint8):  # -> [*shape], at a multiple of 64 bytes: a cache line, and the largest register
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)  # [size + 64]
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def shapes(n_in: int, n_out: int, dtype: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a packed matrix's arrays, by their names."""
    format = formats.find(dtype)
    n_tiles = -(-n_out // lanes())
    tiles = {"tiles": (n_tiles, format.tile_bytes(n_in, lanes()))}
    return tiles | ({"scale": (n_tiles * lanes(),)} if format.channel_bytes else {})


class PackedWeight:
    """A weight [n_in, n_out], cut into tiles of lanes() output channels; zeros fill up the last tile and step."""

    __array_ufunc__ = None  # makes NumPy leave x @ self to __rmatmul__

    def __init__(self, shape: tuple[int, int], dtype: str, tiles: np.ndarray, scale: np.ndarray | None = None):
        """shape: [n_in, n_out]. tiles and scale: see shapes."""
        self.shape = shape
        self.dtype = dtype
        self.format = formats.find(dtype)
        self.tiles = tiles  # uint8 [n_tiles, n_bytes]
        self.scale = scale  # [n_tiles * lanes], or None

    @classmethod
    def packed(cls, w: np.ndarray, dtype: str = "float32") -> "PackedWeight":  # [n_in, n_out] float32
        """Packs a matrix, some tiles at a time in each thread."""
        kinds = {"tiles": np.uint8, "scale": np.float32}
        arrays = {name: aligned(shape, kinds[name]) for name, shape in shapes(*w.shape, dtype).items()}
        if w.dtype != np.float32 or any(stride % 4 for stride in w.strides):
            w = np.ascontiguousarray(w, np.float32)
        matrix = [w.ctypes.data, *w.shape, *(stride // 4 for stride in w.strides)]
        packed = [array.ctypes.data for array in arrays.values()] + [None]
        n_tiles = len(arrays["tiles"])

        def pack(first):
            library().pack([*formats.FORMATS].index(dtype), *matrix, first, min(first + TILES, n_tiles), *packed[:2])

        list(workers().map(pack, range(0, n_tiles, TILES)))
        return cls(w.shape, dtype, **arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, all of which each product reads."""
        return self.tiles.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def __rmatmul__(self, x):  # [n_rows, n_in] float32 -> [n_rows, n_out] float32
        return self.format.rows(x) @ self.dequantize()

    def columns(self, ids) -> np.ndarray:  # [n] -> [n, n_in] float32
        """The weights of some output channels."""
        tiles, place = np.unique(np.asarray(ids, int) // lanes(), return_inverse=True)  # [m], [n]
        channels = (tiles[:, None] * lanes() + np.arange(lanes())).ravel()  # [m * lanes]
        scale = None if self.scale is None else self.scale[channels]  # [m * lanes]
        w = self.format.unpack(self.tiles[tiles], scale, lanes())[: self.shape[0]]  # [n_in, m * lanes]
        return np.ascontiguousarray(w[:, place.reshape(-1) * lanes() + np.asarray(ids, int) % lanes()].T)

    def dequantize(self) -> np.ndarray:  # -> [n_in, n_out] float32
        """The matrix that this weight stands for: the model as stored."""
        return self.format.unpack(self.tiles, self.scale, lanes())[: self.shape[0], : self.shape[1]]


class PackedEmbedding:
    """wte [n_vocab, n_embd], packed once for both its uses: wte[ids] looks up, x @ wte.T multiplies."""

    def __init__(self, T: PackedWeight):  # [n_embd, n_vocab]
        self.shape = T.shape[::-1]
        self.T = T
        self.nbytes = T.nbytes
        # Bytes ahead of its loops that a pass asks for: see compiled.choose_ahead. All passes with these weights share
        # them.
        self.ahead = np.zeros(4, np.int64)

    @classmethod
    def packed(cls, wte: np.ndarray, dtype: str = "float32") -> "PackedEmbedding":  # [n_vocab, n_embd]
        return cls(PackedWeight.packed(wte.T, formats.find(dtype).embedding))

    def __getitem__(self, ids):  # [n] -> [n, n_embd]
        return self.T.columns(ids)


def packer(dtype: str) -> Callable:
    """convert(name, array) for the loader: matrices that are multiplied come out packed, all else as it is.

    If nothing is compiled, they come out as arrays of the numbers that are stored: NumPy multiplies by these.
    """
    format = formats.find(dtype)

    def convert(name, array):
        if name == "wte":
            rounded = formats.find(format.embedding).round
            return PackedEmbedding.packed(array, dtype) if library() else rounded(array.T).T
        if name.endswith("/w"):
            return PackedWeight.packed(array, dtype) if library() else format.round(array)
        return array

    return convert


def pack(params: Any, convert: Callable, name: str = "") -> Any:
    """A nested dict of arrays, as the loader would have given it with this convert(name, array). What is packed already
    stays; the names are made of the keys: wte, attn/c_proj/w."""
    if isinstance(params, dict):
        return {key: pack(value, convert, f"{name}/{key}" if name else key) for key, value in params.items()}
    if isinstance(params, list):
        return [pack(block, convert) for block in params]
    return convert(name, params) if isinstance(params, np.ndarray) else params


# ---- For files of packed weights -------------------------------------------------------------------------------------


def layout(dtype: str) -> str:
    """A name for the way in which weights are packed: files with another one must be packed anew."""
    return f"{dtype}, tiles of {lanes()}, packing 1"


def arrays_of(name: str, value: Any) -> dict[str, np.ndarray]:
    """The arrays of a tensor, {name: array}: {"h0/mlp/c_fc/w/tiles": .., "h0/mlp/c_fc/w/scale": ..} if it is packed."""
    weight = value.T if isinstance(value, PackedEmbedding) else value
    if not isinstance(weight, PackedWeight):
        return {name: value}
    arrays = {"tiles": weight.tiles, "scale": weight.scale}
    return {f"{name}/{part}": array for part, array in arrays.items() if array is not None}


def of_arrays(name: str, shape: tuple[int, ...], dtype: str, arrays: dict[str, np.ndarray]) -> Any:
    """The tensor of these arrays, which may be mapped. shape: of the tensor before it was packed."""
    if name == "wte":
        return PackedEmbedding(PackedWeight(shape[::-1], formats.find(dtype).embedding, **parts_of(name, arrays)))
    return PackedWeight(shape, dtype, **parts_of(name, arrays)) if name.endswith("/w") else arrays[name]


def parts_of(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {part: arrays[f"{name}/{part}"] for part in ("tiles", "scale") if f"{name}/{part}" in arrays}


def shapes_of(name: str, shape: tuple[int, ...], dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What arrays_of will give for a tensor of this shape: {name: (NumPy's type, shape)}."""
    if name == "wte":
        packed = shapes(*shape[::-1], formats.find(dtype).embedding)
    elif name.endswith("/w"):
        packed = shapes(*shape, dtype)
    else:
        return {name: ("float32", shape)}
    return {f"{name}/{part}": ("uint8" if part == "tiles" else "float32", of) for part, of in packed.items()}
