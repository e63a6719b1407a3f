"""The forward pass: dtypes, causality, and the cache against no cache."""

import ast
import inspect

import numpy as np
import pytest
from tiny import HPARAMS, logits_themselves, random_params, watched

import gpt2 as gpt2_module
from gpt2 import attention, gelu, gpt2, layer_norm, softmax
from speculative.engines.plain import CachedModel, KVCache, PlainPass


@pytest.fixture
def params():
    return random_params()


def test_every_intermediate_is_float32(params, monkeypatch):
    """Every function of the forward pass is wrapped: what goes in and what comes out stays float32."""
    seen = []

    def watched(function):
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            seen.extend((function.__name__, a.dtype) for a in [*args, result] if isinstance(a, np.ndarray))
            return result

        return call

    for name in ("gelu", "softmax", "layer_norm", "linear", "ffn", "mha", "transformer_block"):
        monkeypatch.setattr(gpt2_module, name, watched(getattr(gpt2_module, name)))
    cache = KVCache(3, 3, 24, 4)
    logits = gpt2_module.gpt2([1, 2, 3], **params, n_head=3, cache=cache, activation=gpt2_module.gelu)
    assert logits.dtype == cache.keys.dtype == np.float32
    assert {name for name, _ in seen} >= {"gelu", "softmax", "layer_norm", "linear"}
    assert {dtype for _, dtype in seen} == {np.dtype(np.float32)}


def test_no_numpy_scalar_is_made_in_the_forward_pass():
    """np.sqrt of a Python number is a np.float64: the way into the trap. Only arrays may go through it."""
    calls = [n for n in ast.walk(ast.parse(inspect.getsource(gpt2_module))) if isinstance(n, ast.Call)]
    roots = [ast.unparse(call) for call in calls if ast.unparse(call.func) == "np.sqrt"]
    assert roots == ["np.sqrt(variance + eps)"]


def test_small_functions_by_hand():
    np.testing.assert_allclose(gelu(np.array([[-1.0, 0, 1]], np.float32)), [[-0.158808, 0, 0.841192]], atol=1e-6)
    np.testing.assert_allclose(softmax(np.array([1000.0, 1000 + np.log(3)], np.float32)), [0.25, 0.75], atol=1e-4)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    np.testing.assert_allclose(layer_norm(np.array([[1.0, 3]], np.float32), one, zero), [[-1, 1]], atol=1e-5)
    v = np.array([[[1.0], [2], [6]]], np.float32)
    np.testing.assert_allclose(attention(np.zeros_like(v), np.zeros_like(v), v), [[[1], [1.5], [3]]], rtol=1e-6)


def test_a_later_token_changes_nothing_before_it(params):
    a = gpt2([1, 2, 3, 4, 5], **params, n_head=3)
    b = gpt2([1, 2, 3, 9, 5], **params, n_head=3)
    np.testing.assert_allclose(a[:3], b[:3], atol=1e-5)
    assert np.abs(a[3:] - b[3:]).max() > 0.1


def test_n_last_is_the_last_rows(params):
    whole = gpt2([1, 2, 3, 4], **params, n_head=3)
    np.testing.assert_allclose(gpt2([1, 2, 3, 4], **params, n_head=3, n_last=2), whole[2:], rtol=1e-5, atol=1e-5)


def test_the_cached_model_equals_the_uncached_whatever_was_asked_before(params):
    """A random walk over sequences that grow, are cut back, are replaced and repeat: the cache never goes stale."""
    rng = np.random.default_rng(1)
    model = CachedModel(params, HPARAMS, logits_themselves)
    x, kept = np.array([7]), []
    for _ in range(200):
        x = x[: rng.integers(1, len(x) + 1)]
        x = np.append(x, rng.integers(0, 4, rng.integers(0, 5)))[: HPARAMS["n_ctx"]]
        if rng.random() < 0.05:
            x = rng.integers(0, 4, rng.integers(1, HPARAMS["n_ctx"] + 1))
        n_last = int(rng.integers(1, min(len(x), 5) + 1))
        kept.append(model.forward.length)
        expected = gpt2(x, **params, n_head=3)[len(x) - n_last :]
        np.testing.assert_allclose(model(x, n_last), expected, rtol=1e-4, atol=1e-4)
        assert model.forward.length == len(x)
    assert max(kept) > 20


def test_the_cached_model_feeds_only_what_is_new(params):
    fed = []
    model = CachedModel(params, HPARAMS, logits_themselves, watched(PlainPass, fed))
    for x, n_last in [([1, 2, 3], 1), ([1, 2, 3, 4, 5, 6], 4), ([1, 2, 3, 4, 9], 1), ([1, 2, 3, 4, 9], 1), ([8], 1)]:
        model(x, n_last)
    assert fed == [[1, 2, 3], [3, 4, 5, 6], [9], [9], [8]]


def test_an_interrupted_pass_leaves_an_empty_cache(params):
    model = CachedModel(params, HPARAMS, logits_themselves)
    model([1, 2, 3])
    forward, model.forward = model.forward, lambda *args, **kwargs: 1 / 0
    with pytest.raises(ZeroDivisionError):
        model([1, 2, 4])
    model.forward = forward
    np.testing.assert_allclose(model([1, 2, 3]), gpt2([1, 2, 3], **params, n_head=3)[-1:], rtol=1e-4, atol=1e-4)


def test_the_context_ends_where_it_ends(params):
    model = CachedModel(params, HPARAMS, logits_themselves)
    assert model(np.zeros(24, int)).shape == (1, 50)
    with pytest.raises(ValueError, match="context"):
        model(np.zeros(25, int))
    with pytest.raises(ValueError, match="rows"):
        model([1, 2], n_last=3)
