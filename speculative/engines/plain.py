"""gpt2.py itself as the engine, with a KV cache: the plainest one, which the others are tested against."""

import math
from functools import partial

import numpy as np

from speculative.blog.gpt2 import attention, gelu, gpt2, layer_norm, transformer_block
from speculative.engines.contract import Engine, Planned
from speculative.engines.formats import format_of
from speculative.engines.network import CachedNetwork, Rows
from speculative.support.errors import Option, UserError

SQRT_HALF = math.sqrt(0.5)
ERF = np.frompyfunc(math.erf, 1, 1)  # NumPy has none


def gelu_by_erf(x):  # [n_seq, n_hidden] -> [n_seq, n_hidden]
    """The function that gpt2.gelu approximates: x times the chance that a normal variable is below it."""
    return 0.5 * x * (1 + ERF(x * SQRT_HALF).astype(x.dtype))


ACTIVATIONS = {"gelu_new": gelu, "gelu": gelu_by_erf, "relu": partial(np.maximum, 0)}  # by their names in config.json


def with_activation(params: dict, activation) -> dict:
    """Parameters by which gpt2() takes another activation than gelu: ffn is given the keys of mlp as arguments."""
    blocks = [block | {"mlp": block["mlp"] | {"activation": activation}} for block in params["blocks"]]
    return params | {"blocks": blocks}


class KVCache:
    """The keys and values of the first `length` tokens, for every layer. Forgetting is moving `length` back."""

    def __init__(self, hparams: dict):
        n_head = hparams["n_head"]
        d_head = hparams["n_embd"] // n_head
        shape = (hparams["n_layer"], 2, n_head, hparams["n_ctx"], d_head)
        self.length = 0
        caches = np.empty(shape, np.float32)
        self.attends = [partial(self.attend, keys, values) for keys, values in caches]

    def attend(self, keys, values, q, k, v):  # [n_head, n_ctx, d_head] twice, [n_head, n_new, d_head] thrice
        """Appends k and v to one layer's keys and values, and attends from q to them all -> [n_head, n_new, d_head]."""
        n = self.length + k.shape[1]
        keys[:, self.length : n] = k
        values[:, self.length : n] = v
        return attention(q, keys[:, :n], values[:, :n])


class PlainPass:
    """gpt2() with a cache. It keeps no output of the last block: last_block computes that."""

    takes_trees = False

    def __init__(self, params: dict, hparams: dict):
        self.new_cache = partial(KVCache, hparams)  # makes the cache of one text
        activation = ACTIVATIONS[hparams.get("activation_function", "gelu_new")]
        self.params = with_activation(params, activation) | {"n_head": hparams["n_head"]}

    def __call__(self, tokens, n_last: int, n_past: int, cache: KVCache) -> Rows:  # [n]
        """The rows of the last n_last tokens, which come after the first n_past of the cache."""
        cache.length = n_past
        with np.errstate(over="ignore", invalid="ignore"):  # check_finite sees an overflow in the logits
            return Rows(gpt2(tokens, **self.params, cache=cache, n_last=n_last))

    def last_block(self, tokens):  # [n] -> [n_embd]
        """The last block's output for the last of these tokens, without the cache."""
        p = self.params
        x = p["wte"][tokens] + p["wpe"][: len(tokens)]  # [n, n_embd]
        for block in p["blocks"]:
            x = transformer_block(x, **block, n_head=p["n_head"])  # [n, n_embd]
        return x[-1]

    def output(self, x):  # [n, n_embd] -> [n, n_vocab]
        """The output layer alone: the logits of rows that the last block might have given."""
        return layer_norm(x, **self.params["ln_f"]) @ self.params["wte"].T


class NumpyEngine(Engine):
    """NumPy, in float32; weights of another format are rounded to it, and kept in float32."""

    name = "numpy"

    def words(self) -> str:
        return "NumPy (gpt2.py)"

    def check(self, plan: Planned) -> None:
        if plan.batch > 1:
            raise UserError(
                Option("batch"),
                " decodes prompts together with ",
                Option("engine"),
                " c or jax, where rows of several are cheap",
            )

    def pack(self, dtype: str, name: str, array: np.ndarray, in_place: bool = False) -> np.ndarray:
        format = format_of(name, array, dtype)
        if format is None:
            return np.array(array)
        if dtype == "float32":
            return array
        return format.round(array.T).T if name == "wte" else format.round(array)

    def network(self, params: dict, hparams: dict, name: str) -> CachedNetwork:
        network = CachedNetwork(params, hparams, PlainPass(params, hparams), name)
        network.warm_up()
        return network
