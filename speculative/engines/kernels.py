"""The product that decoding consists of: a few rows times a packed weight, at the speed of the memory.

A decoding step multiplies 1 row (or the K+1 rows of a window) by every weight of the model. The weights come from
memory, a few bytes to a CPU cycle; in that cycle each core can do 16 or 32 multiply-adds. So a weight should be read
once, in the order in which it lies in memory, and used for all rows while it is in a register:

    tile    The weight is stored as tiles of LANES neighbouring output channels, with all their inputs in order. A tile
            is read from front to back, LANES weights (two vector registers) at a time.
    sums    Each pair (row, channel) has one accumulator, and they all stay in registers from the first input to the
            last: ROWS rows x LANES channels fit into the register file, beside the weights and x. Left to itself a
            compiler keeps them there for some row counts and spills them to memory for others; so the loops are
            written in LLVM's own language, as vectors, one for each row count and weight format.
    order   out[row, channel] = (((x[0] * w[0]) + x[1] * w[1]) + x[2] * w[2]) ..., each step one fused multiply-add, is
            what every loop computes (int8 and int4: over blocks of inputs, whose own sums are whole numbers and exact;
            a CPU without fused multiply-add rounds twice). How many rows there are decides which loop runs, but not
            what it computes, so the rows of a window equal the rows of single steps to the bit, and so do those of a
            prefill. The loops may stop after any step, store the sums and continue from there: that changes no bit.

What a loop does with one step of a tile is the weight format's (formats/), which also has the product in plain NumPy.
Each format has functions of its own here, which whoever multiplies calls at their addresses: no code knows how many
formats there are. docs/kernels.md leads up to this step by step.
"""

import ctypes
import functools
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

from plumbing.errors import UserError
from speculative.engines import cpu, formats, llvm
from speculative.engines.cpu import BLOCK, this_cpu
from speculative.engines.formats.base import Format
from speculative.engines.llvm import F32, I32, I64, POINTER, Words
from speculative.engines.packed import aligned

VECTOR = this_cpu().vector
LANES = this_cpu().lanes
ROWS = this_cpu().rows
# Bytes. Where there are more than ROWS rows, all of them go over so much of a tile before the next part of it: it stays
# in a core's first cache, and the next part is on its way meanwhile, as PREFETCH reaches about as far.
SHARE = 16384
ROUNDED_BYTES = this_cpu().rounded_bytes


# ---- A few rows times a part of a tile -------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def accumulate(typing, name, n_rows, x, x_stride, tile, out, out_stride, n_steps):
    """out[:n_rows, :LANES] += x[:n_rows] @ tile, summed over the inputs in order, by the format of that name.

    n_rows is 1 to ROWS, n_steps at least 1. x, tile and out are addresses; strides are bytes from row to row.
    """
    signature = types.void(name, *[types.int64] * 7)
    format = formats.find(name.literal_value)

    def codegen(context, builder, signature, arguments):
        _, n_rows, x, x_stride, tile, out, out_stride, n_steps = arguments
        words = Words(builder)
        words.allow_dot()
        x, tile, out = (builder.inttoptr(address, POINTER) for address in (x, tile, out))
        end = builder.append_basic_block()
        switch = builder.switch(n_rows, end)
        for n in range(1, ROWS + 1):
            block = builder.append_basic_block()
            switch.add_case(I64(n), block)
            builder.position_at_end(block)
            x_rows = [words.at(x, words.times(x_stride, row)) for row in range(n)]
            out_rows = [words.at(out, words.times(out_stride, row)) for row in range(n)]
            cells = [words.at(out_row, half * 4 * VECTOR) for out_row in out_rows for half in (0, 1)]
            sums = [words.load(cell, words.floats) for cell in cells]
            sums = multiply_steps(words, format, x_rows, tile, sums, n_steps)
            for cell, sum_ in zip(cells, sums, strict=True):
                words.store(sum_, cell)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, codegen


def multiply_steps(words, format, x_rows, tile, sums, n_steps):
    """The loop over the steps. It hands a format its part of the tile and of each row: tile_bytes and x_bytes of them,
    which nothing checks."""
    loop = words.loop(n_steps, sums)
    here = words.at(tile, words.times(loop.i, format.tile_bytes(words.cpu)))
    n_bytes = x_bytes(format)
    xs = [words.at(x_row, words.times(loop.i, n_bytes)) for x_row in x_rows]
    sums = format.multiply(words, xs, here, loop.values)
    loop.end(sums)
    return sums


def x_bytes(format: Format) -> int:
    """The bytes of a row that a step reads."""
    return ROUNDED_BYTES if format.rounds_rows else 4 * format.step(this_cpu())


@intrinsic
def round_row(typing, x, out, n_blocks):
    """Rounds a row for the formats that want it so, one BLOCK after the other: whole numbers up to 127, then what to
    multiply them by, and -128 times their sum.

    x and out are addresses, of n_blocks * BLOCK float32s and of n_blocks * ROUNDED_BYTES bytes.
    """

    def codegen(context, builder, signature, arguments):
        x, out, n_blocks = arguments
        words = Words(builder)
        rounded = ir.IntType(8 * np.dtype(words.cpu.rounded).itemsize)
        loop = words.loop(n_blocks, [])
        x = words.at(builder.inttoptr(x, POINTER), words.times(loop.i, 4 * BLOCK))
        out = words.at(builder.inttoptr(out, POINTER), words.times(loop.i, ROUNDED_BYTES))
        parts = [words.load(words.at(x, 4 * i), words.floats) for i in range(0, BLOCK, VECTOR)]

        most = words.full(words.integers, 0)
        for part in parts:  # without their sign, floats are in the order of their bits
            part = builder.and_(builder.bitcast(part, words.integers), words.full(words.integers, 0x7FFFFFFF))
            most = builder.select(builder.icmp_signed(">", part, most), part, most)
        most = builder.bitcast(words.call(f"llvm.vector.reduce.smax.v{VECTOR}i32", I32, most), F32)
        inverse = builder.fdiv(F32(127), most)
        inverse = builder.select(builder.fcmp_ordered(">", most, F32(1e-30)), inverse, F32(0))  # else it overflows

        sum_ = words.full(words.integers, 0)
        for i, part in enumerate(parts):
            part = builder.fmul(part, words.broadcast(inverse))
            part = builder.fptosi(words.call(f"llvm.rint.v{VECTOR}f32", words.floats, part), words.integers)
            sum_ = builder.add(sum_, part)
            part = builder.trunc(part, ir.VectorType(rounded, VECTOR))
            words.store(part, words.at(out, i * VECTOR * rounded.width // 8))
        sum_ = words.call(f"llvm.vector.reduce.add.v{VECTOR}i32", I32, sum_)
        words.store(builder.fdiv(most, F32(127)), words.at(out, ROUNDED_BYTES - 8))
        words.store(builder.mul(sum_, I32(-128)), words.at(out, ROUNDED_BYTES - 4))
        loop.end([])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


# ---- A format's functions --------------------------------------------------------------------------------------------


class Kernels(NamedTuple):
    """A format's compiled functions; each has an `address`."""

    multiply: Any  # (n_rows, x, x_stride, tile, out, out_stride, n_steps): out += x @ tile, for any number of rows
    look_up: Any  # (tile, lane, first, last, out): inputs first to last of a channel, before any scale; or None


@functools.cache
def kernels_of(name: str) -> Kernels:
    """Compiled, or read from where numba keeps what it has compiled. Raises UserError where the kernel of a format does
    not give what its plain product gives."""
    format = formats.find(name)
    built_in = Path(format.multiply.__code__.co_filename).parent == Path(formats.__file__).parent
    found = compile_kernels(format, format.lookup is not None, VERSION if built_in else None)
    if not built_in and not agrees(format, found):
        raise UserError(f"the kernel of the weight format {name} does not give what its plain product gives")
    return found


SOURCES = [__file__, llvm.__file__, cpu.__file__, *sorted(map(str, Path(formats.__file__).parent.glob("*.py")))]
VERSION = crc32(b"".join(Path(source).read_bytes() for source in SOURCES))


def compile_kernels(format: Format, has_lookup: bool, version: int | None) -> Kernels:
    """numba keeps them on the disk under a key with all the numbers here, and not at all where version is None."""
    name = format.name
    x_step = x_bytes(format)
    tile_step = format.tile_bytes(this_cpu())
    together = max(1, SHARE // tile_step)  # steps
    kept = {"cache": version is not None, "error_model": "numpy"}

    @cfunc(types.void(*[types.int64] * 7), **kept)
    def multiply(n_rows, x, x_stride, tile, out, out_stride, n_steps):
        _ = version
        n_passes = (n_rows + ROWS - 1) // ROWS
        rows = (n_rows + n_passes - 1) // n_passes  # as many in each: a pass of one row would cost nearly as much
        for first in range(0, n_steps, together):
            for row in range(0, n_rows, rows):
                accumulate(
                    name,
                    min(rows, n_rows - row),
                    x + row * x_stride + first * x_step,
                    x_stride,
                    tile + first * tile_step,
                    out + row * out_stride,
                    out_stride,
                    min(together, n_steps - first),
                )

    if not has_lookup:
        return Kernels(multiply, None)

    @cfunc(types.void(*[types.int64] * 5), **kept)
    def look_up(tile, lane, first, last, out):
        _ = version
        for k in range(first, last):
            look_up_one(name, tile, lane, k, out + 4 * k)

    return Kernels(multiply, look_up)


@intrinsic(prefer_literal=True)
def look_up_one(typing, name, tile, lane, k, out):
    """out[0] = one weight, before any scale. tile and out are addresses."""
    format = formats.find(name.literal_value)

    def codegen(context, builder, signature, arguments):
        _, tile, lane, k, out = arguments
        words = Words(builder)
        number = format.lookup(words, builder.inttoptr(tile, POINTER), lane, k)
        words.store(number, builder.inttoptr(out, POINTER))
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 4), codegen


def agrees(format: Format, found: Kernels) -> bool:
    """Whether a new format's kernel computes its plain product, for two rows and a tile of two and a half blocks."""
    rng = np.random.default_rng(0)
    n_in = 2 * BLOCK + BLOCK // 2
    x = np.pad(rng.standard_normal((2, n_in), np.float32), ((0, 0), (0, BLOCK // 2)))  # [2, n_in padded]
    stored = format.round(rng.standard_normal((n_in, LANES), np.float32))
    given = format.tile(stored, this_cpu())
    tile = aligned(given.shape, np.uint8)
    tile[:] = given
    rows = rounded(x) if format.rounds_rows else x
    out = np.zeros((2, LANES), np.float32)
    arguments = (2, rows.ctypes.data, rows.strides[0], tile.ctypes.data, out.ctypes.data, out.strides[0], len(tile))
    found.multiply.ctypes(*map(ctypes.c_int64, arguments))
    out = out if stored.scale is None else out * stored.scale
    return np.allclose(out, format.product(x[:, :n_in], stored), rtol=1e-4, atol=1e-4)


def compile_round_rows(version: int):
    """As compile_kernels."""

    @cfunc(types.void(*[types.int64] * 5), cache=True, error_model="numpy")
    def round_rows(n_rows, x, x_stride, out, out_stride):
        _ = version
        for row in range(n_rows):
            round_row(x + row * x_stride, out + row * out_stride, x_stride // (4 * BLOCK))

    return round_rows


round_rows = compile_round_rows(VERSION)


def rounded(x: np.ndarray) -> np.ndarray:  # [n_rows, n_in] -> bytes [n_rows, n_blocks, ROUNDED_BYTES]
    """Rows as the formats read them that want them rounded. n_in is a multiple of BLOCK."""
    out = np.zeros((len(x), x.shape[1] // BLOCK, ROUNDED_BYTES), np.uint8)
    round_rows.ctypes(*map(ctypes.c_int64, (len(x), x.ctypes.data, x.strides[0], out.ctypes.data, out.strides[0])))
    return out


@intrinsic
def call(typing, function, arguments):
    """Calls a function at an address with a tuple of int64s: it is compiled once, and not into each that calls it."""

    def codegen(context, builder, signature, values):
        address, packed = values
        operands = [builder.extract_value(packed, i) for i in range(len(arguments))]
        of_function = ir.FunctionType(ir.VoidType(), [I64] * len(operands))
        builder.call(builder.inttoptr(address, of_function.as_pointer()), operands)
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, len(arguments))), codegen
