"""Texts that a model writes by itself, many at once, on the device."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from speculative.engines.jax.loop import to_distribution


class OneEach:
    """gpt2's cache for a batch of sequences, each of which is fed its n-th token: keys and values of each layer."""

    def __init__(self, gpt2, memory, n):  # memory: for each layer (keys, values) [n_head, n_batch, n_seq, d_head]
        self.gpt2 = gpt2
        self.memory = list(memory)
        self.n = n
        self.length = 0
        self.layers = [partial(self.attend, i) for i in range(len(memory))]

    def attend(self, i, q, k, v):  # [n_head, n_batch, d_head] -> the same
        keys, values = self.memory[i]
        keys = keys.at[:, :, self.n].set(k)
        values = values.at[:, :, self.n].set(v)
        self.memory[i] = keys, values
        scores = q[:, :, None] @ jnp.swapaxes(keys, -1, -2) / math.sqrt(q.shape[-1])  # [n_head, n_batch, 1, n_seq]
        scores = jnp.where(jnp.arange(keys.shape[2]) <= self.n, scores, -1e10)
        return (self.gpt2.softmax(scores) @ values)[:, :, 0]


@partial(jax.jit, static_argnums=(0, 1), static_argnames=("top_k", "top_p"))
def continuations(gpt2, n_head, params, x, n_prompt, temperature, key, top_k=None, top_p=None):
    """x [n_batch, n_seq], with all but the first n_prompt [n_batch] tokens of each row replaced by the model's own.

    Each row is written at its temperature [n_batch], with the filters of speculative/filters.py.
    """
    (n_batch, n_seq) = x.shape
    n_embd = params["wte"].shape[1]
    empty = jnp.zeros((n_head, n_batch, n_seq, n_embd // n_head))
    random = (temperature > 0)[:, None]  # [n_batch, 1]

    def one_token(state, n):
        x, memory = state
        cache = OneEach(gpt2, memory, n)
        wpe = jnp.broadcast_to(params["wpe"][n], (n_batch, n_embd))  # each row's next token is its n-th
        logits = gpt2.gpt2(x[:, n], **params | {"wpe": wpe}, n_head=n_head, cache=cache)  # [n_batch, n_vocab]
        logits = logits / jnp.where(random, temperature[:, None], 1)
        if top_k is not None or top_p is not None:
            logits = jnp.log(to_distribution(logits, 1.0, top_k, top_p))
        # The largest logit after adding Gumbel noise is a sample of softmax; without noise it is the greedy token.
        noise = jax.random.gumbel(jax.random.fold_in(key, n), logits.shape)  # [n_batch, n_vocab]
        drawn = jnp.argmax(logits + jnp.where(random, noise, 0), axis=-1)  # [n_batch]
        x = x.at[:, n + 1].set(jnp.where(n + 1 < n_prompt, x[:, n + 1], drawn))
        return (x, cache.memory), None

    memory = [(empty, empty)] * len(params["blocks"])
    (x, _), _ = jax.lax.scan(one_token, (x, memory), jnp.arange(n_seq - 1))
    return x
