"""gpt2.py: its dtype, and its small functions by hand. (test_cache.py has its cache.)"""

import numpy as np
import pytest
from tiny import HPARAMS, convert, random_params

from gpt2 import attention, gelu, gpt2, layer_norm, softmax
from speculative.engines.plain import ACTIVATIONS, KVCache, with_activation


@pytest.fixture
def params():
    return random_params()


class Float32(np.ndarray):
    """An array that gives float32 and nothing else, whatever is done with it."""

    def __array_finalize__(self, made_from):
        assert self.dtype.kind != "f" or self.dtype == np.float32


@pytest.mark.parametrize("activation", ACTIVATIONS.values())
@pytest.mark.parametrize("cache", [None, KVCache(HPARAMS)])
def test_every_intermediate_is_float32(params, cache, activation):
    params = with_activation(convert(params, lambda name, array: array.view(Float32)), activation)
    assert type(gpt2([1, 2, 3], **params, n_head=3, cache=cache)) is Float32


def test_small_functions_by_hand():
    np.testing.assert_allclose(gelu(np.array([[-1.0, 0, 1]], np.float32)), [[-0.158808, 0, 0.841192]], atol=1e-6)
    np.testing.assert_allclose(softmax(np.array([1000.0, 1000 + np.log(3)], np.float32)), [0.25, 0.75], atol=1e-4)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    np.testing.assert_allclose(layer_norm(np.array([[1.0, 3]], np.float32), one, zero), [[-1, 1]], atol=1e-5)
    v = np.array([[[1.0], [2], [6]]], np.float32)
    np.testing.assert_allclose(attention(np.zeros_like(v), np.zeros_like(v), v), [[[1], [1.5], [3]]], rtol=1e-6)
