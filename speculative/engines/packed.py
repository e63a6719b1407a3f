"""Packed weights: each matrix cut into the tiles that the kernels read, in 4, 2 or 1 bytes a weight.

A weight is stored as float32, as bfloat16 (the upper 16 bits of a float32) or as int8 (whole numbers from -127 to 127
and one scale per output channel). compiled.py multiplies with the tiles. gpt2.py may go on saying x @ w: that is the
plain product with the matrix that the tiles stand for, what runs where numba is not installed, and the tests' oracle.
"""

import functools
import os
import sys
import tempfile
from collections.abc import Callable

import numpy as np

from plumbing.errors import UserError
from speculative.engines.plain import PlainPass, n_bytes

DTYPES = {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8}  # how a weight is stored
THREAD_BYTES = 2**23  # of weights for each thread at least: one that reads fewer costs more than it saves
BLOCK = 32  # inputs of an int8 product that share one scale of the row


def aligned(shape, dtype):  # -> zeros [*shape], beginning at a multiple of 64 bytes, as vector loads like it
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)  # [size + 64]
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def store(w, dtype):  # [n_in, n] float32 -> [n_in, n] as DTYPES[dtype], scale [n] or None
    """Rounds float32 weights to how they are stored, bfloat16 to nearest even, int8 symmetric by channel."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(w).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16), None
    if dtype == "int8":
        scale = np.max(np.abs(w), axis=0) / 127  # [n]
        scale[scale == 0] = 1
        return np.rint(w / scale).astype(np.int8), scale
    return w, None


def widen(stored):  # [...] as in DTYPES -> [...] float32, before any scale
    """The float32 number that each stored weight stands for."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


class PackedWeight:
    """A weight [n_in, n_out], cut into tiles of LANES output channels; zeros fill up the last tile and step."""

    __array_ufunc__ = None  # makes NumPy leave x @ self to __rmatmul__

    def __init__(self, w, dtype="float32"):  # [n_in, n_out] float32
        n_in, n_out = self.shape = w.shape
        self.dtype = dtype
        self.lanes, per_k, step = kernels().layout(dtype) if kernels() else (32, 1, 1)
        n_tiles, n_k = -(-n_out // self.lanes), -(-n_in // step) * step // per_k
        self.tiles = aligned((n_tiles, n_k, self.lanes, per_k), DTYPES[dtype])  # [n_tiles, n_k, lanes, per_k]
        self.scale = np.ones(n_tiles * self.lanes, np.float32) if dtype == "int8" else None  # [n_tiles * lanes]
        for i in range(n_tiles):  # one after another, so that packing needs no second copy of w
            channels = slice(i * self.lanes, min(n_out, (i + 1) * self.lanes))
            stored, scale = store(w[:, channels], dtype)  # [n_in, <= lanes]
            for j in range(per_k):
                part = stored[j::per_k]
                self.tiles[i, : len(part), : part.shape[1], j] = part
            if scale is not None:
                self.scale[channels] = scale

    @property
    def nbytes(self):
        """Bytes of memory, all of which each product reads."""
        return self.tiles.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def __rmatmul__(self, x):  # [n_rows, n_in] float32 -> [n_rows, n_out] float32
        return x @ self.dequantize()

    def columns(self, ids):  # [n] -> [n, n_in] float32
        """The weights of some output channels."""
        ids = np.asarray(ids)
        columns = widen(self.tiles[ids // self.lanes, :, ids % self.lanes])  # [n, n_k, per_k]
        columns = columns.reshape(len(ids), columns.shape[1] * columns.shape[2])[:, : self.shape[0]]  # [n, n_in]
        return columns if self.scale is None else columns * self.scale[ids, None]

    def dequantize(self):  # -> [n_in, n_out] float32
        """The matrix that this weight stands for: the model as stored."""
        return self.columns(np.arange(self.shape[1])).T


class PackedEmbedding:
    """wte [n_vocab, n_embd], packed once for both its uses: wte[ids] looks up, x @ wte.T multiplies."""

    def __init__(self, wte, dtype="float32"):
        self.shape = wte.shape
        self.T = PackedWeight(wte.T, dtype)
        self.nbytes = self.T.nbytes

    def __getitem__(self, ids):  # [n] -> [n, n_embd]
        return self.T.columns(ids)


def packer(dtype):
    """convert(name, array) for the loader: matrices that are multiplied come out packed, all else as it is.

    So does everything where no kernels are and nothing is to be rounded: NumPy multiplies by arrays.
    """
    if dtype == "float32" and not kernels():
        return lambda name, array: array

    def convert(name, array):
        if name == "wte":
            return PackedEmbedding(array, dtype)
        return PackedWeight(array, dtype) if name.endswith("/w") else array

    return convert


def pack(params, convert, name=""):
    """A nested dict of arrays, as the loader would have given it with this packer's convert."""
    if isinstance(params, dict):
        return {key: pack(value, convert, f"{name}/{key}" if name else key) for key, value in params.items()}
    if isinstance(params, list):
        return [pack(value, convert, name) for value in params]
    return convert(name, params) if isinstance(params, np.ndarray) else params


def reference_matmul(x, w):  # [n_rows, n_in], [n_in, n_out] -> [n_rows, n_out]
    """What the kernels compute, plainly: each output is summed over the inputs in order, whatever rows stand beside it.

    (They round once for each multiply-add, and NumPy, which has no such operation, twice.)
    """
    out = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for k in range(x.shape[1]):
        out += x[:, k : k + 1] * w[k]  # [n_rows, 1] * [n_out]
    return out


def round_rows(x):  # [n_rows, n_in] float32, n_in a multiple of BLOCK -> the same shape int, [n_rows, n_in / BLOCK]
    """Rows as int8 products take them: whole numbers up to 127, and for each block of inputs what they count."""
    blocks = x.reshape(len(x), -1, BLOCK)  # [n_rows, n_blocks, BLOCK]
    most = np.max(np.abs(blocks), axis=-1)  # [n_rows, n_blocks]
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 1e-30)  # [n_rows, n_blocks]
    return np.rint(blocks * inverse[..., None]).astype(int).reshape(x.shape), most / np.float32(127)


def reference_matmul_int8(x, w, scale):  # [n_rows, n_in], [n_in, n_out] int8, [n_out] -> [n_rows, n_out]
    """The same for int8: exact sums over each block of inputs, which are scaled and added up in order.

    In float64, where a product of float32s is exact, and so rounded once, as by one fused multiply-add.
    """
    n_more = -len(w) % BLOCK
    x, w = np.pad(x, ((0, 0), (0, n_more))), np.pad(w, ((0, n_more), (0, 0)))
    rounded, row_scale = round_rows(x)  # [n_rows, n_in], [n_rows, n_blocks]
    out = np.zeros((len(x), w.shape[1]), np.float32)
    for block, part_scale in enumerate(row_scale.T):  # [n_rows]
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        exact = rounded[:, part] @ w[part].astype(int)  # [n_rows, n_out]
        out = (part_scale[:, None].astype(np.float64) * exact + out).astype(np.float32)
    return out * scale


@functools.cache
def kernels():
    """The module compiled_pass, or None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    go_on_where_nothing_can_be_kept()
    try:
        from speculative.engines import compiled_pass
    except RuntimeError:  # neither the source's folder nor the user's cache can be written
        say_nothing_is_kept("no folder for it can be written to")
        try:
            kernels.folder = tempfile.TemporaryDirectory()  # until the program ends
        except OSError as error:
            raise UserError("numba needs a folder to write to: NUMBA_CACHE_DIR or TMPDIR names one") from error
        numba.config.CACHE_DIR = kernels.folder.name
        from speculative.engines import compiled_pass
    return compiled_pass


def go_on_where_nothing_can_be_kept():
    """numba ends with an OSError where it cannot write what it has compiled; now it does without."""
    from numba.core.caching import Cache

    save = Cache.save_overload

    def save_overload(self, sig, data):
        try:
            save(self, sig, data)
        except OSError as error:
            say_nothing_is_kept(error.strerror)

    Cache.save_overload = save_overload


@functools.cache
def say_numpy_multiplies():
    print(
        "numba is not installed, so NumPy multiplies: K+1 rows cost several times what one costs, and greedy texts "
        "may differ by rounding. pip install numba helps",
        file=sys.stderr,
    )


@functools.cache
def say_nothing_is_kept(why):
    print(f"numba cannot keep what it compiles ({why}), so every run compiles; NUMBA_CACHE_DIR helps", file=sys.stderr)


def new_pass(params: dict, hparams: dict) -> Callable:
    """A forward pass with a cache of its own: compiled, or gpt2.py where numba is not installed."""
    if not kernels():
        return PlainPass(params, hparams)
    compiled, useful = kernels(), 1 + n_bytes(params) // THREAD_BYTES
    return compiled.CompiledPass(
        params, hparams, lambda: compiled.choose_team(min(n_threads or most_threads(), useful))
    )


def warm_up():
    """Compiles the forward pass, or loads it from the disk, so that no timed part has to.

    Compiling happens once on a machine, and says so; numba keeps the result beside the source or in the user's cache.
    """
    if not kernels():
        return say_numpy_multiplies()
    from numba.core import event

    class Announcer(event.Listener):
        said = False

        def on_start(self, event):
            if not self.said:
                print("compiling the forward pass, once on this machine ...", file=sys.stderr, flush=True)
            self.said = True

        def on_end(self, event):
            pass

    with event.install_listener("numba:compile", Announcer()):
        kernels().compile_all()


n_threads = None  # of the next forward pass; None: one for each core


def most_threads() -> int:
    """How many threads can be asked for: one for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(n: int | None = None) -> None:
    """Makes the forward pass and NumPy's BLAS use n threads each, or one for each core. Raises UserError."""
    import threadpoolctl

    global n_threads
    n = n or most_threads()
    if not 1 <= n <= most_threads():
        raise UserError(f"{n} threads: this machine has cores for 1 to {most_threads()}")
    n_threads = n
    threadpoolctl.threadpool_limits(n)
