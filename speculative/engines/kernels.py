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
from numba import carray, cfunc, types
from numba.extending import intrinsic

from speculative.engines import cpu, formats, llvm
from speculative.engines.cpu import BLOCK, this_cpu
from speculative.engines.formats.base import Area, Format
from speculative.engines.llvm import I64, POINTER, Words
from speculative.engines.packed import aligned
from speculative.support.errors import UserError

LANES = this_cpu().lanes
ROWS = this_cpu().rows
MOST_ROWS = 32  # in a pass of any format
# What depends on the CPU and changes no bit (tuning.py). ahead: for each number of rows in a pass, how many bytes ahead
# of the loop memory is asked for; 0: not at all. rows: in a pass, at most; 0: as many as the format's kernel can take.
# share: bytes. Where there is more than one pass, each goes over so much of a tile before the next part of it, which
# stays in a core's cache meanwhile.
PLAN = np.dtype([("ahead", np.int64, MOST_ROWS + 1), ("rows", np.int64), ("share", np.int64)])


# ---- A few rows times a part of a tile -------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def accumulate(typing, name, n_rows, x, x_stride, tile, out, out_stride, n_steps, ahead):
    """out[:n_rows, :LANES] += x[:n_rows] @ tile, summed over the inputs in order, by the format of that name.

    n_rows is 1 to the format's most_rows, n_steps at least 1. x, tile and out are addresses; strides are bytes from row
    to row. ahead: how many bytes ahead memory is asked for; 0: not at all.
    """
    signature = types.void(name, *[types.int64] * 8)
    format = building[name.literal_value]

    def codegen(context, builder, signature, arguments):
        _, n_rows, x, x_stride, tile, out, out_stride, n_steps, ahead = arguments
        words = Words(builder)
        x, tile, out = (builder.inttoptr(address, POINTER) for address in (x, tile, out))
        end = builder.append_basic_block()
        switch = builder.switch(n_rows, end)
        for n in range(1, format.most_rows(words.cpu) + 1):
            block = builder.append_basic_block()
            switch.add_case(I64(n), block)
            builder.position_at_end(block)
            out_rows = area(words, out, out_stride, n)
            sums = format.begin(words, out_rows)
            sums = multiply_steps(words, format, area(words, x, x_stride, n), tile, sums, n_steps, ahead)
            format.end(words, out_rows, sums)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, codegen


def area(words, address, stride, n):
    return Area([words.at(address, words.times(stride, row)) for row in range(n)], stride)


def multiply_steps(words, format, x, tile, sums, n_steps, ahead):
    """The loop over the steps. It hands a format its part of the tile and of each row: step_bytes and x_bytes of them,
    which nothing checks."""
    loop = words.loop(n_steps, sums)
    tile_here = words.at(tile, words.times(loop.i, format.step_bytes(words.cpu)))
    words.prefetch(tile_here, ahead, format.step_bytes(words.cpu))
    n_bytes = words.times(loop.i, x_bytes(format))
    x_here = Area([words.at(row, n_bytes) for row in x.rows], x.stride)
    sums = format.multiply(words, x_here, tile_here, loop.values)
    loop.end(sums)
    return sums


def x_bytes(format: Format) -> int:
    """The bytes of a row that a step reads."""
    return format.rows.bytes(this_cpu()) * format.step // BLOCK


# ---- A format's functions --------------------------------------------------------------------------------------------


class Kernels(NamedTuple):
    """A format's compiled functions; each has an `address`."""

    # (n_rows, x, x_stride, tile, out, out_stride, n_steps, plan): out += x @ tile, for any number of rows
    multiply: Any
    # (tile, lane, first, last, out): inputs first to last of a channel, before any scale; or None
    look_up: Any
    # (x, out, n_blocks): out is a row of x as multiply reads it; or None where that is x itself
    prepare: Any


building: dict[str, Format] = {}  # by name, for the functions below that are given a name


@functools.cache
def kernels_of(name: str) -> Kernels:
    """Compiled, or read from where numba keeps what it has compiled. Raises UserError where the kernel of a format does
    not give what its plain product gives."""
    format = formats.find(name)
    faster = format.faster(this_cpu(), format)
    if faster:
        found = build(faster, VERSION)
        if agrees(faster, found):
            return found
    built_in = Path(format.multiply.__code__.co_filename).parent == Path(formats.__file__).parent
    found = build(format, VERSION if built_in else None)
    if not built_in and not agrees(format, found):
        raise UserError(f"the kernel of the weight format {name} does not give what its plain product gives")
    return found


def build(format: Format, version: int | None) -> Kernels:
    """numba keeps them on the disk, and not at all where version is None."""
    building[format.name] = format
    look_up = compile_look_up(format.name, version) if format.lookup else None
    prepare = compile_prepare(format.name, version) if format.rows.build else None
    return Kernels(compile_multiply(format, version), look_up, prepare)


SOURCES = [__file__, llvm.__file__, cpu.__file__, *sorted(map(str, Path(formats.__file__).parent.glob("*.py")))]
VERSION = crc32(b"".join(Path(source).read_bytes() for source in SOURCES))


def kept(version: int | None, n: int) -> Any:
    """Makes a C function of n numbers. numba keeps it on the disk under a key with all the numbers that it uses, and
    not at all where version, which is to be one of them, is None."""
    return cfunc(types.void(*[types.int64] * n), cache=version is not None, error_model="numpy")


def compile_multiply(format: Format, version: int | None):
    name = format.name
    x_step = x_bytes(format)
    tile_step = format.step_bytes(this_cpu())
    most_rows = format.most_rows(this_cpu())

    @kept(version, 8)
    def multiply(n_rows, x, x_stride, tile, out, out_stride, n_steps, plan):
        _ = version
        plan = carray(pointer(plan), 1, PLAN)[0]
        most = min(plan.rows, most_rows) if plan.rows else most_rows
        n_passes = (n_rows + most - 1) // most
        rows = (n_rows + n_passes - 1) // n_passes  # as many in each: a pass of one row would cost nearly as much
        together = max(1, plan.share // tile_step) if n_passes > 1 else n_steps
        for first in range(0, n_steps, together):
            for row in range(0, n_rows, rows):
                n = min(rows, n_rows - row)
                accumulate(
                    name,
                    n,
                    x + row * x_stride + first * x_step,
                    x_stride,
                    tile + first * tile_step,
                    out + row * out_stride,
                    out_stride,
                    min(together, n_steps - first),
                    plan.ahead[n] if row == 0 else 0,
                )

    return multiply


def compile_look_up(name: str, version: int | None):
    @kept(version, 5)
    def look_up(tile, lane, first, last, out):
        _ = version
        for k in range(first, last):
            look_up_one(name, tile, lane, k, out + 4 * k)

    return look_up


@intrinsic(prefer_literal=True)
def look_up_one(typing, name, tile, lane, k, out):
    """out[0] = one weight, before any scale. tile and out are addresses."""
    format = building[name.literal_value]

    def codegen(context, builder, signature, arguments):
        _, tile, lane, k, out = arguments
        words = Words(builder)
        number = format.lookup(words, builder.inttoptr(tile, POINTER), lane, k)
        words.store(number, builder.inttoptr(out, POINTER))
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 4), codegen


def agrees(format: Format, found: Kernels) -> bool:
    """True if a kernel computes its format's plain product, for more rows than a pass has and a tile of two and a half
    blocks."""
    rng = np.random.default_rng(0)
    n_rows = format.most_rows(this_cpu()) + 2
    n_in = 2 * BLOCK + BLOCK // 2
    x = np.pad(rng.standard_normal((n_rows, n_in), np.float32), ((0, 0), (0, BLOCK // 2)))  # [n_rows, n_in padded]
    stored = format.round(rng.standard_normal((n_in, LANES), np.float32))
    given = format.tile(stored, this_cpu())
    tile = aligned(given.shape, np.uint8)
    tile[:] = given
    rows = prepared(x, format, found)
    out = np.zeros((n_rows, LANES), np.float32)
    plan = np.zeros(1, PLAN)
    where = (rows.ctypes.data, rows.strides[0], tile.ctypes.data, out.ctypes.data, out.strides[0], len(tile))
    found.multiply.ctypes(*map(ctypes.c_int64, (n_rows, *where, plan.ctypes.data)))
    out = out if stored.scale is None else out * stored.scale
    return np.allclose(out, format.product(x[:, :n_in], stored), rtol=1e-4, atol=1e-4)


def compile_prepare(name: str, version: int | None):
    @kept(version, 3)
    def prepare(x, out, n_blocks):
        _ = version
        prepare_row(name, x, out, n_blocks)

    return prepare


@intrinsic(prefer_literal=True)
def prepare_row(typing, name, x, out, n_blocks):
    build = building[name.literal_value].rows.build

    def codegen(context, builder, signature, arguments):
        _, x, out, n_blocks = arguments
        build(Words(builder), builder.inttoptr(x, POINTER), builder.inttoptr(out, POINTER), n_blocks)
        return context.get_dummy_value()

    return types.void(name, *[types.int64] * 3), codegen


def prepared(x: np.ndarray, format: Format, kernels: Kernels) -> np.ndarray:  # [n_rows, n_in] -> bytes [n_rows, n]
    """Rows as the format's kernel reads them. n_in is a multiple of BLOCK."""
    if not kernels.prepare:
        return x.view(np.uint8)
    n_blocks = x.shape[1] // BLOCK
    out = np.zeros((len(x), n_blocks * format.rows.bytes(this_cpu())), np.uint8)  # [n_rows, n]
    for row, prepared_row in zip(x, out, strict=True):
        kernels.prepare.ctypes(*map(ctypes.c_int64, (row.ctypes.data, prepared_row.ctypes.data, n_blocks)))
    return out


@intrinsic
def pointer(typing, address):
    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], POINTER)

    return types.voidptr(types.int64), codegen


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
