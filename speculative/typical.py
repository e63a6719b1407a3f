"""Typical acceptance, which is not lossless: a draft is accepted where the target finds it probable enough, however
much more probable it was to the draft.

    q(x) > min(ε, √ε e**-H(q)),   H the entropy of q in nats

Where the target is sure of the next token, probable is what has more than ε; where it could go many ways, e**-H(q) is
about 1 over their number, and a share of that is enough. The target's own tokens are drawn from what is probable too.

In the terms of sampling.py: q is cut to what is probable; p is one-hot, so that a draft that was rejected leaves q as
it is; and the lenience is so small that all that is left of q is accepted.

Source: Cai et al. 2024, "Medusa", section 2.3.1, with δ = √ε, their default; Hewitt et al. 2022, "Truncation Sampling
as Language Model Desmoothing", section 3.3, which samples from the same tokens (η-sampling).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from speculative.one_hot import OneHot
from speculative.trees import Tree, one_hot

ALL = 1e-12  # the lenience: less than any probability that is left


def typical(q, epsilon: float):  # [n, n_vocab] -> [n, n_vocab]
    """What is left of each row where only probable tokens are. epsilon is between 0 and 1, so that the largest is."""
    if isinstance(q, OneHot):
        return q
    entropy = -np.sum(q * np.log(np.maximum(q, np.finfo(q.dtype).tiny)), axis=-1, keepdims=True)  # [n, 1]
    edge = np.minimum(epsilon, np.sqrt(epsilon) * np.exp(-entropy))  # [n, 1]
    left = np.where((q > edge) | (q == np.max(q, axis=-1, keepdims=True)), q, 0)  # [n, n_vocab]
    return left / np.sum(left, axis=-1, keepdims=True)


def typical_target(target_model: Callable, epsilon: float) -> Callable:
    """The target with such rows, for chains and trees."""

    def model(x, n_last=1):
        return typical(target_model(x, n_last), epsilon)  # [n_last, n_vocab]

    model.tree = lambda x, tree, nodes=None: typical(target_model.tree(x, tree, nodes), epsilon)  # [m, n_vocab]
    return model


def certain(draft: Callable, n_vocab: int) -> Callable:
    """The same drafter, or one of trees, whose p say that nothing was drawn."""

    def drafted(x, k):
        guesses = draft(x, k)
        drafted.proposers = getattr(draft, "proposers", [])
        if isinstance(guesses, Tree):
            return replace(guesses, p=[None, *(one_hot(token, n_vocab) for token in guesses.tokens[1:])])
        tokens, _ = guesses
        return tokens, OneHot(np.array(tokens, int), n_vocab)  # [m, n_vocab]

    return drafted
