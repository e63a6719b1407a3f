"""gpt2.py: its dtype. (test_engine.py compares it with engine.c, test_cache.py has its cache.)"""

import numpy as np
import pytest
from tiny import HPARAMS, convert, random_params

from gpt2 import gpt2
from speculative.engines.plain import ACTIVATIONS, KVCache, with_activation


class Float32(np.ndarray):
    """An array that gives float32 and nothing else, whatever is done with it."""

    def __array_finalize__(self, made_from):
        assert self.dtype.kind != "f" or self.dtype == np.float32


@pytest.mark.parametrize("activation", ACTIVATIONS.values())
@pytest.mark.parametrize("cache", [None, KVCache(HPARAMS)])
def test_every_intermediate_is_float32(cache, activation):
    params = with_activation(convert(random_params(), lambda name, array: array.view(Float32)), activation)
    assert type(gpt2([1, 2, 3], **params, n_head=3, cache=cache)) is Float32
