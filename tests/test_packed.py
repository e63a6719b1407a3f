"""Packed weights: their rounding, their bytes, and their use in place of an array."""

import re
import tracemalloc

import numpy as np
import pytest
from tiny import convert, random_params, refusal

from speculative.engines import library, runtime
from speculative.engines.formats import BLOCK, FORMATS, find, n_bytes

if not library.library():
    pytest.skip("there is no C compiler", allow_module_level=True)

from speculative.engines.packed import PackedEmbedding, PackedWeight, arrays_of, layout, of_arrays, packer, shapes_of


def random_weight(n_in, n_out, seed=0):
    return np.random.default_rng(seed).standard_normal((n_in, n_out), dtype=np.float32)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (33, 70), (64, 32), (67, 33), (130, 95), (640, 700)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_packed_weight_stands_for_the_rounded_matrix(dtype, n_in, n_out, turned):
    """To the bit: engine.c packs, and NumPy rounds."""
    w = random_weight(n_out, n_in).T if turned else random_weight(n_in, n_out)
    w[:, 0] = 0  # whose scale would be 0
    w[0, -1] = 1e30
    weight = PackedWeight.packed(w, dtype)
    rounded = find(dtype).round(w)
    assert np.array_equal(weight.dequantize(), rounded)
    ids = [0, n_out - 1, n_out // 2, n_out // 2]
    assert np.array_equal(weight.columns(ids), rounded[:, ids].T)
    x = random_weight(3, n_in, 1)
    np.testing.assert_allclose(x @ weight, find(dtype).rows(x) @ rounded, rtol=1e-5, atol=1e-4)


def test_bfloat16_rounds_to_nearest_and_ties_to_even():
    """Of halfway between two neighbours the even one; beyond it the next."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    upper = np.arange(0x7F7F, dtype=np.uint32)[:, None]  # all that are finite and positive, but for the largest
    numbers = (upper << 16 | lower).view(np.float32)  # [n, 6]
    up = np.where(lower == 0x8000, upper % 2, lower > 0x8000)  # [n, 6]
    for sign in (1, -1):
        expected = (upper + up << 16).astype(np.uint32).view(np.float32)
        assert np.array_equal(find("bfloat16").round(sign * numbers), sign * expected)


# What rounding may change: of the number, of the channel's largest, of the largest of its block of inputs.
ERRORS = {"float32": (0, 0, 0), "bfloat16": (2**-8, 0, 0), "int8": (0, 0.5001 / 127, 0), "int4": (0, 0, 0.51 / 8)}


@pytest.mark.parametrize("dtype", ERRORS)
def test_what_rounding_changes(dtype):
    """A matrix with channels of very different sizes, one of them all zeros."""
    w = random_weight(3 * BLOCK, 101) * np.logspace(-3, 3, 101, dtype=np.float32)
    w[:, 5] = 0
    stored = find(dtype).round(w)
    of_number, of_channel, of_block = ERRORS[dtype]
    blocks = np.abs(w).reshape(3, BLOCK, -1).max(axis=1).repeat(BLOCK, axis=0)
    of_block = np.where(np.abs(w) < 0.93 * blocks, of_block, 2 * of_block)  # the extreme is -8, and nothing is 8
    assert np.all(np.abs(stored - w) <= of_number * np.abs(w) + of_channel * np.abs(w).max(axis=0) + of_block * blocks)


def test_rows_are_rounded_to_the_nearest_of_127_steps_of_their_block():
    x = random_weight(7, 3 * BLOCK, 2)
    x[0, :BLOCK] = 1e-35  # too small to be divided by
    rounded = find("int8").rows(x)
    steps = np.abs(x).reshape(7, 3, BLOCK).max(-1).repeat(BLOCK, axis=1) / 127
    assert np.all(np.abs(rounded - x) <= 0.501 * steps + 1e-34)


@pytest.mark.parametrize("dtype", FORMATS)
def test_one_copy_of_the_embedding_serves_both_its_uses(dtype):
    wte = random_weight(130, 24)
    embedding = PackedEmbedding.packed(wte, dtype)
    stored = embedding.T.dequantize().T  # [n_vocab, n_embd]
    for ids in ([0, 129, 31, 32, 31], [7], []):
        rows = embedding[np.array(ids, int)]
        assert rows.dtype == np.float32
        assert np.array_equal(rows, stored[np.array(ids, int)])
    assert embedding.shape == wte.shape


@pytest.mark.parametrize("dtype", FORMATS)
def test_packing_takes_the_packed_bytes_and_little_more(dtype):
    w = random_weight(512, 4096)
    tracemalloc.start()
    try:
        weight = PackedWeight.packed(w, dtype)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert weight.nbytes == n_bytes(dtype, *w.shape)
    assert peak <= weight.nbytes + w.nbytes / 8


def test_the_packer_packs_matrices_and_leaves_the_rest():
    params = convert(random_params(), packer("int8"))
    block = params["blocks"][0]
    assert isinstance(params["wte"], PackedEmbedding)
    assert all(isinstance(block[a][b]["w"], PackedWeight) for a in ("attn", "mlp") for b in block[a])
    left = [params["wpe"], *params["ln_f"].values(), block["ln_1"]["g"], block["mlp"]["c_fc"]["b"]]
    assert all(type(array) is np.ndarray and array.dtype == np.float32 for array in left)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_tensor_can_be_taken_apart_and_put_together(dtype):
    for name, shape in (("wte", (50, 12)), ("h0/mlp/c_fc/w", (12, 48)), ("h0/ln_1/g", (12,))):
        array = np.ones(shape, np.float32)
        value = packer(dtype)(name, array)
        arrays = arrays_of(name, value)
        assert {part: (str(of.dtype), of.shape) for part, of in arrays.items()} == shapes_of(name, array.shape, dtype)
        again = of_arrays(name, array.shape, dtype, arrays)
        assert again is array if name.endswith("/g") else again.shape == value.shape
        assert all(a is b for a, b in zip(arrays.values(), arrays_of(name, again).values(), strict=True))
    assert len({layout(dtype) for dtype in FORMATS}) == len(FORMATS)


def test_no_format_of_that_name():
    assert "no weight format 'float64': it is one of float32, bfloat16, int8, int4" in refusal(packer, "float64")


def test_threads():
    for n in (library.n_cores(), 1):
        runtime.set_threads(n)
        assert runtime.n_threads == n
    assert re.search(r"1000000000 threads: this machine has cores for 1 to \d+", refusal(runtime.set_threads, 10**9))


def test_a_format_is_numbered_as_engine_c_numbers_it():
    source = library.SOURCES[1].read_text()
    assert "enum { " + ", ".join(name.upper() for name in FORMATS) + " };" in source
