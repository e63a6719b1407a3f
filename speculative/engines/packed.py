"""Packed weights: each matrix cut into the tiles that the kernels read, in one of the weight formats (formats/).

compiled.py multiplies with the tiles. gpt2.py may go on saying x @ w: that is the plain product with the matrix that
the tiles stand for, what runs where numba is not installed, and the tests' oracle.
"""

import contextlib
import functools
import mmap
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from speculative.engines import cpu, formats
from speculative.engines.cpu import BLOCK, this_cpu
from speculative.engines.formats.base import Format, Stored
from speculative.support.compiling import announced, compiled
from speculative.support.errors import UserError
from speculative.support.limits import most_threads

PARTS = 2 * most_threads()  # of a matrix, that are packed side by side


@functools.cache
def workers() -> ThreadPoolExecutor:
    """Threads for compiled code, which does not hold Python's lock."""
    return ThreadPoolExecutor(PARTS // 2)


def huge(shape) -> np.ndarray:  # -> uint8 zeros [*shape]
    """Memory for weights, in the largest pages that the system gives: a system that hands out gigabytes 4 kB at a time
    takes longer for that than packing does."""
    if np.prod(shape) < 2**21 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned(shape, np.uint8)
    return pages(shape, np.uint8, mmap.MADV_HUGEPAGE)


def sparse(shape, dtype) -> np.ndarray:  # -> zeros [*shape]
    """Memory for a cache, in small pages: it takes only what is written. NumPy would ask for large pages, and one
    token, which has a place for each layer and head, would touch them all."""
    if np.prod(shape) * np.dtype(dtype).itemsize < 2**21 or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return aligned(shape, dtype)
    return pages(shape, dtype, mmap.MADV_NOHUGEPAGE)


def pages(shape, dtype, advice: int) -> np.ndarray:  # -> zeros [*shape]
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    # Private: large pages are not given for memory that processes may share, and what lies there is read more slowly.
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages
        memory.madvise(advice)
    return np.frombuffer(memory, dtype).reshape(shape)


def aligned(shape, dtype):  # -> zeros [*shape], at a multiple of 64 bytes: the kernels' loads of tiles need that
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)  # [size + 64]
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def tiles_shape(shape: tuple[int, int], dtype: str) -> tuple[int, int, int]:
    """The tiles of a matrix [n_in, n_out], the steps of a tile, and the bytes of a step."""
    n_in, n_out = shape
    format = formats.find(dtype)
    return -(-n_out // this_cpu().lanes), -(-n_in // format.step), format.step_bytes(this_cpu())


def scale_shape(tiles_shape: tuple[int, int, int]) -> tuple[int]:
    return (tiles_shape[0] * this_cpu().lanes,)


class PackedWeight:
    """A weight [n_in, n_out], cut into tiles of `lanes` output channels; zeros fill up the last tile and step."""

    __array_ufunc__ = None  # makes NumPy leave x @ self to __rmatmul__

    def __init__(self, shape: tuple[int, int], dtype: str, tiles: np.ndarray, scale: np.ndarray | None):
        """shape: [n_in, n_out]. tiles and scale: what packing, which `packed` does, made of the weight."""
        self.shape = shape
        self.format = formats.find(dtype)
        self.cpu = this_cpu()
        self.tiles = tiles  # uint8, of tiles_shape
        self.scale = scale  # [n_tiles * lanes], or None
        self.n_steps = tiles.shape[1]

    @classmethod
    def packed(cls, w: np.ndarray, dtype: str = "float32") -> "PackedWeight":  # [n_in, n_out] float32
        """Packs a matrix: one tile after another, so that this needs no second copy; several at a time, one in each
        thread."""
        tiles = huge(tiles_shape(w.shape, dtype))
        scale = None
        if formats.find(dtype).channel_bytes:
            scale = np.ones(scale_shape(tiles.shape), np.float32)
        weight = cls(w.shape, dtype, tiles, scale)
        pack = weight.round
        if weight.format.fill and cpu.has_numba():
            pack = partial(weight.fill, fill=filler(weight.format))
        parts = [range(len(tiles))[i::PARTS] for i in range(PARTS)]
        list(workers().map(partial(pack, w), parts))  # list, so that an exception is raised here
        return weight

    def parts(self, w, tiles) -> Iterator[tuple[int, np.ndarray]]:  # [n_in, n_out]
        """(i, its channels [n_in, lanes]) for some of the tiles, with zeros where the last has no channel. All are in
        the same memory: the system takes longer to give it than packing takes."""
        lanes = self.cpu.lanes
        part = np.zeros((self.shape[0], lanes), np.float32)  # [n_in, lanes]
        for i in tiles:
            channels = w[:, i * lanes : (i + 1) * lanes]  # [n_in, n], n <= lanes
            n = channels.shape[1]
            part[:, :n] = channels
            part[:, n:] = 0
            yield i, part

    def fill(self, w, tiles, fill: Callable) -> None:  # [n_in, n_out]
        """Packs some of the tiles by the format's fill, compiled."""
        nothing = np.empty(0, np.float32)
        lanes = self.cpu.lanes
        for i, part in self.parts(w, tiles):
            scale = nothing if self.scale is None else self.scale[i * lanes : (i + 1) * lanes]  # [lanes]
            fill(part, self.tiles[i].reshape(-1), scale, self.format.dot(self.cpu).inputs)

    def round(self, w, tiles) -> None:  # [n_in, n_out]
        """The same by the format's round and tile, in NumPy."""
        lanes = self.cpu.lanes
        for i, part in self.parts(w, tiles):
            stored = self.format.round(part)
            self.tiles[i] = self.format.tile(stored, self.cpu)
            if stored.scale is not None:
                self.scale[i * lanes : (i + 1) * lanes] = stored.scale

    @property
    def dtype(self) -> str:
        return self.format.name

    @property
    def nbytes(self) -> int:
        """Bytes of memory, all of which each product reads."""
        return self.tiles.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def __rmatmul__(self, x):  # [n_rows, n_in] float32 -> [n_rows, n_out] float32
        return self.format.rows.plain(x) @ self.dequantize()

    def stored(self, tile: int) -> Stored:
        """The channels of a tile as they were rounded, with those that fill it up."""
        lanes = self.cpu.lanes
        scale = None if self.scale is None else self.scale[tile * lanes : (tile + 1) * lanes]  # [lanes]
        return self.format.untile(self.tiles[tile], self.shape[0], self.cpu)._replace(scale=scale)

    def columns(self, ids) -> np.ndarray:  # [n] -> [n, n_in] float32
        """The weights of some output channels."""
        ids = np.asarray(ids)
        found = np.empty((len(ids), self.shape[0]), np.float32)  # [n, n_in]
        tiles = ids // self.cpu.lanes  # [n]
        for tile in np.unique(tiles):
            here = tiles == tile
            found[here] = self.format.widen(self.stored(tile)).T[ids[here] % self.cpu.lanes]
        return found

    def dequantize(self) -> np.ndarray:  # -> [n_in, n_out] float32
        """The matrix that this weight stands for: the model as stored."""
        return self.columns(np.arange(self.shape[1])).T


@functools.cache
def filler(format: Format) -> Callable:
    """A format's fill, compiled. Raises UserError where it does not give the bits of round and tile, on a small matrix:
    whoever writes a format after another's pattern changes the one and forgets the other."""
    fill = compiled(format.fill)
    this = this_cpu()
    n_in = 2 * BLOCK + 3
    w = np.random.default_rng(0).standard_normal((n_in, this.lanes), np.float32)  # [n_in, lanes]
    n_steps = -(-n_in // format.step)
    filled = np.zeros(n_steps * format.step_bytes(this), np.uint8)  # [n_steps * step_bytes]
    scale = np.ones(this.lanes if format.channel_bytes else 0, np.float32)
    with announced(f"what packs {format.name}"):
        fill(w, filled, scale, format.dot(this).inputs)
    stored = format.round(w)
    same = np.array_equal(filled, format.tile(stored, this).reshape(-1))
    if not same or (stored.scale is not None and not np.array_equal(scale, stored.scale)):
        raise UserError(f"the weight format {format.name} contradicts itself: fill does not give what its tile does")
    return fill


class PackedEmbedding:
    """wte [n_vocab, n_embd], packed once for both its uses: wte[ids] looks up, x @ wte.T multiplies."""

    def __init__(self, T: PackedWeight):  # [n_embd, n_vocab]
        self.shape = T.shape[::-1]
        self.T = T
        self.nbytes = T.nbytes

    @classmethod
    def packed(cls, wte: np.ndarray, dtype: str = "float32") -> "PackedEmbedding":  # [n_vocab, n_embd]
        return cls(PackedWeight.packed(wte.T, formats.find(dtype).embedding))

    def __getitem__(self, ids):  # [n] -> [n, n_embd]
        return self.T.columns(ids)


def compile_for(dtypes: Iterable[str]) -> None:
    """Compiles what packs these formats, or loads it from the disk."""
    if cpu.has_numba():
        for dtype in dtypes:
            for name in (dtype, formats.find(dtype).embedding):
                if formats.find(name).fill:
                    filler(formats.find(name))


def packer(dtype: str) -> Callable:
    """convert(name, array) for the loader: matrices that are multiplied come out packed, all else as it is.

    So does everything where nothing is compiled and nothing is to be rounded: NumPy multiplies by arrays.
    """
    if formats.find(dtype) is formats.FLOAT32 and not cpu.has_numba():
        return lambda name, array: array

    def convert(name, array):
        if name == "wte":
            return PackedEmbedding.packed(array, dtype)
        if name.endswith("/w"):
            return PackedWeight.packed(array, dtype)
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
