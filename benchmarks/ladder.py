"""From three plain loops to the speed of the memory: each rung of docs/kernels.md, timed.

    python -m benchmarks.ladder

The first rungs multiply 1 row, or a window of 5, by one matrix that fits into no cache, in one thread. GB/s is the
bytes of the matrix, as stored, over the time: one row uses each weight once, so this is what counts. The last rungs are
whole forward passes of the bundled target. All are medians of rounds in which the rungs take turns.
"""

from functools import partial

import numpy as np
from numba import njit
from speculative.engines.tuning import plan_of

from benchmarks.bandwidth import read
from benchmarks.common import MODELS, Parser, count
from benchmarks.tables import forward, table, take_turns
from speculative.checkpoints.loading import load_encoder_and_hparams, load_params
from speculative.engines import formats, kernels, packed, plain, runtime
from speculative.support.errors import guarded

N_IN = 1600
N_OUT = 32 * 1600  # about the output matrix of 1558M: 328 MB of float32
WINDOW = 5  # rows


@njit(error_model="numpy")
def naive(x, w, out):  # [n_rows, n_in], [n_in, n_out], [n_rows, n_out]
    """The definition: each output is a sum over the inputs, whose weights lie n_out apart."""
    for row in range(x.shape[0]):
        for channel in range(w.shape[1]):
            total = np.float32(0)
            for k in range(w.shape[0]):
                total += x[row, k] * w[k, channel]
            out[row, channel] = total


@njit(error_model="numpy")
def tiled(x, tiles, out):  # [n_rows, n_in], [n_tiles, n_in, LANES, 1], [n_rows, n_tiles, LANES]
    """The same sums, LANES channels at a time: weights are read in the order in which they are stored."""
    out[:] = 0
    for tile in range(tiles.shape[0]):
        for k in range(tiles.shape[1]):
            for row in range(x.shape[0]):
                for lane in range(tiles.shape[2]):
                    out[row, tile, lane] += x[row, k] * tiles[tile, k, lane, 0]


@njit(error_model="numpy", nogil=True)
def in_registers(function, n_rows, x, x_stride, tiles, n_tiles, tile_bytes, out, n_steps, plan):
    """kernels.py's loop: the sums stay in registers. Addresses, and bytes from one to the next."""
    for tile in range(n_tiles):
        where = tiles + tile * tile_bytes
        into = out + tile * n_rows * 4 * kernels.LANES
        kernels.call(function, (n_rows, x, x_stride, where, into, 4 * kernels.LANES, n_steps, plan))


def multiply(weight, n_rows):
    """-> a function without arguments that multiplies n_rows rows by a packed weight."""
    x = packed.aligned((n_rows, weight.n_steps * kernels.x_bytes(weight.format)), np.uint8)
    out = packed.aligned((len(weight.tiles), n_rows, kernels.LANES), np.float32)
    tiles = (weight.tiles.ctypes.data, len(weight.tiles), weight.tiles[0].nbytes)
    into = out.ctypes.data
    plan = plan_of(weight.dtype).ctypes.data
    multiply = kernels.kernels_of(weight.dtype).multiply
    here = (multiply.address, n_rows, x.ctypes.data, x.strides[0], *tiles, into, weight.n_steps, plan)
    return lambda kept=(x, out, weight): in_registers(*here)


def rungs():
    """{name: (function, bytes of weights)}"""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((N_IN, N_OUT), np.float32)
    x = rng.standard_normal((WINDOW, N_IN), np.float32)
    weights = {dtype: packed.PackedWeight.packed(w, dtype) for dtype in formats.FORMATS}
    tiles = weights["float32"].tiles.view(np.float32).reshape(-1, N_IN, kernels.LANES, 1)
    out = np.empty((WINDOW, N_OUT), np.float32)
    tiled_out = np.empty((WINDOW, len(tiles), kernels.LANES), np.float32)
    found = {}
    for n in (1, WINDOW):
        rows = f"{n} row" + "s" * (n > 1)
        if n == 1:
            found["naive, 1 row"] = partial(naive, x[:1], w, out[:1]), w.nbytes
        found[f"NumPy, {rows}"] = partial(np.matmul, x[:n], w), w.nbytes
        found[f"tiled, {rows}"] = partial(tiled, x[:n], tiles, tiled_out[:n]), w.nbytes
        for dtype, weight in weights.items():
            found[f"in registers, {dtype}, {rows}"] = multiply(weight, n), weight.nbytes
    memory = np.ones(w.nbytes // 8, np.int64)
    return found | {"reading alone": (partial(read, memory, 1), memory.nbytes)}


def passes():
    """{name: (function, bytes of weights)}"""
    found = {}
    for name in ("gpt2.py", *formats.FORMATS):
        convert = packed.packer(name) if name in formats.FORMATS else None
        _, hparams = load_encoder_and_hparams("tiny-target", str(MODELS))
        params = load_params(str(MODELS / "tiny-target"), hparams, convert)
        run = (runtime.new_pass if convert else plain.PlainPass)(params, hparams)
        for n in (1, WINDOW):
            found[f"bundled target, {name}, {n} row" + "s" * (n > 1)] = partial(forward, run, n), plain.n_bytes(params)
    return found


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_argument("--rounds", type=count, default=9)
    o = parser.parse_args(argv)
    for threads, make in ((1, rungs), (None, passes)):
        runtime.set_threads(threads)
        found = make()
        times = take_turns({name: task for name, (task, _) in found.items()}, o.rounds)
        rows = [
            {"rung": name, "ms": 1e3 * times[name], "gb_per_s": n_bytes / times[name] / 1e9}
            for name, (_, n_bytes) in found.items()
        ]
        print(table(rows, "rung ms:.2f GB/s=gb_per_s:.1f"), flush=True)


if __name__ == "__main__":
    guarded(main)
