"""The kernels against their plain forms, and the promise that a row's bits do not depend on the rows beside it."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import njit

from speculative.engines import kernels
from speculative.engines.packed import (
    BLOCK,
    DTYPES,
    PackedWeight,
    aligned,
    reference_matmul,
    reference_matmul_int8,
    round_rows,
    store,
)

# n_in, n_out: one input, less than a tile, whole tiles, an odd number of tiles, more than one block of inputs, and the
# widths of a small model.
SHAPES = [(1, 1), (1, 37), (70, 5), (64, 64), (33, 3 * 32), (1100, 130), (192, 576), (768, 192)]
MOST_ROWS = 40


@njit
def round_all(x, n_rows, x_stride, out, out_stride, n_blocks):
    for row in range(n_rows):
        kernels.round_row(x + row * x_stride, out + row * out_stride, n_blocks)


def rounded(x):  # [n_rows, n_in] -> bytes [n_rows, n_blocks, X_BYTES[INT8]]
    n_blocks = x.shape[1] // BLOCK
    out = np.zeros((len(x), n_blocks, kernels.X_BYTES[kernels.INT8]), np.uint8)
    round_all(x.ctypes.data, len(x), x.strides[0], out.ctypes.data, out.strides[0], n_blocks)
    return out


def multiply(x, weight):  # [n_rows, n_in] -> [n_rows, n_out]
    n_rows, n_in = x.shape
    dtype = list(DTYPES).index(weight.dtype)
    step = kernels.STEP[dtype]
    n_steps = -(-n_in // step)
    x = np.pad(x, ((0, 0), (0, n_steps * step - n_in)))
    rows = rounded(x) if weight.dtype == "int8" else x
    out = aligned((n_rows, len(weight.tiles), kernels.LANES), np.float32)
    for i, tile in enumerate(weight.tiles):
        where = (rows.ctypes.data, rows.strides[0], tile.ctypes.data, out[:, i].ctypes.data, out.strides[0])
        kernels.tile_product.ctypes(*map(ctypes.c_int64, (dtype, n_rows, *where, n_steps)))
    out = out.reshape(n_rows, -1)
    return (out if weight.scale is None else out * weight.scale)[:, : weight.shape[1]]


def rows_are_independent(multiply, weight, n_in, rng):
    """Checks that each row of the product has the same bits alone, in every window and beside other neighbours."""
    x = rng.standard_normal((MOST_ROWS, n_in), dtype=np.float32)
    alone = np.concatenate([multiply(x[i : i + 1], weight) for i in range(MOST_ROWS)])
    for n in range(1, MOST_ROWS + 1):
        assert np.array_equal(multiply(x[:n], weight), alone[:n])
        assert np.array_equal(multiply(x[-n:], weight), alone[-n:])
    x[1::2] = 1000 * rng.standard_normal(x[1::2].shape, dtype=np.float32)
    assert np.array_equal(multiply(x, weight)[::2], alone[::2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_a_row_has_the_same_bits_whatever_stands_beside_it(dtype, n_in, n_out):
    rng = np.random.default_rng(0)
    weight = PackedWeight(rng.standard_normal((n_in, n_out), dtype=np.float32), dtype)
    rows_are_independent(multiply, weight, n_in, rng)


def test_a_sum_that_is_cut_by_the_row_count_fails_that_test():
    """As in a BLAS: one row is summed in order, several are summed in two halves."""

    def pairwise(x, weight):
        w, half = weight.dequantize(), weight.shape[0] // 2
        if len(x) == 1:
            return reference_matmul(x, w)
        return reference_matmul(x[:, :half], w[:half]) + reference_matmul(x[:, half:], w[half:])

    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError):
        rows_are_independent(pairwise, PackedWeight(rng.standard_normal((192, 70), dtype=np.float32)), 192, rng)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_the_product_is_the_plain_one(dtype, n_in, n_out):
    rng = np.random.default_rng(1)
    weight = PackedWeight(rng.standard_normal((n_in, n_out), dtype=np.float32), dtype)
    x = rng.standard_normal((23, n_in), dtype=np.float32)
    w = weight.dequantize()
    largest = np.abs(x) @ np.abs(w)  # what the terms of each sum add up to; rounding is relative to that
    error = np.abs(multiply(x, weight) - reference_matmul(x, w))
    assert np.all(error <= (n_in**0.5 + 2) * 1.2e-7 * largest)


@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_the_int8_product_is_the_plain_one_to_the_bit(n_in, n_out):
    if not kernels.HAS_FMA:
        pytest.skip("this CPU rounds twice")
    rng = np.random.default_rng(1)
    w = rng.standard_normal((n_in, n_out), dtype=np.float32)
    x = rng.standard_normal((23, n_in), dtype=np.float32)
    x[3] = 0
    x[4, 0] = 1e4  # the others of its block are rounded to a multiple of 79
    assert np.array_equal(multiply(x, PackedWeight(w, "int8")), reference_matmul_int8(x, *store(w, "int8")))


def test_rows_are_rounded_as_plainly():
    x = np.random.default_rng(2).standard_normal((7, 3 * BLOCK), dtype=np.float32)
    x[2], x[3, :BLOCK], x[4] = 0, 1e-35, 1e-3 * x[4]
    whole, scale = round_rows(x)
    blocks = rounded(x)
    numbers = blocks[:, :, : kernels.X_SCALE].copy().view(kernels.ROUNDED)
    assert np.array_equal(numbers.reshape(x.shape), whole) and np.abs(whole).max() == 127
    assert np.array_equal(blocks[:, :, kernels.X_SCALE : kernels.X_OFFSET].copy().view(np.float32)[:, :, 0], scale)
    assert np.max(np.abs(whole.reshape(7, 3, -1) * scale[:, :, None] - x.reshape(7, 3, -1))) < 0.51 * scale.max()


def test_the_exact_sums_of_int8_have_room_for_the_largest_numbers():
    for sign in (-1, 1):
        product = multiply(np.full((1, 1024), sign, np.float32), PackedWeight(np.ones((1024, 3), np.float32), "int8"))
        np.testing.assert_allclose(product, sign * 1024, rtol=1e-6)


@pytest.mark.parametrize("n_rows", [1, 2, kernels.ROWS + 1])
@pytest.mark.parametrize("place", [0, 100, kernels.K_BLOCK - 2, kernels.K_BLOCK - 1, 700])
def test_the_sum_is_taken_in_order(n_rows, place):
    """1e8 + 1 is 1e8 in float32. In order, (1e8 + 1) - 1e8 is 0; in any other order, it is 1."""
    w = np.zeros((1100, 40), np.float32)
    w[place : place + 3] = np.array([1e8, 1, -1e8], np.float32)[:, None]
    assert not np.any(multiply(np.ones((n_rows, 1100), np.float32), PackedWeight(w)))


def test_one_rounding_for_each_multiply_add():
    """(1 + e)**2 - 1 for e = 2**-12 is 2e + e**2; a product that is rounded by itself has lost the e**2."""
    if not kernels.HAS_FMA:
        pytest.skip("this CPU rounds twice")
    e = 2.0**-12
    x = np.array([[1, 1 + e]], np.float32)
    assert multiply(x, PackedWeight(np.array([[-1], [1 + e]], np.float32)))[0, 0] == np.float32(2 * e + e * e)
