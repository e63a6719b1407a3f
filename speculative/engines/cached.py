"""The NumPy engine: gpt2() with a KV cache, behind the contract model(x, n_last) -> distributions."""

from collections.abc import Callable
from functools import partial

import numpy as np

from gpt2 import attention, gpt2


class KVCache:
    """The keys and values of the first `length` tokens, for every layer. Forgetting is moving `length` back."""

    def __init__(self, n_layer: int, n_head: int, n_ctx: int, d_head: int):
        self.length = 0
        self.keys = np.empty((n_layer, n_head, n_ctx, d_head), np.float32)
        self.values = np.empty((n_layer, n_head, n_ctx, d_head), np.float32)
        self.layers = [partial(self.attend, keys, values) for keys, values in zip(self.keys, self.values, strict=True)]

    def attend(self, keys, values, q, k, v):  # [n_head, n_ctx, d_head] twice, [n_head, n_new, d_head] thrice
        """Appends k and v to one layer's keys and values, and attends from q to them all -> [n_head, n_new, d_head]."""
        n = self.length + k.shape[1]
        keys[:, self.length : n] = k
        values[:, self.length : n] = v
        return attention(q, keys[:, :n], values[:, :n])


class PlainPass:
    """gpt2.py and a KVCache: tokens that come after the first `length` -> logits of the last n_last."""

    def __init__(self, params: dict, hparams: dict, cache: type = KVCache):
        n_head = hparams["n_head"]
        self.cache = cache(hparams["n_layer"], n_head, hparams["n_ctx"], hparams["n_embd"] // n_head)
        self.gpt2 = partial(gpt2, **params, n_head=n_head, cache=self.cache)

    @property
    def length(self) -> int:
        return self.cache.length

    @length.setter
    def length(self, length: int) -> None:
        self.cache.length = length

    def __call__(self, tokens, n_last: int) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        return self.gpt2(tokens, n_last=n_last)


class CachedModel:
    """model(x, n_last) -> [n_last, n_vocab], computing only what the previous call did not.

    It remembers the tokens whose keys and values it holds, keeps the longest prefix that they share with x and feeds
    the rest. So a rejected draft, another prompt, a draft that is one token behind: all are just another x.
    """

    def __init__(self, params: dict, hparams: dict, to_probs: Callable, new_pass: Callable = PlainPass):
        """to_probs: logits [n, n_vocab] -> distributions [n, n_vocab]. new_pass: PlainPass, or what does the same."""
        self.params, self.hparams, self.new_pass = params, hparams, new_pass
        self.n_ctx = hparams["n_ctx"]
        self.weight_bytes = n_bytes(params)  # what a token has to read, but for the cache (and most of wpe)
        self.to_probs = to_probs
        self.forward = new_pass(params, hparams)
        self.forget()

    def with_probs(self, to_probs: Callable) -> "CachedModel":
        """The same weights, with another way from logits to distributions and a cache of its own."""
        return CachedModel(self.params, self.hparams, to_probs, self.new_pass)

    def forget(self) -> None:
        """Forgets which tokens the cache holds: the next x shares no prefix with it and is computed whole."""
        self.tokens = np.empty(0, int)  # the tokens whose keys and values are known

    def __call__(self, x, n_last: int = 1) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """Raises ValueError where x does not fit into the context or has fewer than n_last tokens."""
        x = np.asarray(x)  # [n]
        n_keep = n_reusable(self.tokens, x, n_last, self.n_ctx)
        self.forget()  # so that an interrupted pass leaves an empty cache behind and not a wrong one
        self.forward.length = n_keep
        logits = self.forward(x[n_keep:], n_last)  # [n_last, n_vocab]
        self.tokens = x
        return self.to_probs(logits)  # [n_last, n_vocab]


def n_reusable(tokens: np.ndarray, x: np.ndarray, n_last: int, n_ctx: int) -> int:  # [n_tokens], [n]
    """How many leading tokens of x need not be computed where those of `tokens` are cached.

    The last n_last always are: a cache holds keys and values, no logits. Raises ValueError where x does not fit.
    """
    if not n_last <= len(x) <= n_ctx:
        raise ValueError(f"{len(x)} tokens: the context holds {n_ctx}, and {n_last} rows were asked for")
    return min(common_prefix(tokens, x), len(x) - n_last)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:  # [n_a], [n_b] -> how many leading tokens are the same
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def n_bytes(params) -> int:
    """The bytes of every array and packed weight in a nested dict of parameters."""
    if hasattr(params, "nbytes"):
        return params.nbytes
    return sum(map(n_bytes, params.values() if isinstance(params, dict) else params))
