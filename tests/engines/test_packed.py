"""Packed weights: their rounding and their bytes. (test_bundled.py has what the rounding costs.)"""

import numpy as np
import pytest

from speculative.engines.c import library
from speculative.engines.formats import BLOCK, FORMATS

if not library.compiles():
    pytest.skip("there is no C compiler", allow_module_level=True)

from speculative.engines.c.packing import pack_matrix


def random_weight(n_in, n_out, seed=0):
    return np.random.default_rng(seed).standard_normal((n_in, n_out), dtype=np.float32)


def unpacked(weight):  # -> [n_in, n_out]
    """The matrix that a packed weight stands for."""
    L = library.library().lanes()

    def spread(part, kind, n_together):  # uint8 [n_tiles, n_bytes] -> [n, n_tiles * L]
        words = np.ascontiguousarray(part).view(kind).reshape(len(part), -1, L, n_together)
        return words.transpose(1, 3, 0, 2).reshape(-1, len(part) * L)

    def upper_half(halves):
        return (halves.astype(np.uint32) << 16).view(np.float32)

    (n_in, n_out), format, tiles = weight
    if format.name == "float32":
        w = spread(tiles, np.float32, 1)
    elif format.name == "float16":
        w = spread(tiles, np.float16, 1).astype(np.float32)
    elif format.name == "bfloat16":
        w = upper_half(spread(tiles, np.uint16, 2))
    elif format.name == "int8":
        numbers, scales = tiles[:, : -4 * L], tiles[:, -4 * L :]
        w = (spread(numbers, np.uint8, 4).astype(np.float32) - 128) * spread(scales, np.float32, 1)
    else:
        blocks = tiles.reshape(len(tiles), -1, (BLOCK // 2 + 2) * L)
        numbers, scales = (part.reshape(len(tiles), -1) for part in np.split(blocks, [BLOCK // 2 * L], axis=2))
        pairs = spread(numbers, np.uint8, 4).reshape(-1, BLOCK // 2, len(tiles) * L)  # inputs k and k + 16 in a byte
        codes = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.float32) - 8
        w = (codes * upper_half(spread(scales, np.uint16, 1))[:, None]).reshape(-1, len(tiles) * L)
    return w[:n_in, :n_out]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (33, 70), (64, 32), (67, 33), (130, 95), (640, 700)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_packed_weight_stands_for_the_rounded_matrix(dtype, n_in, n_out, turned):
    """To the bit: engine.c packs, and NumPy rounds."""
    w = random_weight(n_out, n_in).T if turned else random_weight(n_in, n_out)
    w[:, 0] = 0  # whose scale would be 0
    w[0, -1] = 1e30
    assert np.array_equal(unpacked(pack_matrix(w, FORMATS[dtype])), FORMATS[dtype].round(w))
