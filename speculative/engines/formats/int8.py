"""int8: whole numbers from -127 to 127 and one scale for each output channel.

They meet rows that are rounded to 8 bits as well, each block of inputs with a scale of its own. The sum over a block is
then one of whole numbers, exact in any order, and CPUs have an instruction for it that does four inputs at a time. The
sums of the blocks are added in order, in float32.
"""

import numpy as np

from speculative.engines.cpu import BLOCK
from speculative.engines.formats.base import Format, OnJax, Stored, interleave, number_at, separate


def quantise(w, axis: int):  # [...] float32 -> [...] int8, float32 scales [...] without the axis
    """Symmetric: the largest weight along the axis becomes 127 or -127."""
    scale = np.max(np.abs(w), axis=axis, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.rint(w / scale).astype(np.int8), np.squeeze(scale, axis)


def widen(stored: Stored):  # -> [n_in, n] float32
    numbers = stored.numbers.astype(np.float32)  # [n_in, n]
    return numbers if stored.scale is None else numbers * stored.scale


def round_rows(x):  # [n_rows, n_in] float32, n_in a multiple of BLOCK -> the same shape int, [n_rows, n_in / BLOCK]
    """Rows as the kernel takes them: whole numbers up to 127, and for each block of inputs what they count."""
    blocks = x.reshape(len(x), -1, BLOCK)  # [n_rows, n_blocks, BLOCK]
    most = np.max(np.abs(blocks), axis=-1)  # [n_rows, n_blocks]
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 1e-30)  # [n_rows, n_blocks]
    return np.rint(blocks * inverse[..., None]).astype(int).reshape(x.shape), most / np.float32(127)


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


def multiply(words, xs, tile, sums):
    """An inner loop over the block sums whole numbers; then they are scaled and added."""
    cpu = words.cpu
    b = words.ir
    scale_at = cpu.rounded_bytes - 8
    offset_at = cpu.rounded_bytes - 4
    if cpu.unsigned:  # 128 is added to the weights, and 128 times the sum of x taken away
        begin = [words.load_integer(words.at(x, offset_at)) for x in xs for _ in (0, 1)]
    else:
        begin = [words.full(words.integers, 0)] * len(sums)

    inner = words.loop(BLOCK // cpu.dot, begin)
    here = words.at(tile, words.times(inner.i, cpu.dot * cpu.lanes))
    if len(xs) >= INT8.prefetch_from:
        words.prefetch(here, cpu.dot * cpu.lanes)
    words.keep_order()
    size = cpu.dot * cpu.vector
    halves = [words.load(words.at(here, half * size), words.bytes, size) for half in (0, 1)]
    if cpu.unsigned:
        halves = [b.xor(half, words.full(words.bytes, 0x80)) for half in halves]
    elif cpu.dot == 2:
        halves = [b.sext(half, words.shorts) for half in halves]
    inputs = [words.load_integer(words.at(x, words.times(inner.i, 4))) for x in xs]
    pairs = [(x, half) for x in inputs for half in halves]
    exact = [words.dot(sum_, half, x) for (x, half), sum_ in zip(pairs, inner.values, strict=True)]
    inner.end(exact)

    scales = [words.load_float(words.at(x, scale_at)) for x in xs for _ in (0, 1)]
    exact = [b.sitofp(sum_, words.floats) for sum_ in exact]
    return [words.multiply_add(*terms) for terms in zip(scales, exact, sums, strict=True)]


def lookup(words, tile, lane, k):
    number = words.load(number_at(words, tile, lane, k, 1, words.cpu.dot), words.bytes.element, 1)
    return words.ir.sitofp(number, words.floats.element)


INT8 = Format(
    name="int8",
    help="1",
    weight_bytes=1,
    channel_bytes=4,
    round=lambda w: Stored(*quantise(w, 0)),
    widen=widen,
    product=product,
    rounds_rows=True,
    step=lambda cpu: BLOCK,
    tile_bytes=lambda cpu: BLOCK * cpu.lanes,
    tile=lambda stored, cpu: interleave(stored.numbers, cpu, BLOCK, cpu.dot),
    untile=lambda tile, n_in, cpu: Stored(separate(tile, n_in, np.int8, cpu, cpu.dot)),
    multiply=multiply,
    embedding="int8",
    fill=fill,
    lookup=lookup,
    prefetch_from=4,
    jax=OnJax("int8", "bfloat16", "float32", 1e-3, quantise),
)
