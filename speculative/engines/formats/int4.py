"""int4: whole numbers from -8 to 7, and a scale of 16 bits for each block of inputs of each output channel.

They meet rounded rows, as int8 does, but a block's exact sum is multiplied by the weights' scale before the row's. The
embedding is int8, as a token's row is also looked up in it.
"""

from functools import partial

import numpy as np

from speculative.engines.cpu import BLOCK
from speculative.engines.formats.base import Format, Stored, interleave, separate
from speculative.engines.formats.bfloat16 import from_upper_half, upper_half
from speculative.engines.formats.int8 import ROUNDED, add_products, dot, offsets_at, round_rows, scales_at

HALF = BLOCK // 2  # inputs k and k + HALF of a block share a byte
LARGEST = 8


def blocks_of(w):  # [n_in, n] -> [n_blocks, BLOCK, n]
    return np.pad(w, ((0, -len(w) % BLOCK), (0, 0))).reshape(-1, BLOCK, w.shape[1])


def round_blocks(w) -> Stored:  # [n_in, n] float32
    """Each block's extreme weight becomes -8, whatever its sign: the scale takes that. Scales are bfloat16s, and the
    weights are rounded to multiples of the scale as it is stored."""
    blocks = blocks_of(w)  # [n_blocks, BLOCK, n]
    where = np.argmax(np.abs(blocks), axis=1, keepdims=True)  # [n_blocks, 1, n]
    extreme = np.take_along_axis(blocks, where, axis=1)  # [n_blocks, 1, n]
    scale = from_upper_half(upper_half(extreme / np.float32(-LARGEST)))  # [n_blocks, 1, n]
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=np.abs(scale) > 1e-30)  # [n_blocks, 1, n]
    numbers = np.clip(np.rint(blocks * inverse), -LARGEST, LARGEST - 1).astype(np.int8)  # [n_blocks, BLOCK, n]
    return Stored(numbers.reshape(-1, w.shape[1])[: len(w)], block_scale=scale[:, 0])


def widen(stored: Stored):  # -> [n_in, n] float32
    numbers = blocks_of(stored.numbers).astype(np.float32)  # [n_blocks, BLOCK, n]
    return (numbers * stored.block_scale[:, None]).reshape(-1, numbers.shape[-1])[: len(stored.numbers)]


def product(x, stored: Stored):  # [n_rows, n_in] -> [n_rows, n_out]
    """Exact sums over each block, times the weights' scale; then the row's scale times that is added up, in order.

    In float64 the last two are rounded once, as by one fused multiply-add.
    """
    w = blocks_of(stored.numbers).astype(int)  # [n_blocks, BLOCK, n_out]
    rounded, row_scale = round_rows(np.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK))))  # [n_rows, n_in], [.., n_blocks]
    out = np.zeros((len(x), w.shape[2]), np.float32)
    for block, scale in enumerate(stored.block_scale):  # [n_out]
        exact = rounded[:, block * BLOCK : (block + 1) * BLOCK] @ w[block]  # [n_rows, n_out]
        scaled = exact.astype(np.float32) * scale  # [n_rows, n_out]
        out = (row_scale[:, block, None].astype(np.float64) * scaled + out).astype(np.float32)
    return out


def tile(stored: Stored, cpu):  # -> uint8 [n_blocks, step_bytes]
    """For each block, HALF bytes a channel, in int8's order, then the scales."""
    codes = (blocks_of(stored.numbers) + LARGEST).astype(np.uint8)  # [n_blocks, BLOCK, n], from 0 to 15
    pairs = codes[:, :HALF] | codes[:, HALF:] << 4  # [n_blocks, HALF, n]
    pairs = interleave(pairs.reshape(-1, pairs.shape[2]), cpu, HALF, dot(cpu).inputs)  # [n_blocks, HALF * lanes]
    scales = np.zeros((len(codes), cpu.lanes), np.uint16)  # [n_blocks, lanes]
    scales[:, : codes.shape[2]] = upper_half(stored.block_scale)
    return np.concatenate([pairs, scales.view(np.uint8)], axis=1)


def untile(tile, n_in, cpu) -> Stored:
    n_pairs = HALF * cpu.lanes
    pairs = separate(np.ascontiguousarray(tile[:, :n_pairs]), len(tile) * HALF, np.uint8, cpu, dot(cpu).inputs)
    pairs = pairs.reshape(-1, HALF, cpu.lanes)  # [n_blocks, HALF, lanes]
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.int8)  # [n_blocks, BLOCK, lanes]
    scales = np.ascontiguousarray(tile[:, n_pairs:]).view(np.uint16)  # [n_blocks, lanes]
    numbers = (codes - LARGEST).reshape(-1, cpu.lanes)[:n_in]  # [n_in, lanes]
    return Stored(numbers, block_scale=from_upper_half(scales))


def fill(w, tile, scale, dot):
    """A block at a time: its scales, its codes, and the two codes of each byte. What lies side by side is written at
    once, as one whole number."""
    n_in, lanes = w.shape
    n_blocks = (n_in + BLOCK - 1) // BLOCK
    tiles = tile.reshape(n_blocks, -1)  # [n_blocks, step_bytes]
    values = np.zeros((BLOCK, lanes), np.float32)  # [BLOCK, lanes]
    extreme = np.zeros(lanes, np.float32)  # [lanes]
    bits = extreme.view(np.uint32)  # [lanes], the same memory
    inverse = np.zeros(lanes, np.float32)  # [lanes]
    codes = np.zeros((BLOCK, lanes), np.uint32)  # [BLOCK, lanes]
    for block in range(n_blocks):
        n = min(BLOCK, n_in - block * BLOCK)
        values[:n] = w[block * BLOCK : block * BLOCK + n]
        values[n:] = np.float32(0)
        extreme[:] = np.float32(0)
        for k in range(n):
            for lane in range(lanes):
                larger = abs(values[k, lane]) > abs(extreme[lane])
                extreme[lane] = values[k, lane] if larger else extreme[lane]
        scales = tiles[block, HALF * lanes :].view(np.uint16)  # [lanes]
        for lane in range(lanes):
            extreme[lane] = extreme[lane] / np.float32(-LARGEST)
            upper = (bits[lane] + np.uint32(0x7FFF) + (bits[lane] >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
            scales[lane] = upper
            bits[lane] = upper << np.uint32(16)
            inverse[lane] = np.float32(1) / extreme[lane] if abs(extreme[lane]) > np.float32(1e-30) else np.float32(0)
        for k in range(BLOCK):
            for lane in range(lanes):
                number = np.rint(values[k, lane] * inverse[lane])
                number = min(max(number, np.float32(-LARGEST)), np.float32(LARGEST - 1))
                codes[k, lane] = np.uint32(number + np.float32(LARGEST))
        if dot == 4:
            whole = tiles[block, : HALF * lanes].view(np.uint32).reshape(-1, lanes)  # [HALF / 4, lanes]
            for four in range(HALF // 4):
                for lane in range(lanes):
                    low = codes[4 * four, lane]
                    high = codes[4 * four + HALF, lane]
                    for i in range(1, 4):
                        low |= codes[4 * four + i, lane] << np.uint32(8 * i)
                        high |= codes[4 * four + i + HALF, lane] << np.uint32(8 * i)
                    whole[four, lane] = low | high << np.uint32(4)
        else:
            pairs = tiles[block, : HALF * lanes].reshape(-1, lanes, dot)  # [HALF / dot, lanes, dot]
            for k in range(HALF):
                for lane in range(lanes):
                    pairs[k // dot, lane, k % dot] = codes[k, lane] | codes[k + HALF, lane] << np.uint32(4)


def multiply(words, x, tile, sums):
    """The codes from 0 to 15 are multiplied, and 8 times the sum of x is taken away."""
    cpu = words.cpu
    b = words.ir
    inputs = dot(cpu).inputs
    offsets = [b.ashr(offset, words.full(words.integers, 4)) for offset in offsets_at(words, x)]

    inner = words.loop(HALF // inputs, words.for_each_register(offsets))
    words.keep_order()
    here = words.at(tile, words.times(inner.i, inputs * cpu.lanes))
    pairs = words.load_side_by_side(here, words.vector(8, inputs * cpu.vector))
    if inputs == 2:
        pairs = [b.zext(pair, words.vector(16, inputs * cpu.vector)) for pair in pairs]
    low = [b.and_(pair, words.full(pair.type, 15)) for pair in pairs]
    high = [b.lshr(pair, words.full(pair.type, 4)) for pair in pairs]
    exact = inner.values
    place = words.times(inner.i, 4)  # that many bytes hold what the instruction takes of x
    for weights in (low, high):
        taken = [words.load_integer(words.at(row, place)) for row in x.rows]
        exact = words.for_each(taken, weights, exact, partial(add_products, words))
        place = b.add(place, place.type(4 * HALF // inputs))
    inner.end(exact)

    bits = words.load_side_by_side(words.at(tile, HALF * cpu.lanes), words.vector(16, cpu.vector))
    scales = [words.widened(one) for one in bits]
    scaled = words.for_each(x.rows, scales, exact, lambda _, scale, sum_: b.fmul(b.sitofp(sum_, words.floats), scale))
    row_scales = words.for_each_register(scales_at(words, x))
    return [words.multiply_add(*terms) for terms in zip(row_scales, scaled, sums, strict=True)]


INT4 = Format(
    name="int4",
    help="9/16",
    weight_bytes=0.5 + 2 / BLOCK,
    channel_bytes=0,
    round=round_blocks,
    widen=widen,
    product=product,
    rows=ROUNDED,
    dot=dot,
    step=BLOCK,
    step_bytes=lambda cpu: (HALF + 2) * cpu.lanes,
    tile=tile,
    untile=untile,
    multiply=multiply,
    fill=fill,
    embedding="int8",
    prefetch_from=3,
    jax="JAX has no product of 4-bit numbers with a scale for each block",
)
