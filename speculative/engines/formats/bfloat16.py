"""bfloat16: the upper 16 bits of a float32, so 2 bytes a weight, with 8 bits of precision.

Rows are rounded to it as well, and sums are float32s: PyTorch and JAX do the same, and some CPUs have an instruction
for it, which takes two inputs at once. How that rounds, and in which order it adds the two, is the CPU's affair; it is
the same for every row, so no bit depends on how many there are.
"""

import numpy as np

from speculative.engines.cpu import BLOCK, Cpu, Dot
from speculative.engines.formats import amx
from speculative.engines.formats.base import (
    Format,
    OnJax,
    Rows,
    Stored,
    interleave,
    number_at,
    separate,
    sum_in_order,
)


def dot(cpu: Cpu) -> Dot:
    """The CPU's instruction for bfloat16s. Without one, the rounded numbers are multiplied as float32s."""
    if "avx512bf16" in cpu.features and cpu.vector == 16:
        return Dot("llvm.x86.avx512bf16.dpbf16ps.512", 2)
    if "bf16" in cpu.features:
        return Dot("llvm.aarch64.neon.bfdot.v4f32.v16i8", 2)
    return Dot(None, 2)


def upper_half(w):  # [...] float32 -> [...] uint16
    """Rounds to nearest, and ties to even."""
    bits = np.ascontiguousarray(w).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_upper_half(bits):  # [...] uint16 -> [...] float32
    return (bits.astype(np.uint32) << 16).view(np.float32)


def widen(stored: Stored):  # -> [n_in, n] float32
    return from_upper_half(stored.numbers)


# ---- Rows ------------------------------------------------------------------------------------------------------------


def row_bytes(cpu: Cpu) -> int:
    """The bytes of a block: bfloat16s for the instruction, else float32s of the same values."""
    return BLOCK * (2 if dot(cpu).name else 4)


def build_row(words, x, out, n_blocks):
    """Rounds as upper_half does."""
    b = words.ir
    cpu = words.cpu

    def all_of(number):
        return words.full(words.integers, number)

    loop = words.loop(n_blocks, [])
    x = words.at(x, words.times(loop.i, 4 * BLOCK))
    out = words.at(out, words.times(loop.i, row_bytes(cpu)))
    for i in range(0, BLOCK, cpu.vector):
        bits = words.load(words.at(x, 4 * i), words.integers)
        odd = b.and_(b.lshr(bits, all_of(16)), all_of(1))
        bits = b.add(b.add(bits, all_of(0x7FFF)), odd)
        if dot(cpu).name:
            bits = b.trunc(b.lshr(bits, all_of(16)), words.vector(16, cpu.vector))
        else:
            bits = b.and_(bits, all_of(0xFFFF0000))
        words.store(bits, words.at(out, row_bytes(cpu) // BLOCK * i))
    loop.end([])


ROUNDED = Rows("bfloat16", row_bytes, lambda x: from_upper_half(upper_half(x)), build_row)


# ---- Weights ---------------------------------------------------------------------------------------------------------


def fill(w, tile, scale, dot):
    """Two inputs at once, as the 32 bits that they share."""
    bits = w.view(np.uint32)  # [n_in, n]
    pairs = tile.view(np.uint32).reshape(-1, w.shape[1])  # [n_in padded / 2, lanes]
    for pair in range((len(w) + 1) // 2):
        first = bits[2 * pair]  # [n]
        second = bits[min(2 * pair + 1, len(w) - 1)]  # [n]
        keep = np.uint32(0xFFFF0000) if 2 * pair + 1 < len(w) else np.uint32(0)
        for lane in range(w.shape[1]):
            low = first[lane] + np.uint32(0x7FFF) + (first[lane] >> np.uint32(16) & np.uint32(1))
            high = second[lane] + np.uint32(0x7FFF) + (second[lane] >> np.uint32(16) & np.uint32(1))
            pairs[pair, lane] = low >> np.uint32(16) | high & keep


def multiply(words, x, tile, sums):
    """Two inputs share 32 bits of the tile, the first in the lower 16."""
    cpu = words.cpu
    size = row_bytes(cpu) // BLOCK
    inner = words.loop(BLOCK // 2, sums)
    words.keep_order()
    weights = words.load_side_by_side(words.at(tile, words.times(inner.i, 4 * cpu.lanes)), words.integers)
    rows = [words.at(row, words.times(inner.i, 2 * size)) for row in x.rows]
    sums = (add_products if dot(cpu).name else add_as_floats)(words, rows, weights, inner.values)
    inner.end(sums)
    return sums


def add_products(words, rows, weights, sums):
    name = dot(words.cpu).name
    operand = words.integers
    if "aarch64" in name:
        words.allow("bf16")  # which LLVM does not look for
        operand = words.vector(8, 4 * words.cpu.vector)

    def add(x, w, sum_):
        return words.call(name, words.floats, sum_, words.ir.bitcast(w, operand), words.ir.bitcast(x, operand))

    return words.for_each([words.load_integer(row) for row in rows], weights, sums, add)


def add_as_floats(words, rows, weights, sums):
    first = [words.ir.shl(pair, words.full(words.integers, 16)) for pair in weights]
    second = [words.ir.and_(pair, words.full(words.integers, 0xFFFF0000)) for pair in weights]
    for k, bits in enumerate((first, second)):
        values = [words.ir.bitcast(one, words.floats) for one in bits]
        inputs = [words.load_float(words.at(row, 4 * k)) for row in rows]
        sums = words.for_each(inputs, values, sums, words.multiply_add)
    return sums


def lookup(words, tile, lane, k):
    integer = words.integers.element
    bits = words.load(number_at(words, tile, lane, k, 2, 2), words.integer(16), 2)
    return words.ir.bitcast(words.ir.shl(words.ir.zext(bits, integer), integer(16)), words.floats.element)


BFLOAT16 = Format(
    name="bfloat16",
    help="2",
    weight_bytes=2,
    channel_bytes=0,
    round=lambda w: Stored(upper_half(w)),
    widen=widen,
    product=lambda x, stored: sum_in_order(ROUNDED.plain(x), widen(stored)),
    rows=ROUNDED,
    dot=dot,
    step=BLOCK,
    step_bytes=lambda cpu: 2 * BLOCK * cpu.lanes,
    tile=lambda stored, cpu: interleave(stored.numbers, cpu, BLOCK, 2),
    untile=lambda tile, n_in, cpu: Stored(separate(tile, n_in, np.uint16, cpu, 2)),
    multiply=multiply,
    embedding="bfloat16",
    fill=fill,
    lookup=lookup,
    faster=amx.where_there_is,
    prefetch_from=8,
    # The distance of two logits changes by up to 0.26.
    jax=OnJax("bfloat16", "bfloat16", "bfloat16", tolerance=0.3),
)
