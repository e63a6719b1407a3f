"""The kernels against their plain forms, and the promise that a row's bits do not depend on the rows beside it."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("numba")

from speculative.engines import formats, kernels, tuning
from speculative.engines.cpu import BLOCK, this_cpu
from speculative.engines.formats.int8 import ROUNDED, round_rows
from speculative.engines.packed import PackedWeight, aligned
from speculative.engines.tuning import plan_of

# n_in, n_out: one input, less than a tile, whole tiles, an odd number of tiles, more than one block of inputs, and the
# widths of a small model.
SHAPES = [(1, 1), (1, 37), (70, 5), (64, 64), (33, 3 * 32), (1100, 130), (192, 576), (768, 192)]
MOST_ROWS = 40
FLOATS = tuning.usual("float32")["share"] // (4 * kernels.LANES)  # inputs after which the sums are stored and continued


def multiply(x, weight, kernel=None, format=None, plan=None):  # [n_rows, n_in] -> [n_rows, n_out]
    """The product by the kernel of a weight's format, or by another."""
    format = format or weight.format
    kernel = kernel or kernels.kernels_of(format.name)
    plan = plan_of(weight.dtype) if plan is None else plan
    n_rows, n_in = x.shape
    rows = kernels.prepared(np.pad(x, ((0, 0), (0, -n_in % BLOCK))), format, kernel)
    out = aligned((n_rows, len(weight.tiles), kernels.LANES), np.float32)
    for i, tile in enumerate(weight.tiles):
        where = (rows.ctypes.data, rows.strides[0], tile.ctypes.data, out[:, i].ctypes.data, out.strides[0])
        kernel.multiply.ctypes(*map(ctypes.c_int64, (n_rows, *where, weight.n_steps, plan.ctypes.data)))
    out = out.reshape(n_rows, -1)
    return (out if weight.scale is None else out * weight.scale)[:, : weight.shape[1]]


@pytest.mark.parametrize("dtype", formats.FORMATS)
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_a_row_has_the_same_bits_whatever_stands_beside_it(dtype, n_in, n_out):
    rng = np.random.default_rng(0)
    weight = PackedWeight.packed(rng.standard_normal((n_in, n_out), dtype=np.float32), dtype)
    x = rng.standard_normal((MOST_ROWS, n_in), dtype=np.float32)
    alone = np.concatenate([multiply(x[i : i + 1], weight) for i in range(MOST_ROWS)])
    for n in range(1, MOST_ROWS + 1):
        assert np.array_equal(multiply(x[:n], weight), alone[:n])
        assert np.array_equal(multiply(x[-n:], weight), alone[-n:])
    x[1::2] = 1000 * rng.standard_normal(x[1::2].shape, dtype=np.float32)
    assert np.array_equal(multiply(x, weight)[::2], alone[::2])


@pytest.mark.parametrize("dtype", formats.FORMATS)
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_the_product_is_the_plain_one(dtype, n_in, n_out):
    """To the bit where the sums are of whole numbers and a multiply-add is rounded once, as the plain form does it."""
    format = formats.find(dtype)
    rng = np.random.default_rng(1)
    w = rng.standard_normal((n_in, n_out), dtype=np.float32)
    x = rng.standard_normal((23, n_in), dtype=np.float32)
    x[3] = 0
    x[4, 0] = 1e4  # where rows are rounded, the others of its block become multiples of 79
    x[5, :BLOCK] = 1e-35  # too small to be divided by
    stored = format.round(w)
    product, plain = multiply(x, PackedWeight.packed(w, dtype)), format.product(x, stored)
    if format.rows is ROUNDED and this_cpu().fused:
        assert np.array_equal(product, plain)
    largest = np.abs(x) @ np.abs(format.widen(stored))  # what the terms of each sum add up to
    assert np.all(np.abs(product - plain) <= (n_in**0.5 + 2) * 1.2e-7 * largest)


def test_rows_are_rounded_to_the_nearest_of_127_steps_of_their_block():
    x = np.random.default_rng(2).standard_normal((7, 3 * BLOCK), dtype=np.float32)
    whole, scale = round_rows(x)
    blocks = np.abs(x).reshape(7, 3, BLOCK)
    np.testing.assert_allclose(scale, blocks.max(-1) / 127, rtol=1e-6)
    assert np.all(
        np.abs(whole.reshape(7, 3, -1) * scale[:, :, None] - x.reshape(7, 3, -1)) <= 0.501 * scale[:, :, None]
    )


def test_the_exact_sums_of_int8_have_room_for_the_largest_numbers():
    for sign in (-1, 1):
        ones = PackedWeight.packed(np.ones((1024, 3), np.float32), "int8")
        product = multiply(np.full((1, 1024), sign, np.float32), ones)
        np.testing.assert_allclose(product, sign * 1024, rtol=1e-6)


@pytest.mark.parametrize("n_rows", [1, 2, kernels.ROWS + 1])
@pytest.mark.parametrize("place", [0, 100, FLOATS - 2, FLOATS - 1, 700])
def test_the_sum_is_taken_in_order(n_rows, place):
    """1e8 + 1 is 1e8 in float32. In order, (1e8 + 1) - 1e8 is 0; in any other order, it is 1."""
    w = np.zeros((1100, 40), np.float32)
    w[place : place + 3] = np.array([1e8, 1, -1e8], np.float32)[:, None]
    assert not np.any(multiply(np.ones((n_rows, 1100), np.float32), PackedWeight.packed(w)))


def test_one_rounding_for_each_multiply_add():
    """(1 + e)**2 - 1 for e = 2**-12 is 2e + e**2; a product that is rounded by itself has lost the e**2."""
    if not this_cpu().fused:
        pytest.skip("this CPU rounds twice")
    e = 2.0**-12
    x = np.array([[1, 1 + e]], np.float32)
    assert multiply(x, PackedWeight.packed(np.array([[-1], [1 + e]], np.float32)))[0, 0] == np.float32(2 * e + e * e)
