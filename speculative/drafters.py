"""Who proposes. A drafter is draft(x, k) -> (tokens [m], p [m, n_vocab]), m <= k; tokens[i] was drawn from p[i]."""

from collections.abc import Callable

import numpy as np

from .sampling import sample


def model_drafter(model: Callable, rng: np.random.Generator) -> Callable:
    """The blog's draft model: a smaller model, decoded autoregressively. Draws from the generator of its decoder."""

    def draft(x, k):  # [n], k -> [k], [k, n_vocab]
        tokens, p = [], []
        for _ in range(k):
            [p_i] = model(np.append(x, tokens).astype(int))  # [n_vocab]
            p.append(p_i)
            tokens.append(sample(p_i, rng))
        return tokens, p

    return draft
