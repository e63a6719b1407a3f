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

from speculative.drafters.base import Drafter
from speculative.one_hot import OneHot
from speculative.trees import Tree

ALL = 1e-12  # the lenience: less than any probability that is left


def typical(q, epsilon: float):  # [n, n_vocab] -> [n, n_vocab]
    """What is left of each row where only probable tokens are. epsilon is between 0 and 1, so that the largest is."""
    if isinstance(q, OneHot):
        return q
    entropy = -np.sum(q * np.log(np.maximum(q, np.finfo(q.dtype).tiny)), axis=-1, keepdims=True)  # [n, 1]
    edge = np.minimum(epsilon, np.sqrt(epsilon) * np.exp(-entropy))  # [n, 1]
    left = np.where((q > edge) | (q == np.max(q, axis=-1, keepdims=True)), q, 0)  # [n, n_vocab]
    return left / np.sum(left, axis=-1, keepdims=True)


class TypicalTarget:
    """The target with such rows, for chains and trees."""

    def __init__(self, target_model: Callable, epsilon: float):
        self.model = target_model
        self.epsilon = epsilon

    def __call__(self, x, n_last: int = 1):  # -> [n_last, n_vocab]
        return typical(self.model(x, n_last), self.epsilon)

    def tree(self, x, tree: Tree, nodes=None):  # -> [m, n_vocab]
        return typical(self.model.tree(x, tree, nodes), self.epsilon)


def certain(drafter: Drafter, n_vocab: int) -> Drafter:
    """The same drafter, whose p say that nothing was drawn."""

    def chain(x, k):
        proposal = drafter.chain(x, k)
        return proposal._replace(p=OneHot(np.array(proposal.tokens, int), n_vocab))  # [m, n_vocab]

    def tree(x, shape):
        drafted = drafter.tree(x, shape)
        return replace(drafted, p=[None, *(OneHot(int(token), n_vocab) for token in drafted.tokens[1:])])

    return Drafter(chain, tree) if drafter.tree else Drafter(chain)
