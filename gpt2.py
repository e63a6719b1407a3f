"""GPT-2's forward pass, from scratch, in NumPy: token ids in, logits out.

Read it from the bottom up (gpt2 is the whole network) or from the top down (each function uses only those above it).
Activations have one row for each token; the comments give the shapes. In this file q, k and v are attention's queries,
keys and values; elsewhere q is the target's distribution and K the number of drafts in a window. The compiled kernels
that run by default are tested against this file.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the names are picoGPT's.
"""

import math

import numpy as np

# A Python float, as every constant below. Under NumPy 2 a np.float64 scalar, which np.sqrt gives, turns float32 arrays
# into float64: twice the bytes to read, and several times slower.
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def gelu(x):  # [n_seq, n_hidden] -> [n_seq, n_hidden]
    """Gaussian error linear unit, in the tanh approximation that GPT-2 was trained with (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1 + np.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))


def softmax(x):  # [..., n] -> [..., n]
    """Turns each row into a distribution. Subtracting the maximum changes nothing but keeps exp from overflowing."""
    exp_x = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return exp_x / np.sum(exp_x, axis=-1, keepdims=True)


def layer_norm(x, g, b, eps=1e-5):  # [n_seq, n_embd] -> [n_seq, n_embd]
    """Gives each row mean 0 and variance 1, then a learned gain g and bias b (Ba et al. 2016)."""
    x = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(x * x, axis=-1, keepdims=True)
    return g * (x / np.sqrt(variance + eps)) + b


def linear(x, w, b):  # [n_seq, n_in], [n_in, n_out], [n_out] -> [n_seq, n_out]
    """A matrix and a bias. w: an array, or an object that x @ w accepts, such as a rounded matrix."""
    return x @ w + b


def ffn(x, c_fc, c_proj, activation=gelu):  # [n_seq, n_embd] -> [n_seq, n_embd]
    """The feed-forward network: each row made four times as wide, a non-linearity, and back to its width."""
    a = activation(linear(x, **c_fc))  # [n_seq, n_embd] -> [n_seq, 4*n_embd]
    return linear(a, **c_proj)  # [n_seq, 4*n_embd] -> [n_seq, n_embd]


def attention(q, k, v):  # [n_head, n_q, d_head], [n_head, n_k, d_head] twice -> [n_head, n_q, d_head]
    """Causal attention (Vaswani et al. 2017, section 3.2.1), all heads in one batched product.

    The queries belong to the last n_q of the n_k tokens; each sees the keys up to its own and none after it.
    """
    n_q, d_head = q.shape[-2:]
    n_k = k.shape[-2]
    sees = np.tri(n_q, n_k, k=n_k - n_q, dtype=bool)  # [n_q, n_k], false where the key comes after the query
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(d_head)  # [n_head, n_q, n_k]
    weights = softmax(np.where(sees, scores, -1e10))  # [n_head, n_q, n_k]
    return weights @ v  # -> [n_head, n_q, d_head]


def mha(x, c_attn, c_proj, n_head, attend=attention):  # [n_seq, n_embd] -> [n_seq, n_embd]
    """Multi-head attention. attend(q, k, v) is attention itself, or that of a cache, which adds k and v to the keys and
    values of earlier tokens and attends to them all."""
    n_seq = len(x)
    x = linear(x, **c_attn)  # [n_seq, n_embd] -> [n_seq, 3*n_embd]
    x = np.reshape(x, (n_seq, 3, n_head, -1))  # -> [n_seq, 3, n_head, d_head]
    q, k, v = np.transpose(x, (1, 2, 0, 3))  # -> [3, n_head, n_seq, d_head]
    x = attend(q, k, v)  # -> [n_head, n_seq, d_head]
    x = np.reshape(np.transpose(x, (1, 0, 2)), (n_seq, -1))  # -> [n_seq, n_embd]
    return linear(x, **c_proj)  # [n_seq, n_embd] -> [n_seq, n_embd]


def transformer_block(x, mlp, attn, ln_1, ln_2, n_head, attend=attention):  # [n_seq, n_embd] -> [n_seq, n_embd]
    """Communicate (attention), then compute (feed-forward), each added to the residual stream that it reads."""
    x = x + mha(layer_norm(x, **ln_1), **attn, n_head=n_head, attend=attend)
    return x + ffn(layer_norm(x, **ln_2), **mlp)


def gpt2(inputs, wte, wpe, blocks, ln_f, n_head, cache=None, n_last=None):  # [n_seq] -> [n_last, n_vocab]
    """The logits of the tokens that follow each of the last n_last input tokens, by default of all.

    wte [n_vocab, n_embd] and wpe [n_ctx, n_embd] embed tokens and positions; blocks is the list of layers; the keys
    of its dicts are the argument names above, so the parameters are splatted straight in.

    A cache keeps the keys and values of the tokens before, cache.length in number, and inputs are the tokens after
    these. So they are not computed again: cache.attends[i], in the place of block i's attention, adds the new keys and
    values to the kept ones and attends over them all.
    """
    n_past = 0 if cache is None else cache.length
    attends = [attention] * len(blocks) if cache is None else cache.attends
    x = wte[inputs] + wpe[n_past : n_past + len(inputs)]  # [n_seq] -> [n_seq, n_embd]
    for block, attend in zip(blocks, attends, strict=True):
        x = transformer_block(x, **block, n_head=n_head, attend=attend)  # [n_seq, n_embd] -> [n_seq, n_embd]
    if n_last is not None:
        x = x[len(x) - n_last :]  # [n_seq, n_embd] -> [n_last, n_embd]
    if cache is not None:
        cache.length += len(inputs)
    return layer_norm(x, **ln_f) @ wte.T  # [n_last, n_embd] -> [n_last, n_vocab]
