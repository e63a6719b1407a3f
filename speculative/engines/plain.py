"""gpt2.py with a KV cache: the plain form of the forward pass, which the compiled engine is tested against."""

import math
from functools import partial

import numpy as np

from speculative.blog.gpt2 import attention, gelu, gpt2, layer_norm

SQRT_HALF = math.sqrt(0.5)
ERF = np.frompyfunc(math.erf, 1, 1)  # NumPy has none


def gelu_by_erf(x):  # [n_seq, n_hidden] -> [n_seq, n_hidden]
    """The function that gpt2.gelu approximates: x times the chance that a normal variable is below it."""
    return 0.5 * x * (1 + ERF(x * SQRT_HALF).astype(x.dtype))


def relu(x):  # [n_seq, n_hidden] -> [n_seq, n_hidden]
    return np.maximum(x, 0)


ACTIVATIONS = {"gelu_new": gelu, "gelu": gelu_by_erf, "relu": relu}  # by their names in config.json


class KVCache:
    """The keys and values of the first `length` tokens, for every layer. Forgetting is moving `length` back."""

    def __init__(self, n_layer: int, n_head: int, n_ctx: int, d_head: int):
        self.length = 0
        self.sees = None  # [n_new, n] in a tree: 1 where a new token sees another one
        self.keys = np.empty((n_layer, n_head, n_ctx, d_head), np.float32)
        self.values = np.empty((n_layer, n_head, n_ctx, d_head), np.float32)
        self.layers = [partial(self.attend, keys, values) for keys, values in zip(self.keys, self.values, strict=True)]

    def attend(self, keys, values, q, k, v):  # [n_head, n_ctx, d_head] twice, [n_head, n_new, d_head] thrice
        """Appends k and v to one layer's keys and values, and attends from q to them all -> [n_head, n_new, d_head]."""
        n = self.length + k.shape[1]
        keys[:, self.length : n] = k
        values[:, self.length : n] = v
        return attention(q, keys[:, :n], values[:, :n], self.sees)

    def move(self, slots: np.ndarray, to: int) -> None:  # [n]
        """Move the keys and values of these tokens to the places from `to` on."""
        for held in (self.keys, self.values):
            held[:, :, to : to + len(slots)] = held[:, :, slots]


def positions_of(sees):  # [n, m] -> [n]
    """The position of each token of a tree, from the tokens that it sees: itself, and all before it on its path."""
    return sees.sum(axis=1, dtype=np.int64) - 1


class PlainPass(KVCache):
    """gpt2.py with its cache."""

    def __init__(self, params: dict, hparams: dict):
        n_head = hparams["n_head"]
        super().__init__(hparams["n_layer"], n_head, hparams["n_ctx"], hparams["n_embd"] // n_head)
        activation = ACTIVATIONS[hparams.get("activation_function", "gelu_new")]
        self.gpt2 = partial(gpt2, **params, n_head=n_head, cache=self, activation=activation)
        self.ln_f = params["ln_f"]
        self.wte = params["wte"]

    def __call__(self, tokens, n_last: int, sees=None) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The logits of the last n_last tokens, which come after the first `length`. hidden [n_last, n_embd] is then
        the last block's output for them. In a tree, sees [n, length + n] says which tokens each one sees."""
        self.sees = sees
        positions = None if sees is None else positions_of(sees)  # [n]
        with np.errstate(over="ignore", invalid="ignore"):  # check_finite sees an overflow in the logits
            return self.gpt2(tokens, n_last=n_last, positions=positions)

    def output(self, x) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        """The output layer alone: the logits of rows that the last block might have given."""
        return layer_norm(x, **self.ln_f) @ self.wte.T
