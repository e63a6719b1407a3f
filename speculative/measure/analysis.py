"""The formulas of the papers, and the measurements that go into them.

Notation of Chen et al. 2023, as everywhere here: p is the draft's distribution, q the target's, K the lookahead.
Leviathan et al. 2023 swap p and q and write γ for K; their formulas stand below in our letters. (Their β, the
acceptance chance at one position, is a single value of acceptance_chance here; our β is a cost.) r and α are two
different acceptance rates: r is a share of the window, tokens / (iterations * (K + 1)), resampled and bonus tokens
counted, and α is a chance, that of one drafted token being accepted.

Costs are relative to one row of the target, the price of a token in plain decoding: c = t_draft / t_target is that of a
drafted token, β = t_target(K + 1 rows) / t_target(1 row) that of scoring the window. The papers take β for 1, as it
nearly is where reading the weights is all that takes time.
"""

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from statistics import median

import numpy as np

# ---- What the papers predict -----------------------------------------------------------------------------------------


def chen_speedup(r: float, K: float, c: float, beta: float = 1.0) -> float:
    """Speedup from r: r (K + 1) tokens are decoded in the time of K drafted ones and a window.

    Source: the blog post, "Speedup Results", where it predicts the speedups that Chen et al. 2023 report; β for its 1.
    """
    return r * (K + 1) / (K * c + beta)


def leviathan_tokens(alpha: float, K: int) -> float:
    """Expected tokens per iteration, between 1 and K + 1, if each draft is accepted with chance α, independently.

    Source: Leviathan et al. 2023, equation 1: (1 - α^(K + 1)) / (1 - α), which is the sum written here.
    """
    return sum(alpha**i for i in range(K + 1))


def leviathan_speedup(alpha: float, K: int, c: float, beta: float = 1.0) -> float:
    """Expected improvement of the wall time. Source: Leviathan et al. 2023, theorem 3.8, with β for their 1."""
    return leviathan_tokens(alpha, K) / (K * c + beta)


def leviathan_operations(alpha: float, K: int, c_operations: float = 0.0) -> float:
    """By what factor the arithmetic operations grow; c_operations is the draft's per token, over the target's.

    Source: Leviathan et al. 2023, theorem 3.11.
    """
    return (K * c_operations + K + 1) / leviathan_tokens(alpha, K)


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Expected tokens per iteration where position i accepts with chance acceptance[i], once it is reached.

    The first i drafts all pass with the product of their chances. With equal chances this is leviathan_tokens.
    """
    return 1 + sum(accumulate(acceptance, mul))


def largest_beta(alpha: float, K: int, c: float) -> float:
    """The largest β at which speculation still pays: where leviathan_speedup is 1."""
    return leviathan_tokens(alpha, K) - K * c


def best_k(acceptance: Sequence[float], c: float, beta: Callable[[int], float]) -> tuple[int, float]:
    """(K, speedup) of the best K from 0 (do not speculate: speedup 1) to len(acceptance).

    acceptance as for expected_tokens; beta: rows -> cost of a window, beta(1) = 1.
    """
    speedups = [expected_tokens(acceptance[:K]) / (K * c + beta(K + 1)) for K in range(len(acceptance) + 1)]
    K = int(np.argmax(speedups))  # the lowest on a tie
    return K, speedups[K]


# ---- How well a draft agrees -----------------------------------------------------------------------------------------


def acceptance_chance(p, q):  # [m, n_vocab] twice -> [m]
    """The chance at each position, whose mean is α: Σ min(p, q) = 1 - TVD(p, q).

    Source: Leviathan et al. 2023, corollary 3.6.

    A draft x ~ p passes with chance min(1, q(x) / p(x)); the sum of p(x) times that is this one.
    """
    return np.sum(np.minimum(p, q), axis=-1)


def matching_chance(p, q):  # [m, n_vocab] twice -> [m]
    """Σ p q: what naive matching would accept, that is to sample the target too and see whether the tokens agree."""
    return np.sum(np.multiply(p, q), axis=-1)


# ---- What the hardware allows ----------------------------------------------------------------------------------------


def plain_ceiling(weight_bytes: float, bandwidth: float) -> float:
    """Tokens a second that plain decoding cannot exceed: each token reads every weight once, at bandwidth bytes/s.

    Speculative sampling can, as one reading serves several tokens. Source: Chen et al. 2023, section 6.1. (Weights
    that fit into the processor's cache are read faster than memory allows, and are not bound by this.)
    """
    return bandwidth / weight_bytes


def experts_touched(n_experts: int, top_k: int, n_tokens: int) -> float:
    """Expected number of experts, per layer, that a window of n_tokens reads in a mixture of experts.

    A token leaves a given expert alone with chance 1 - top_k / n_experts, if routing is uniform and independent, and
    all of the window do with the power n_tokens of that whole difference (of top_k / n_experts alone, as the formula is
    sometimes misprinted, one token would touch n_experts - top_k). 8 experts, top 2, 5 tokens: 6.10 experts, where
    one token reads 2; so β is not 1.
    """
    return n_experts * (1 - (1 - top_k / n_experts) ** n_tokens)


def measure_costs(
    draft_model: Callable, target_model: Callable, x, rows=range(1, 18), repeats=5, clock=time.perf_counter
) -> tuple[float, dict[int, float]]:
    """(t_draft, {rows: t_target}) in seconds: medians, the repeats of all row counts interleaved.

    x [n] is any text of more than max(rows) tokens. The first round is not counted: it fills the caches with x, after
    which each call computes exactly the rows that it asks for.
    """
    calls = [(draft_model, 1), *((target_model, n) for n in rows)]
    seconds = [[] for _ in calls]
    for _ in range(repeats + 1):
        for (model, n_last), measured in zip(calls, seconds, strict=True):
            start = clock()
            model(x, n_last)
            measured.append(clock() - start)
    t_draft, *t_target = (median(measured[1:]) for measured in seconds)
    return t_draft, dict(zip(rows, t_target, strict=True))


def line_through(costs: dict[int, float]) -> Callable[[int], float]:
    """{rows: cost} at some row counts -> a function of any: straight between them, and on beyond the last.

    A single point, of one row, gives a constant.
    """
    known = sorted(costs)

    def cost(rows):
        if len(known) > 1 and rows > known[-1]:
            a, b = known[-2:]
            return costs[b] + max(0.0, costs[b] - costs[a]) / (b - a) * (rows - b)
        return float(np.interp(rows, known, [costs[n] for n in known]))

    return cost
