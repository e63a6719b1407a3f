"""int8: whole numbers from -127 to 127 and one scale for each output channel.

They meet rows that are rounded to 8 bits as well, each block of inputs with a scale of its own. The sum over a block is
then one of whole numbers, exact in any order, and CPUs have an instruction for it that does four inputs at a time. The
sums of the blocks are added in order, in float32.
"""

from functools import partial

import numpy as np

from speculative.engines.cpu import BLOCK, Cpu, Dot
from speculative.engines.formats.base import Format, OnJax, Rows, Stored, interleave, number_at, separate

SDOT = "llvm.aarch64.neon.sdot.v4i32.v16i8"


def dot(cpu: Cpu) -> Dot:
    """Four inputs at once where bytes can be multiplied (x86 calls it VNNI, ARM dotprod), else two, widened to int16.
    All give the same numbers."""
    if {16: "avx512vnni", 8: "avxvnni", 4: None}[cpu.vector] in cpu.features:
        return Dot(f"llvm.x86.avx512.vpdpbusd.{32 * cpu.vector}", 4, unsigned=True)
    if "dotprod" in cpu.features:
        return Dot(SDOT, 4)
    names = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
    needs = {16: "avx512bw", 8: "avx2", 4: "sse2"}
    return Dot(f"llvm.x86.{names[cpu.vector]}" if needs[cpu.vector] in cpu.features else None, 2)


# ---- Rows ------------------------------------------------------------------------------------------------------------


def round_rows(x):  # [n_rows, n_in] float32, n_in a multiple of BLOCK -> the same shape int, [n_rows, n_in / BLOCK]
    """Rows as the kernel takes them: whole numbers up to 127, and for each block of inputs what they count."""
    blocks = x.reshape(len(x), -1, BLOCK)  # [n_rows, n_blocks, BLOCK]
    most = np.max(np.abs(blocks), axis=-1)  # [n_rows, n_blocks]
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 1e-30)  # [n_rows, n_blocks]
    return np.rint(blocks * inverse[..., None]).astype(int).reshape(x.shape), most / np.float32(127)


def plain_rows(x):  # [n_rows, n_in] -> [n_rows, n_in]
    """The numbers that rounded rows stand for."""
    n_in = x.shape[1]
    whole, scale = round_rows(np.pad(x, ((0, 0), (0, -n_in % BLOCK))))  # [n_rows, n_in padded], [n_rows, n_blocks]
    return (whole * scale.repeat(BLOCK, axis=1))[:, :n_in].astype(np.float32)


def item_bits(cpu: Cpu) -> int:
    """The bits of a rounded input as it lies beside a weight; its value fits into 8."""
    return 8 if dot(cpu).inputs == 4 else 16


def row_bytes(cpu: Cpu) -> int:
    """The bytes of a rounded block: its numbers, their scale, and -128 times their sum."""
    return BLOCK * item_bits(cpu) // 8 + 8


def build_row(words, x, out, n_blocks):
    b = words.ir
    cpu = words.cpu
    loop = words.loop(n_blocks, [])
    x = words.at(x, words.times(loop.i, 4 * BLOCK))
    out = words.at(out, words.times(loop.i, row_bytes(cpu)))
    parts = [words.load(words.at(x, 4 * i), words.floats) for i in range(0, BLOCK, cpu.vector)]

    most = words.full(words.integers, 0)
    for part in parts:  # without their sign, floats are in the order of their bits
        part = b.and_(b.bitcast(part, words.integers), words.full(words.integers, 0x7FFFFFFF))
        most = b.select(b.icmp_signed(">", part, most), part, most)
    float_type = words.floats.element
    integer = words.integers.element
    most = b.bitcast(words.call(f"llvm.vector.reduce.smax.v{cpu.vector}i32", integer, most), float_type)
    inverse = b.fdiv(float_type(127), most)
    inverse = b.select(b.fcmp_ordered(">", most, float_type(1e-30)), inverse, float_type(0))  # else it overflows

    sum_ = words.full(words.integers, 0)
    for i, part in enumerate(parts):
        part = b.fmul(part, words.broadcast(inverse))
        part = b.fptosi(words.call(f"llvm.rint.v{cpu.vector}f32", words.floats, part), words.integers)
        sum_ = b.add(sum_, part)
        part = b.trunc(part, words.vector(item_bits(cpu), cpu.vector))
        words.store(part, words.at(out, i * cpu.vector * item_bits(cpu) // 8))
    sum_ = words.call(f"llvm.vector.reduce.add.v{cpu.vector}i32", integer, sum_)
    words.store(b.fdiv(most, float_type(127)), words.at(out, row_bytes(cpu) - 8))
    words.store(b.mul(sum_, integer(-128)), words.at(out, row_bytes(cpu) - 4))
    loop.end([])


ROUNDED = Rows("int8", row_bytes, plain_rows, build_row)


def scales_at(words, x):
    """The scale of a block in each row."""
    return [words.load_float(words.at(row, row_bytes(words.cpu) - 8)) for row in x.rows]


def offsets_at(words, x):
    """-128 times the sum of a block in each row."""
    return [words.load_integer(words.at(row, row_bytes(words.cpu) - 4)) for row in x.rows]


def add_products(words, x, weights, sum_):
    """sum_ + the products of dot.inputs inputs, for each of cpu.vector channels.

    weights: int8s; int16s where dot.inputs is 2. x: 32 bits that hold these inputs, in each place.
    """
    b = words.ir
    name, inputs, unsigned = dot(words.cpu)
    x = b.bitcast(x, weights.type)
    if unsigned:
        weights, x = (b.bitcast(value, words.integers) for value in (weights, x))
    if inputs == 4:
        if name == SDOT:  # which LLVM does not look for
            words.allow("dotprod")
        return words.call(name, words.integers, sum_, weights, x)
    if name:
        return b.add(words.call(name, words.integers, weights, x), sum_)
    for start in range(inputs):
        places = words.constants(words.integers, range(start, inputs * words.cpu.vector, inputs))
        parts = [b.sext(b.shuffle_vector(v, v, places), words.integers) for v in (weights, x)]
        sum_ = b.add(b.mul(*parts), sum_)
    return sum_


# ---- Weights ---------------------------------------------------------------------------------------------------------


def quantise(w, axis: int):  # [...] float32 -> [...] int8, float32 scales [...] without the axis
    """Symmetric: the largest weight along the axis becomes 127 or -127."""
    scale = np.max(np.abs(w), axis=axis, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.rint(w / scale).astype(np.int8), np.squeeze(scale, axis)


def widen(stored: Stored):  # -> [n_in, n] float32
    numbers = stored.numbers.astype(np.float32)  # [n_in, n]
    return numbers if stored.scale is None else numbers * stored.scale


def product(x, stored: Stored):  # [n_rows, n_in] -> [n_rows, n_out]
    """Exact sums over each block of inputs, which are scaled and added up in order.

    In float64, where a product of float32s is exact, and so rounded once, as by one fused multiply-add.
    """
    w = stored.numbers  # [n_in, n_out]
    n_more = -len(w) % BLOCK
    x = np.pad(x, ((0, 0), (0, n_more)))
    w = np.pad(w, ((0, n_more), (0, 0)))
    rounded, row_scale = round_rows(x)  # [n_rows, n_in], [n_rows, n_blocks]
    out = np.zeros((len(x), w.shape[1]), np.float32)
    for block, part_scale in enumerate(row_scale.T):  # [n_rows]
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        exact = rounded[:, part] @ w[part].astype(int)  # [n_rows, n_out]
        out = (part_scale[:, None].astype(np.float64) * exact + out).astype(np.float32)
    return out if stored.scale is None else out * stored.scale


def fill(w, tile, scale, dot):
    """The inputs that lie side by side at once, as one whole number."""
    n_in, n = w.shape
    most = np.zeros(n, np.float32)  # [n]
    for k in range(n_in):
        for lane in range(n):
            size = abs(w[k, lane])
            most[lane] = size if size > most[lane] else most[lane]
    for lane in range(n):
        scale[lane] = most[lane] / np.float32(127)
        if scale[lane] == 0:
            scale[lane] = 1
    n_steps = (n_in + BLOCK - 1) // BLOCK
    lanes = len(tile) // (BLOCK * n_steps)
    numbers = tile.view(np.int8).reshape(-1, lanes, dot)  # [n_k, lanes, dot]
    fours = n_in // 4 if dot == 4 else 0
    whole = tile.view(np.int32).reshape(-1, lanes)  # [n_k, lanes], where dot is 4
    for four in range(fours):
        for lane in range(n):
            a = np.int32(np.rint(w[4 * four, lane] / scale[lane])) & np.int32(255)
            b = np.int32(np.rint(w[4 * four + 1, lane] / scale[lane])) & np.int32(255)
            c = np.int32(np.rint(w[4 * four + 2, lane] / scale[lane])) & np.int32(255)
            d = np.int32(np.rint(w[4 * four + 3, lane] / scale[lane]))
            whole[four, lane] = a | b << np.int32(8) | c << np.int32(16) | d << np.int32(24)
    for k in range(4 * fours, n_in):
        for lane in range(n):
            numbers[k // dot, lane, k % dot] = np.int8(np.rint(w[k, lane] / scale[lane]))


def multiply(words, x, tile, sums):
    """An inner loop over the block sums whole numbers; then they are scaled and added."""
    cpu = words.cpu
    b = words.ir
    inputs, unsigned = dot(cpu)[1:]
    begin = [words.full(words.integers, 0)] * len(sums)
    if unsigned:  # 128 is added to the weights, and 128 times the sum of x taken away
        begin = words.for_each_register(offsets_at(words, x))

    inner = words.loop(BLOCK // inputs, begin)
    here = words.at(tile, words.times(inner.i, inputs * cpu.lanes))
    words.keep_order()
    weights = words.load_side_by_side(here, words.vector(8, inputs * cpu.vector))
    if unsigned:
        weights = [b.xor(one, words.full(one.type, 0x80)) for one in weights]
    elif inputs == 2:
        weights = [b.sext(one, words.vector(16, inputs * cpu.vector)) for one in weights]
    taken = [words.load_integer(words.at(row, words.times(inner.i, 4))) for row in x.rows]
    exact = words.for_each(taken, weights, inner.values, partial(add_products, words))
    inner.end(exact)

    exact = [b.sitofp(sum_, words.floats) for sum_ in exact]
    scales = words.for_each_register(scales_at(words, x))
    return [words.multiply_add(*terms) for terms in zip(scales, exact, sums, strict=True)]


def lookup(words, tile, lane, k):
    number = words.load(number_at(words, tile, lane, k, 1, dot(words.cpu).inputs), words.integer(8), 1)
    return words.ir.sitofp(number, words.floats.element)


INT8 = Format(
    name="int8",
    help="1",
    weight_bytes=1,
    channel_bytes=4,
    round=lambda w: Stored(*quantise(w, 0)),
    widen=widen,
    product=product,
    rows=ROUNDED,
    dot=dot,
    step=BLOCK,
    step_bytes=lambda cpu: BLOCK * cpu.lanes,
    tile=lambda stored, cpu: interleave(stored.numbers, cpu, BLOCK, dot(cpu).inputs),
    untile=lambda tile, n_in, cpu: Stored(separate(tile, n_in, np.int8, cpu, dot(cpu).inputs)),
    multiply=multiply,
    embedding="int8",
    fill=fill,
    lookup=lookup,
    prefetch_from=5,
    jax=OnJax("int8", "bfloat16", "float32", 1e-3, quantise),
)
