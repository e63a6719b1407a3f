"""gpt2.py on JAX, for many rows of text at once: parameters to begin with, log-probabilities, and text that it writes.

Names: n_batch rows of n_seq tokens; p is the draft's distribution, q the target's.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speculative.engines.jax.model import DeviceNetwork, gpt2


class Model(NamedTuple):
    params: dict
    hparams: dict

    @property
    def n_head(self) -> int:
        return self.hparams["n_head"]


def init_params(hparams: dict, rng: np.random.Generator) -> dict:
    """GPT-2's: normal with a width of 0.02, less for the 2 * n_layer terms that the residual stream adds up."""
    n_embd = hparams["n_embd"]
    narrow = 0.02 / math.sqrt(2 * hparams["n_layer"])
    norm = {"g": np.ones(n_embd, np.float32), "b": np.zeros(n_embd, np.float32)}

    def normal(*shape, width=0.02):
        return (width * rng.standard_normal(shape)).astype(np.float32)

    def linear(n_in, n_out, width=0.02):
        return {"w": normal(n_in, n_out, width=width), "b": np.zeros(n_out, np.float32)}

    def block():
        attn = {"c_attn": linear(n_embd, 3 * n_embd), "c_proj": linear(n_embd, n_embd, narrow)}
        mlp = {"c_fc": linear(n_embd, 4 * n_embd), "c_proj": linear(4 * n_embd, n_embd, narrow)}
        return {"ln_1": norm, "attn": attn, "ln_2": norm, "mlp": mlp}

    wte = normal(hparams["n_vocab"], n_embd)
    wpe = normal(hparams["n_ctx"], n_embd)
    return {"wte": wte, "wpe": wpe, "blocks": [block() for _ in range(hparams["n_layer"])], "ln_f": norm}


def last_block(params: dict, n_head: int, x):  # [n_batch, n_seq] -> [n_batch*n_seq, n_embd]
    """The output of the last block. The rows are laid end to end, which is faster than jax.vmap over them; attention
    alone takes them apart."""
    n_batch, n_seq = x.shape

    def attend(q, k, v):  # [n_head, n_batch*n_seq, d_head] -> the same
        rows = (a.reshape(n_head, n_batch, n_seq, -1) for a in (q, k, v))
        return gpt2.attention(*rows).reshape(q.shape)

    h = params["wte"][x.ravel()] + jnp.tile(params["wpe"][:n_seq], (n_batch, 1))  # [n_batch*n_seq, n_embd]
    for block in params["blocks"]:
        h = gpt2.transformer_block(h, **block, n_head=n_head, attend=attend)  # [n_batch*n_seq, n_embd]
    return h


def head_log_probs(params: dict, h):  # [n, n_embd] -> [n, n_vocab]
    return jax.nn.log_softmax(gpt2.layer_norm(h, **params["ln_f"]) @ params["wte"].T)


def log_probs(params: dict, n_head: int, x):  # [n_batch, n_seq] -> [n_batch*n_seq, n_vocab]
    return head_log_probs(params, last_block(params, n_head, x))


def cross_entropy(n_head: int, params: dict, x):  # [n_batch, n_seq + 1] -> nats per token
    log_q = log_probs(params, n_head, x[:, :-1])  # [n_batch*n_seq, n_vocab]
    return -log_q[np.arange(len(log_q)), x[:, 1:].ravel()].mean()


@partial(jax.jit, static_argnums=1)
def write(params: dict, n_head: int, x, n_prompt, temperature, key):  # [n_batch, n_seq], [n_batch] twice
    """x [n_batch, n_seq] in which all but the first n_prompt tokens of each row are the model's own, at temperature."""
    n_batch, n_seq = x.shape
    n_ctx, n_embd = params["wpe"].shape
    hparams = {"n_layer": len(params["blocks"]), "n_ctx": n_ctx, "n_embd": n_embd, "n_head": n_head}
    network = DeviceNetwork(params, hparams, n_head, jnp.float32, mesh=None, split=False)
    forward = jax.vmap(network.forward, in_axes=(None, 0, None, 0))  # a row of text each

    def next_token(state, n):  # the n-th token of all rows -> the one after it
        x, caches = state
        logits, caches = forward(params, x[:, n, None], n, caches)  # [n_batch, 1, n_vocab]
        drawn = draw(logits[:, 0], temperature, jax.random.fold_in(key, n))  # [n_batch]
        is_given = n + 1 < n_prompt  # [n_batch]
        x = x.at[:, n + 1].set(jnp.where(is_given, x[:, n + 1], drawn))
        return (x, caches), None

    caches = jax.tree.map(lambda a: jnp.zeros((n_batch, *a.shape), a.dtype), network.new_cache(n_seq))
    (x, _), _ = jax.lax.scan(next_token, (jnp.asarray(x), caches), jnp.arange(n_seq - 1))
    return x


def draw(logits, temperature, key):  # [n_batch, n_vocab], [n_batch] -> [n_batch]
    """A token of each row at its temperature; at 0 the likeliest."""
    t = jnp.where(temperature > 0, temperature, 1)  # [n_batch]
    drawn = jax.random.categorical(key, logits / t[:, None])  # [n_batch]
    return jnp.where(temperature > 0, drawn, jnp.argmax(logits, axis=-1))
