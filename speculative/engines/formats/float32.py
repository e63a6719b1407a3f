"""float32: weights as they come, 4 bytes each."""

import numpy as np

from speculative.engines.formats.base import (
    Format,
    OnJax,
    Stored,
    interleave,
    multiply_floats,
    number_at,
    separate,
    sum_in_order,
)


def fill(w, tile, scale, dot):
    tile.view(np.float32).reshape(w.shape)[:] = w


def multiply(words, xs, tile, sums):
    """For the one input of a step, each row's x times the tile's weights."""
    if len(xs) >= FLOAT32.prefetch_from:
        words.prefetch(tile, 4 * words.cpu.lanes)
    size = 4 * words.cpu.vector
    halves = [words.load(words.at(tile, half * size), words.floats, size) for half in (0, 1)]
    return multiply_floats(words, xs, halves, sums, 0)


FLOAT32 = Format(
    name="float32",
    help="4 bytes",
    weight_bytes=4,
    channel_bytes=0,
    round=Stored,
    widen=lambda stored: stored.numbers,
    product=lambda x, stored: sum_in_order(x, stored.numbers),
    rounds_rows=False,
    step=lambda cpu: 1,
    tile_bytes=lambda cpu: 4 * cpu.lanes,
    tile=lambda stored, cpu: interleave(stored.numbers, cpu, 1, 1),
    untile=lambda tile, n_in, cpu: Stored(separate(tile, n_in, np.float32, cpu, 1)),
    multiply=multiply,
    embedding="float32",
    fill=fill,
    lookup=lambda words, tile, lane, k: words.load(number_at(words, tile, lane, k, 4, 1), words.floats.element),
    prefetch_from=6,
    # The distance of two logits of the bundled target changes by up to 5e-5 over the bundled prompts.
    jax=OnJax("float32", "float32", "float32", tolerance=1e-3),
)
