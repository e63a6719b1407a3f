"""The kernels against their plain forms, and the promise that a row's bits do not depend on the rows beside it."""

import math

import numpy as np
import pytest
from tiny import convert, random_params

pytest.importorskip("numba")

from gpt2 import attention, gpt2
from speculative.engines import kernels, packed
from speculative.engines.cached import KVCache
from speculative.engines.packed import (
    DTYPES,
    PackedKVCache,
    PackedWeight,
    packer,
    reference_matmul,
    reference_matmul_int8,
    store,
)

# n_in, n_out: one input, less than a tile, whole tiles, an odd number of tiles, more than one block of inputs, and the
# widths of a small model.
SHAPES = [(1, 1), (1, 37), (70, 5), (64, 64), (33, 3 * 32), (1100, 130), (192, 576), (768, 192)]
MOST_ROWS = 40


@pytest.fixture(autouse=True)
def all_threads(one_thread):
    packed.set_threads()


def rows_are_independent(weight, n_in, rng):
    """Checks that each row of x @ weight has the same bits alone, in every window and beside other neighbours."""
    x = rng.standard_normal((MOST_ROWS, n_in), dtype=np.float32)
    alone = np.concatenate([x[i : i + 1] @ weight for i in range(MOST_ROWS)])
    for n in range(1, MOST_ROWS + 1):
        assert np.array_equal(x[:n] @ weight, alone[:n])
        assert np.array_equal(x[-n:] @ weight, alone[-n:])
    x[1::2] = 1000 * rng.standard_normal(x[1::2].shape, dtype=np.float32)
    assert np.array_equal((x @ weight)[::2], alone[::2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_a_row_has_the_same_bits_whatever_stands_beside_it(dtype, n_in, n_out):
    rng = np.random.default_rng(0)
    rows_are_independent(PackedWeight(rng.standard_normal((n_in, n_out), dtype=np.float32), dtype), n_in, rng)


def test_a_sum_that_is_cut_by_the_row_count_fails_that_test():
    """As in a BLAS: one row is summed in order, several are summed in two halves."""

    class Pairwise(PackedWeight):
        def __rmatmul__(self, x):
            w, half = self.dequantize(), self.shape[0] // 2
            if len(x) == 1:
                return reference_matmul(x, w)
            return reference_matmul(x[:, :half], w[:half]) + reference_matmul(x[:, half:], w[half:])

    rng = np.random.default_rng(0)
    weight = Pairwise(rng.standard_normal((192, 70), dtype=np.float32))
    with pytest.raises(AssertionError):
        rows_are_independent(weight, 192, rng)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_the_product_is_the_plain_one(dtype, n_in, n_out):
    rng = np.random.default_rng(1)
    weight = PackedWeight(rng.standard_normal((n_in, n_out), dtype=np.float32), dtype)
    x = rng.standard_normal((23, n_in), dtype=np.float32)
    w = weight.dequantize()
    largest = np.abs(x) @ np.abs(w)  # what the terms of each sum add up to; rounding is relative to that
    error = np.abs(x @ weight - reference_matmul(x, w))
    assert (x @ weight).dtype == np.float32
    assert np.all(error <= (n_in**0.5 + 2) * 1.2e-7 * largest)


@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_the_int8_product_is_the_plain_one_to_the_bit(n_in, n_out):
    rng = np.random.default_rng(1)
    w = rng.standard_normal((n_in, n_out), dtype=np.float32)
    x = rng.standard_normal((23, n_in), dtype=np.float32)
    x[3] = 0
    x[4, 0] = 1e4  # all others are rounded to a multiple of 0.3
    product = x @ PackedWeight(w, "int8")
    assert product.dtype == np.float32
    assert np.array_equal(product, reference_matmul_int8(x, *store(w, "int8"), kernels.K_BLOCK))


def test_the_exact_sums_of_int8_have_room_for_the_largest_numbers():
    n_in = 2 * kernels.K_BLOCK
    product = np.ones((1, n_in), np.float32) @ PackedWeight(np.ones((n_in, 3), np.float32), "int8")
    np.testing.assert_allclose(product, n_in, rtol=1e-6)


@pytest.mark.parametrize("n_rows", [1, 2, kernels.FEW_ROWS + 1, kernels.ROWS + 1])
@pytest.mark.parametrize("place", [0, 100, kernels.K_BLOCK - 2, kernels.K_BLOCK - 1, 700])
def test_the_sum_is_taken_in_order(n_rows, place):
    """1e8 + 1 is 1e8 in float32. In order, (1e8 + 1) - 1e8 is 0; in any other order, it is 1."""
    w = np.zeros((1100, 40), np.float32)
    w[place : place + 3] = np.array([1e8, 1, -1e8], np.float32)[:, None]
    assert not np.any(np.ones((n_rows, 1100), np.float32) @ PackedWeight(w))


def test_one_rounding_for_each_multiply_add():
    """(1 + e)**2 - 1 for e = 2**-12 is 2e + e**2; a product that is rounded by itself has lost the e**2."""
    if not kernels.HAS_FMA:
        pytest.skip("this CPU rounds twice")
    e = 2.0**-12
    x = np.array([[1, 1 + e]], np.float32)
    assert (x @ PackedWeight(np.array([[-1], [1 + e]], np.float32)))[0, 0] == np.float32(2 * e + e * e)


def test_exp():
    xs = np.linspace(-86.9, 0, 100_001).astype(np.float32)
    ours = np.array([kernels.exp(x) for x in xs], np.float64)
    assert np.max(np.abs(ours / np.exp(xs.astype(np.float64)) - 1)) < 3e-7
    assert kernels.exp(np.float32(0)) == 1
    assert kernels.exp(np.float32(-88)) == kernels.exp(np.float32(-math.inf)) == 0


def random_qkv(rng, n, n_head, d_head):  # as mha makes them: a transposed view, [3, n_head, n, d_head]
    return np.transpose(2 * rng.standard_normal((n, 3, n_head, d_head), dtype=np.float32), (1, 2, 0, 3))


@pytest.mark.parametrize("d_head", [1, 8, 32, 64, 80])
def test_attention_is_the_plain_one_and_its_rows_are_independent(d_head):
    rng = np.random.default_rng(2)
    n_head, n_ctx = 3, 99
    window, single, plain = (
        PackedKVCache(1, n_head, n_ctx, d_head),
        *(kind(1, n_head, n_ctx, d_head) for kind in (PackedKVCache, KVCache)),
    )
    for n in (1, 5, 17, 1, 30, 9, 36):
        q, k, v = random_qkv(rng, n, n_head, d_head)
        out = window.layers[0](q, k, v)
        np.testing.assert_allclose(out, plain.layers[0](q, k, v), rtol=1e-4, atol=1e-5)
        for i in range(n):
            assert np.array_equal(single.layers[0](*(a[:, i : i + 1] for a in (q, k, v)))[:, 0], out[:, i])
            single.length += 1
        window.length += n
        plain.length += n


def test_what_was_forgotten_leaves_no_trace():
    """A cache whose length is moved back gives what a cache gives that never saw the rest."""
    rng = np.random.default_rng(3)
    first, rejected, second = (random_qkv(rng, n, 2, 32) for n in (20, 40, 7))
    used, fresh = (PackedKVCache(1, 2, 64, 32) for _ in range(2))
    for cache in (used, fresh):
        cache.layers[0](*first)
        cache.length = 20
    used.layers[0](*(1e6 * rejected))
    assert np.array_equal(used.layers[0](*second), fresh.layers[0](*second))


def test_a_row_sees_no_later_key():
    rng = np.random.default_rng(4)
    qkv = random_qkv(rng, 12, 2, 32)
    out = PackedKVCache(1, 2, 64, 32).layers[0](*qkv)
    for i in range(12):
        seen = np.ascontiguousarray(qkv[:, :, : i + 1])
        np.testing.assert_allclose(out[:, i], attention(*seen)[:, i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_logits_of_a_token_have_the_same_bits_in_every_split(dtype):
    """Token by token, in one prefill, in windows: the whole network, kernels and NumPy together."""
    hparams = {"n_vocab": 261, "n_ctx": 48, "n_embd": 96, "n_head": 3, "n_layer": 3}
    params = convert(random_params(hparams), packer(dtype))
    tokens = np.random.default_rng(5).integers(0, hparams["n_vocab"], 48)

    def logits(splits):
        cache = PackedKVCache(hparams["n_layer"], hparams["n_head"], hparams["n_ctx"], 32)
        parts = np.split(tokens, np.cumsum(splits)[:-1])
        return np.concatenate([gpt2(part, **params, n_head=hparams["n_head"], cache=cache) for part in parts])

    alone = logits([1] * 48)
    assert alone.dtype == np.float32
    for splits in ([48], [5] * 9 + [3], [2] * 24, [10, 9, 17, 12], [31, 1, 16]):
        assert np.array_equal(logits(splits), alone)


def test_threads_share_the_tiles_evenly_and_change_no_bit():
    rng = np.random.default_rng(6)
    weight = PackedWeight(rng.standard_normal((50, 400), dtype=np.float32))
    x = rng.standard_normal((6, 50), dtype=np.float32)
    expected = x @ weight
    for n_threads in range(1, 8):
        out = np.zeros((6, len(weight.tiles) * weight.lanes), np.float32)
        kernels.multiply(x, weight.tiles, out, n_threads)
        assert np.array_equal(out[:, :400], expected)


def test_read_sums_all_of_the_memory():
    assert packed.kernels().read(np.arange(1001)) == 500_500
