"""gpt2.py as JAX trains it: its parameters at the start, its losses, and what it writes by itself."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from training.texts import windows


def init_params(hparams, rng):
    """GPT-2's: normal, 0.02 wide, and narrower where 2 * n_layer terms add up in the residual stream."""
    n_embd, n_layer = hparams["n_embd"], hparams["n_layer"]

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

    All but attention then sees one long row of tokens: this trains faster than jax.vmap over the windows.
    """

    def __init__(self, gpt2, n_layer, n_batch):
        def attend(q, k, v):  # [n_head, n_batch*n_ctx, d_head] -> the same
            n_head, n_tokens, d_head = q.shape
            q, k, v = (a.reshape(n_head, n_batch, n_tokens // n_batch, d_head) for a in (q, k, v))
            return gpt2.attention(q, k, v).reshape(n_head, n_tokens, d_head)

        self.length, self.layers = 0, [attend] * n_layer


def log_probs(gpt2, params, n_head, x):  # [n_batch, n_seq] -> [n_batch*n_seq, n_vocab]
    n_batch, n_seq = x.shape
    wpe = jnp.tile(params["wpe"][:n_seq], (n_batch, 1))  # [n_batch*n_seq, n_embd]
    cache = EndToEnd(gpt2, len(params["blocks"]), n_batch)
    return jax.nn.log_softmax(gpt2.gpt2(x.ravel(), **params | {"wpe": wpe}, n_head=n_head, cache=cache))


def cross_entropy(gpt2, n_head, params, x):  # [n_batch, n_seq + 1] -> nats per token
    """How surprised the model is by each next token."""
    log_q = log_probs(gpt2, params, n_head, x[:, :-1])  # [n_batch*n_seq, n_vocab]
    return -log_q[np.arange(len(log_q)), x[:, 1:].ravel()].mean()


def kl_divergence(gpt2, n_heads, target, params, x):  # [n_batch, n_seq] -> nats per token
    """From the target's distributions to the draft's, averaged over the tokens."""
    log_q = log_probs(gpt2, target, n_heads[0], x)  # [n_batch*n_seq, n_vocab]
    log_p = log_probs(gpt2, params, n_heads[1], x)  # [n_batch*n_seq, n_vocab]
    return (jnp.exp(log_q) * (log_q - log_p)).sum(-1).mean()


class OneEach:
    """Stands in gpt2's cache for a batch of sequences that all grow by their token n: keys, values for each layer."""

    def __init__(self, gpt2, memory, n):  # memory: for each layer (keys, values) [n_head, n_batch, n_ctx, d_head]
        self.gpt2, self.memory, self.n = gpt2, list(memory), n
        self.length, self.layers = 0, [partial(self.attend, i) for i in range(len(memory))]

    def attend(self, i, q, k, v):  # [n_head, n_batch, d_head] -> the same
        keys, values = self.memory[i]
        keys, values = self.memory[i] = keys.at[:, :, self.n].set(k), values.at[:, :, self.n].set(v)
        scores = q[:, :, None] @ jnp.swapaxes(keys, -1, -2) / math.sqrt(q.shape[-1])  # [n_head, n_batch, 1, n_ctx]
        scores = jnp.where(jnp.arange(keys.shape[2]) <= self.n, scores, -1e10)
        return (self.gpt2.softmax(scores) @ values)[:, :, 0]


def continuations(gpt2, hparams, params, x, n_prompt, temperature, key):  # [n_batch, n_ctx], [n_batch] twice -> like x
    """Replaces all but the first n_prompt tokens of a row by the model's own, drawn at that row's temperature."""
    n_batch, n_ctx = x.shape
    n_head, n_embd = hparams["n_head"], hparams["n_embd"]
    empty = jnp.zeros((n_head, n_batch, n_ctx, n_embd // n_head))

    def one_token(state, n):
        x, memory = state
        cache = OneEach(gpt2, memory, n)
        wpe = jnp.broadcast_to(params["wpe"][n], (n_batch, n_embd))  # each row's next token is its n-th
        logits = gpt2.gpt2(x[:, n], **params | {"wpe": wpe}, n_head=n_head, cache=cache)  # [n_batch, n_vocab]
        # Largest of the logits, each with Gumbel noise times the temperature: softmax's sample, argmax's at 0.
        noise = jax.random.gumbel(jax.random.fold_in(key, n), logits.shape)  # [n_batch, n_vocab]
        drawn = jnp.argmax(logits + temperature[:, None] * noise, axis=-1)  # [n_batch]
        x = x.at[:, n + 1].set(jnp.where(n + 1 < n_prompt, x[:, n + 1], drawn))
        return (x, cache.memory), None

    (x, _), _ = jax.lax.scan(one_token, (x, [(empty, empty)] * hparams["n_layer"]), jnp.arange(n_ctx - 1))
    return x


def own_text(gpt2, hparams, params, tokens, n_rows, temperatures, n_prompts, rng):  # -> [n_rows, n_ctx]
    """What the target makes of stretches of the text, each cut after some of n_prompts tokens, at some temperature."""
    run, rounds = jax.jit(partial(continuations, gpt2, hparams)), []
    for i in range(n_rows // 128):
        x = windows(tokens, hparams["n_ctx"] - 1, 128, rng)  # [128, n_ctx]
        n_prompt, temperature = rng.choice(n_prompts, 128), rng.choice(np.array(temperatures, np.float32), 128)
        rounds.append(np.asarray(run(params, x, n_prompt, temperature, jax.random.key(i))))
    return np.concatenate(rounds)
