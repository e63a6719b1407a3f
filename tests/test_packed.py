"""Packed weights: what rounding does to them, what they cost, and that they stand where an array stood."""

import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from tiny import HPARAMS, convert, random_params

from speculative.engines import cpu, runtime
from speculative.engines.cpu import BLOCK, this_cpu
from speculative.engines.formats import FORMATS, find, n_bytes
from speculative.engines.packed import PackedEmbedding, PackedWeight, packer


def random_weight(n_in, n_out, seed=0):
    return np.random.default_rng(seed).standard_normal((n_in, n_out), dtype=np.float32)


def test_bfloat16_rounds_to_nearest_and_ties_to_even():
    """Another implementation's rounding: every number that it has, its neighbours, and halfway to the next."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    numbers = (np.arange(2**16, dtype=np.uint32)[:, None] << 16 | lower).view(np.float32)  # [2**16, 6]
    numbers = numbers[np.isfinite(numbers).all(axis=1)]
    stored = find("bfloat16").round(numbers)
    assert np.array_equal(stored.numbers, numbers.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert stored.scale is None


# What rounding may change: of the number, of the channel's largest, of the largest of its block of inputs.
ERRORS = {"float32": (0, 0, 0), "bfloat16": (2**-8, 0, 0), "int8": (0, 0.5001 / 127, 0), "int4": (0, 0, 0.51 / 8)}


@pytest.mark.parametrize("dtype", ERRORS)
def test_a_weight_stands_for_its_matrix(dtype):
    """A matrix with channels of very different sizes, one of them all zeros."""
    w = random_weight(3 * BLOCK, 101) * np.logspace(-3, 3, 101, dtype=np.float32)
    w[:, 5] = 0
    weight = PackedWeight.packed(w, dtype)
    stored = weight.dequantize()
    assert weight.shape == stored.shape == w.shape
    of_number, of_channel, of_block = ERRORS[dtype]
    blocks = np.abs(w).reshape(3, BLOCK, -1).max(axis=1).repeat(BLOCK, axis=0)
    of_block = np.where(np.abs(w) < 0.93 * blocks, of_block, 2 * of_block)  # the extreme is -8, and nothing is 8
    assert np.all(np.abs(stored - w) <= of_number * np.abs(w) + of_channel * np.abs(w).max(axis=0) + of_block * blocks)
    if dtype == "int8":
        np.testing.assert_allclose(np.abs(stored).max(axis=0), np.abs(w).max(axis=0), rtol=1e-6)


@pytest.mark.parametrize("dtype", FORMATS)
def test_one_copy_of_the_embedding_serves_both_its_uses(dtype):
    wte = random_weight(130, 24)
    embedding = PackedEmbedding.packed(wte, dtype)
    stored = embedding.T.dequantize().T  # [n_vocab, n_embd]
    for ids in ([0, 129, 31, 32, 31], [7], []):
        rows = embedding[np.array(ids, int)]
        assert rows.dtype == np.float32
        assert np.array_equal(rows, stored[np.array(ids, int)])
    x = random_weight(3, 24)
    rows = embedding.T.format.rows.plain(x)
    np.testing.assert_allclose(x @ embedding.T, rows @ stored.T, rtol=1e-5, atol=1e-5)
    assert embedding.shape == wte.shape


@pytest.mark.parametrize("dtype", FORMATS)
def test_packing_takes_the_packed_bytes_and_little_more(dtype):
    w = random_weight(512, 4096)
    this_cpu()
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


def forget_numba():
    cpu.has_numba.cache_clear()
    cpu.this_cpu.cache_clear()


def test_without_numba_numpy_multiplies_and_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "numba", None)
    forget_numba()
    runtime.say_numpy_multiplies.cache_clear()
    try:
        w, x = random_weight(40, 70), random_weight(3, 40)
        for dtype in FORMATS:
            weight = PackedWeight.packed(w, dtype)
            rows = find(dtype).rows.plain(x)
            np.testing.assert_allclose(x @ weight, rows @ weight.dequantize(), rtol=1e-5, atol=1e-5)
        runtime.warm_up()
        runtime.set_threads(1)
        model = runtime.new_pass(convert(random_params(), packer("float32")), HPARAMS)
        assert model(np.arange(5), 2).shape == (2, HPARAMS["n_vocab"])
        assert model.length == 5
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert "numba is not installed" in lines[0]
    finally:
        monkeypatch.undo()
        forget_numba()


def test_threads_agree():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    for n in (runtime.most_threads(), 1):
        runtime.set_threads(n)
        assert runtime.n_threads == n
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {n}


@pytest.mark.parametrize("dtype", [name for name, format in FORMATS.items() if format.fill])
@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (33, 70), (64, 32), (67, 33), (130, 95)])
@pytest.mark.parametrize("turned", [False, True])
def test_compiled_packing_gives_the_bits_of_the_plain_one(dtype, n_in, n_out, turned):
    if not cpu.has_numba():
        pytest.skip("nothing is compiled without numba")
    w = random_weight(n_out, n_in).T if turned else random_weight(n_in, n_out)
    w[:, 0] = 0  # whose scale would be 0
    w[0, -1] = 1e30
    compiled = PackedWeight.packed(w, dtype)
    plain = PackedWeight.packed(np.zeros_like(w), dtype)
    plain.round(w, range(len(plain.tiles)))
    assert np.array_equal(compiled.tiles, plain.tiles)
    assert compiled.scale is plain.scale is None or np.array_equal(compiled.scale, plain.scale)
