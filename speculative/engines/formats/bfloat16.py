"""bfloat16: the upper 16 bits of a float32, so 2 bytes a weight, with 8 bits of precision."""

import numpy as np

from speculative.engines.cpu import Dot
from speculative.engines.formats.base import (
    AS_THEY_ARE,
    Format,
    OnJax,
    Stored,
    interleave,
    number_at,
    separate,
    sum_in_order,
)


def upper_half(w):  # [...] float32 -> [...] uint16
    """Rounds to nearest, and ties to even."""
    bits = np.ascontiguousarray(w).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_upper_half(bits):  # [...] uint16 -> [...] float32
    return (bits.astype(np.uint32) << 16).view(np.float32)


def widen(stored: Stored):  # -> [n_in, n] float32
    return from_upper_half(stored.numbers)


def fill(w, tile, scale, dot):
    """Both inputs of a step at once, as the 32 bits that they share."""
    bits = w.view(np.uint32)  # [n_in, n]
    n_steps = (len(w) + 1) // 2
    pairs = tile.view(np.uint32).reshape(n_steps, -1)  # [n_steps, lanes]
    for step in range(n_steps):
        first = bits[2 * step]  # [n]
        second = bits[min(2 * step + 1, len(w) - 1)]  # [n]
        keep = np.uint32(0xFFFF0000) if 2 * step + 1 < len(w) else np.uint32(0)
        for lane in range(w.shape[1]):
            low = first[lane] + np.uint32(0x7FFF) + (first[lane] >> np.uint32(16) & np.uint32(1))
            high = second[lane] + np.uint32(0x7FFF) + (second[lane] >> np.uint32(16) & np.uint32(1))
            pairs[step, lane] = low >> np.uint32(16) | high & keep


def multiply(words, x, tile, sums):
    """A step has two inputs, which share 32 bits of the tile: the first is in the lower 16."""
    pairs = words.load_side_by_side(tile, words.integers)
    first = [words.ir.shl(pair, words.full(words.integers, 16)) for pair in pairs]
    second = [words.ir.and_(pair, words.full(words.integers, 0xFFFF0000)) for pair in pairs]
    for k, bits in enumerate((first, second)):
        weights = [words.ir.bitcast(one, words.floats) for one in bits]
        inputs = [words.load_float(words.at(row, 4 * k)) for row in x.rows]
        sums = words.for_each(inputs, weights, sums, words.multiply_add)
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
    product=lambda x, stored: sum_in_order(x, widen(stored)),
    rows=AS_THEY_ARE,
    dot=lambda cpu: Dot(None, 2),
    step=2,
    step_bytes=lambda cpu: 4 * cpu.lanes,
    tile=lambda stored, cpu: interleave(stored.numbers, cpu, 2, 2),
    untile=lambda tile, n_in, cpu: Stored(separate(tile, n_in, np.uint16, cpu, 2)),
    multiply=multiply,
    embedding="bfloat16",
    fill=fill,
    lookup=lookup,
    # JAX rounds what is multiplied as well: the distance of two logits changes by up to 0.26.
    jax=OnJax("bfloat16", "bfloat16", "bfloat16", tolerance=0.3),
)
