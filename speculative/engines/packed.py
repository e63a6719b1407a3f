"""Packed weights: what stands in a matrix's place in gpt2.py so that a few rows cost what one row costs.

A weight is cut into tiles and stored as float32, as bfloat16 (the upper 16 bits of a float32) or as int8 (whole numbers
from -127 to 127 and one scale per output channel). gpt2.py goes on saying x @ w; the product is computed by kernels.py
where numba is installed, as the two reference functions below show, and by NumPy where it is not.
"""

import functools
import os
import sys
import tempfile

import numpy as np

from speculative.engines.cached import KVCache
from speculative.errors import UserError

# Else a thread whose partner has no core to run on spins for half a second at the end of each product. The OpenMP that
# numba may use reads this when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

DTYPES = {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8}  # how a weight is stored


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
    """A weight [n_in, n_out], cut into tiles of LANES output channels; the last tile is filled up with zeros."""

    __array_ufunc__ = None  # makes NumPy leave x @ self to __rmatmul__

    def __init__(self, w, dtype="float32"):  # [n_in, n_out] float32
        n_in, n_out = self.shape = w.shape
        self.dtype = dtype
        self.lanes = lanes = kernels().LANES if kernels() else 32
        n_tiles = -(-n_out // lanes)
        per_k = 2 if dtype == "int8" else 1  # int8 kernels take two inputs in one step
        n_k = -(-n_in // per_k)
        self.tiles = aligned((n_tiles, n_k, lanes, per_k), DTYPES[dtype])  # [n_tiles, n_k, lanes, per_k]
        self.scale = np.ones(n_tiles * lanes, np.float32) if dtype == "int8" else None  # [n_tiles * lanes]
        for i in range(n_tiles):  # one after another, so that packing needs no second copy of w
            channels = slice(i * lanes, min(n_out, (i + 1) * lanes))
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
        if not kernels():
            return x @ self.dequantize()
        out = np.zeros((len(x), len(self.tiles) * self.lanes), np.float32)  # [n_rows, n_tiles * lanes]
        x, n_threads = np.ascontiguousarray(x), kernels().numba.get_num_threads()
        if self.scale is None:
            kernels().multiply(x, self.tiles, out, n_threads)
        else:
            kernels().multiply_int8(x, self.tiles, self.scale, out, n_threads)
        return out[:, : self.shape[1]]

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
    """convert(name, array) for the loader: matrices that are multiplied come out packed, all else as it is."""

    def convert(name, array):
        if name == "wte":
            return PackedEmbedding(array, dtype)
        return PackedWeight(array, dtype) if name.endswith("/w") else array

    return convert


class PackedKVCache:
    """KVCache's twin for the kernels: keys and values in tiles, so that attention is two packed products."""

    def __init__(self, n_layer, n_head, n_ctx, d_head):
        lanes = kernels().LANES
        n_tiles, d_tiles = -(-n_ctx // lanes), -(-d_head // lanes)
        self.length = 0
        self.keys = [aligned((n_head, n_tiles, d_head, lanes), np.float32) for _ in range(n_layer)]
        self.values = [aligned((n_head, d_tiles, n_ctx, lanes), np.float32) for _ in range(n_layer)]
        self.layers = [functools.partial(self.attend, *layer) for layer in zip(self.keys, self.values, strict=True)]

    def attend(self, keys, values, q, k, v):  # [n_head, n_new, d_head] thrice -> [n_head, n_new, d_head]
        """As KVCache.attend; keys [n_head, n_tiles, d_head, lanes], values [n_head, d_tiles, n_ctx, lanes]."""
        out = np.empty((q.shape[1], q.shape[0], q.shape[2]), np.float32)  # [n_new, n_head, d_head]
        kernels().attend(q, k, v, keys, values, self.length, out)
        return out.transpose(1, 0, 2)


def cache_class():
    """PackedKVCache, or KVCache where numba is not installed."""
    return PackedKVCache if kernels() else KVCache


def reference_matmul(x, w):  # [n_rows, n_in], [n_in, n_out] -> [n_rows, n_out]
    """What the kernels compute, plainly: each output is summed over the inputs in order, whatever rows stand beside it.

    (They round once for each multiply-add, and NumPy, which has no such operation, twice.)
    """
    out = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for k in range(x.shape[1]):
        out += x[:, k : k + 1] * w[k]  # [n_rows, 1] * [n_out]
    return out


def reference_matmul_int8(x, w, scale, block):  # [n_rows, n_in], [n_in, n_out] int8, [n_out] -> [n_rows, n_out]
    """The same for int8, to the bit: rows rounded to 16 bits, exact sums of a block of inputs, added up in float32."""
    row_scale = np.max(np.abs(x), axis=1, keepdims=True) / 32767  # [n_rows, 1]
    row_scale[row_scale == 0] = 1
    rounded = np.rint(x / row_scale).astype(int)  # [n_rows, n_in]
    out = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for k in range(0, x.shape[1], block):
        out += (rounded[:, k : k + block] @ w[k : k + block].astype(int)).astype(np.float32)
    return out * (row_scale * scale)


@functools.cache
def kernels():
    """The module kernels, or None where numba is not installed, which is said once."""
    try:
        import numba
    except ImportError:
        print(
            "numba is not installed, so NumPy multiplies: K+1 rows cost several times what one costs, and greedy texts "
            "may differ by rounding. pip install numba helps",
            file=sys.stderr,
        )
        return None
    try:
        from speculative.engines import kernels
    except RuntimeError:  # neither the source's folder nor the user's cache can be written: compile for this run only
        numba.config.CACHE_DIR = tempfile.mkdtemp()
        from speculative.engines import kernels
    return kernels


def warm_up(dtype):
    """Compiles the kernels for one dtype, or loads them from the disk, so that no timed part has to.

    Compiling happens once on a machine, and says so; numba keeps the result beside the source or in the user's cache.
    """
    if not kernels():
        return
    from numba.core import event

    class Announcer(event.Listener):
        said = False

        def on_start(self, event):
            if not self.said:
                print(f"compiling the {dtype} kernels, once on this machine ...", file=sys.stderr, flush=True)
            self.said = True

        def on_end(self, event):
            pass

    with event.install_listener("numba:compile", Announcer()):
        np.zeros((1, 1), np.float32) @ PackedWeight(np.zeros((1, 1), np.float32), dtype)
        PackedKVCache(1, 1, 1, 1).layers[0](*np.zeros((3, 1, 1, 1), np.float32))


def most_threads():
    """How many threads can be asked for: numba's limit, by default the number of cores."""
    return kernels().numba.config.NUMBA_NUM_THREADS if kernels() else os.cpu_count()


def set_threads(n=None):
    """Makes the kernels and NumPy's BLAS use n threads each, or as many as there are cores. Raises UserError."""
    import threadpoolctl

    n = n or most_threads()
    if not 1 <= n <= most_threads():
        raise UserError(f"{n} threads: this machine has cores for 1 to {most_threads()}")
    if kernels():
        kernels().numba.set_num_threads(n)
    threadpoolctl.threadpool_limits(n)
