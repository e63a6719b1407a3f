"""The formulas of the papers, in one notation.

That of Chen et al. 2023, as everywhere here: p is the draft's distribution, q the target's, K the lookahead. Leviathan
et al. 2023 swap p and q and write γ for K; their formulas stand below in our letters. (Their β, the chance of
acceptance at one position, is a single value of acceptance_chance here; our β is a cost.)

There are two acceptance rates. r is a share: of K + 1 tokens that an iteration could give, those it gave, resampled
and bonus tokens included. α is a chance: that of one drafted token being accepted.

Costs are relative to one row of the target, which is what a token costs in autoregressive decoding. c = t_draft /
t_target is the cost of a drafted token, β = t_target(K + 1 rows) / t_target(1 row) that of scoring a window. The papers
take β for 1, as it nearly is where reading the weights is all that takes time.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

# ---- Speedups --------------------------------------------------------------------------------------------------------


def blog_speedup(r: float, K: float, c: float, beta: float = 1.0) -> float:
    """Speedup from r: r (K + 1) tokens are decoded in the time of K drafts and a window.

    Source: the blog post, "Speedup Results", where it explains the speedups of Chen et al. 2023; it has 1 for β.
    """
    return r * (K + 1) / (K * c + beta)


def leviathan_tokens(alpha: float, K: int) -> float:
    """Expected tokens per iteration, between 1 and K + 1, if each draft is accepted with chance α, independently.

    Source: Leviathan et al. 2023, equation 1: (1 - α^(K + 1)) / (1 - α), which is the sum written here.
    """
    return sum(alpha**i for i in range(K + 1))


def expected_tokens(alphas: Sequence[float], K: int) -> float:
    """The same with a chance for each position, each if the drafts before it were accepted: 1 + a_1 + a_1 a_2 + ..."""
    return 1 + sum(accumulate(alphas[:K], mul))


def leviathan_speedup(alpha: float, K: int, c: float, beta: float = 1.0) -> float:
    """Expected improvement of the wall time. Source: Leviathan et al. 2023, theorem 3.8, with β for their 1."""
    return leviathan_tokens(alpha, K) / (K * c + beta)


def leviathan_operations(alpha: float, K: int, c_operations: float = 0.0) -> float:
    """The factor by which arithmetic operations grow; c_operations is the draft's per token, over the target's.

    Source: Leviathan et al. 2023, theorem 3.11.
    """
    return (K * c_operations + K + 1) / leviathan_tokens(alpha, K)


def largest_beta(alpha: float, K: int, c: float) -> float:
    """The largest β at which speculation still pays: where leviathan_speedup is 1."""
    return leviathan_tokens(alpha, K) - K * c


def ceiling(weight_bytes: float, bandwidth: float) -> float:
    """Tokens a second that autoregressive decoding cannot exceed: each reads every weight once, at bandwidth bytes/s.

    Speculative decoding can, as one reading serves several tokens. Source: Chen et al. 2023, section 6.1. (Weights that
    fit into the processor's cache are read faster than memory allows, and are not bound by this.)
    """
    return bandwidth / weight_bytes


def experts_read(chances: Sequence[float], rows: int) -> float:
    """Expected number of experts that a window reads, if each row is routed to expert e with chances[e], whatever the
    others are routed to. With k of E experts a row and all alike it is E (1 - (1 - k/E)^rows), and otherwise less.

    A mixture of experts reads only these, so its β grows with the rows also where reading is all that takes time.
    """
    return sum(1 - (1 - chance) ** rows for chance in chances)


# ---- How well a draft agrees -----------------------------------------------------------------------------------------


def acceptance_chance(p, q):  # [m, n_vocab] twice -> [m]
    """The chance at each position, whose mean is α: Σ min(p, q) = 1 - TVD(p, q).

    A draft x ~ p is accepted with chance min(1, q(x) / p(x)); the sum of p(x) times that is this one.
    Source: Leviathan et al. 2023, corollary 3.6.
    """
    return np.sum(np.minimum(p, q), axis=-1)


def matching_chance(p, q):  # [m, n_vocab] twice -> [m]
    """Σ p q: the chance that a token sampled from the target is the draft's, by which naive matching would accept."""
    return np.sum(np.multiply(p, q), axis=-1)
