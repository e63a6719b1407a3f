"""float32: weights as they come, 4 bytes each."""

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


def fill(w, tile, scale, dot):
    tile.view(np.float32).reshape(w.shape)[:] = w


def multiply(words, x, tile, sums):
    """For the one input of a step, each row's x times the tile's weights."""
    weights = words.load_side_by_side(tile, words.floats)
    inputs = [words.load_float(row) for row in x.rows]
    return words.for_each(inputs, weights, sums, words.multiply_add)


FLOAT32 = Format(
    name="float32",
    help="4 bytes",
    weight_bytes=4,
    channel_bytes=0,
    round=Stored,
    widen=lambda stored: stored.numbers,
    product=lambda x, stored: sum_in_order(x, stored.numbers),
    rows=AS_THEY_ARE,
    dot=lambda cpu: Dot(None, 1),
    step=1,
    step_bytes=lambda cpu: 4 * cpu.lanes,
    tile=lambda stored, cpu: interleave(stored.numbers, cpu, 1, 1),
    untile=lambda tile, n_in, cpu: Stored(separate(tile, n_in, np.float32, cpu, 1)),
    multiply=multiply,
    embedding="float32",
    fill=fill,
    lookup=lambda words, tile, lane, k: words.load(number_at(words, tile, lane, k, 4, 1), words.floats.element),
    prefetch_from=8,
    # The distance of two logits of the bundled target changes by up to 5e-5 over the bundled prompts.
    jax=OnJax("float32", "float32", "float32", tolerance=1e-3),
)
