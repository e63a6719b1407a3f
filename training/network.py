"""gpt2.py as JAX trains it: its parameters at the start, and its logits for many windows of text at once."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from speculative.engines.jax import model as jax_model

load_gpt2 = functools.cache(jax_model.load_gpt2)  # one for all, so that what is compiled for it is compiled once


def init_params(hparams, rng):
    """GPT-2's: normal, 0.02 wide, and narrower where 2 * n_layer terms add up in the residual stream."""
    n_embd = hparams["n_embd"]
    n_layer = hparams["n_layer"]

    def normal(*shape, width=0.02):
        return (width * rng.standard_normal(shape)).astype(np.float32)

    def norm():
        return {"g": np.ones(n_embd, np.float32), "b": np.zeros(n_embd, np.float32)}

    def linear(n_in, n_out, width=0.02):
        return {"w": normal(n_in, n_out, width=width), "b": np.zeros(n_out, np.float32)}

    def block():
        narrow = 0.02 / math.sqrt(2 * n_layer)
        return {
            "ln_1": norm(),
            "attn": {"c_attn": linear(n_embd, 3 * n_embd), "c_proj": linear(n_embd, n_embd, narrow)},
            "ln_2": norm(),
            "mlp": {"c_fc": linear(n_embd, 4 * n_embd), "c_proj": linear(4 * n_embd, n_embd, narrow)},
        }

    return {
        "wte": normal(hparams["n_vocab"], n_embd),
        "wpe": normal(hparams["n_ctx"], n_embd),
        "blocks": [block() for _ in range(n_layer)],
        "ln_f": norm(),
    }


class EndToEnd:
    """Stands in gpt2's cache for a batch of windows laid end to end, each of which attends to itself alone.

    Everything but attention then sees one long row of tokens, which trains faster than jax.vmap over the windows.
    """

    def __init__(self, gpt2, n_layer, n_batch):
        def attend(q, k, v):  # [n_head, n_batch*n_ctx, d_head] -> the same
            n_head, n_tokens, d_head = q.shape
            q, k, v = (a.reshape(n_head, n_batch, n_tokens // n_batch, d_head) for a in (q, k, v))
            return gpt2.attention(q, k, v).reshape(n_head, n_tokens, d_head)

        self.length = 0
        self.layers = [attend] * n_layer


def log_probs(gpt2, params, n_head, x):  # [n_batch, n_seq] -> [n_batch*n_seq, n_vocab]
    n_batch, n_seq = x.shape
    wpe = jnp.tile(params["wpe"][:n_seq], (n_batch, 1))  # [n_batch*n_seq, n_embd]
    cache = EndToEnd(gpt2, len(params["blocks"]), n_batch)
    return jax.nn.log_softmax(gpt2.gpt2(x.ravel(), **params | {"wpe": wpe}, n_head=n_head, cache=cache))


def cross_entropy(gpt2, n_head, params, x):  # [n_batch, n_seq + 1] -> nats per token
    """-log p of each next token."""
    log_q = log_probs(gpt2, params, n_head, x[:, :-1])  # [n_batch*n_seq, n_vocab]
    return -log_q[np.arange(len(log_q)), x[:, 1:].ravel()].mean()
