"""The gain of other lookaheads over this run's K, and how sure it is.

A run tests few drafts and times few calls, so it leaves open by how much another K would gain. Here the gain is drawn
many times over: each draw takes chances of acceptance that the tested drafts allow for, and costs that the timed calls
do. What holds in nearly all draws is worth a word.

Sources: Laplace's rule, by which a chance is Beta(passed + 1, failed + 1) distributed after so many tests, as if two
more had been made; the bootstrap of Efron 1979, by which a sample drawn from a sample, with replacement, errs as that
one does.
"""

import numpy as np

from speculative.measure.record import Record
from speculative.measure.timing import cost_of_rows, costs

DRAWS = 200
SURE = 0.95  # the share of the draws in which a gain has to show
NOISE = 0.05  # of a time: what is less may be chance, however often it was measured


def gains_of_other_K(autoregressive: Record, speculative: Record) -> np.ndarray:  # -> [DRAWS, 2K + 1]
    """The speed of each K from 0 to twice this run's own over that of the run: nothing was seen beyond.

    Its own K is the longest window. Some draft was tested, and measure.timing.costs are known.
    """
    K = max(i.step.drafted for i in speculative.iterations)
    alpha = [i.alpha for i in speculative.iterations]
    tested = np.array([sum(len(a) > j for a in alpha) for j in range(2 * K)])  # [2K]
    expected = np.array([sum(a[j] for a in alpha if len(a) > j) for j in range(2 * K)])  # [2K] to pass
    proposed = np.mean([i.step.drafted > 0 for i in speculative.iterations])
    rng = np.random.default_rng(0)

    def middles(seconds):  # [n] -> [DRAWS]
        return np.mean(rng.choice(seconds, (DRAWS, len(seconds))), axis=1)

    drawn = costs(autoregressive, speculative, middles)
    c = np.broadcast_to(drawn.c, DRAWS)
    betas = {rows: np.broadcast_to(cost, DRAWS) for rows, cost in drawn.beta.items()}
    gains = []
    for draw in range(DRAWS):
        line = cost_of_rows({rows: cost[draw] for rows, cost in betas.items()})
        beta = [max(1.0, line(k + 1)) for k in range(2 * K + 1)]  # [2K + 1]
        speedup = speedups(drawn_chances(tested, expected, rng), proposed, c[draw], beta)  # [2K + 1]
        gains.append(speedup / speedup[K])
    return np.stack(gains)


def drawn_chances(tested, expected, rng) -> np.ndarray:  # [n] tests, [n] the sum of their chances -> [n]
    """A draw of the chance of acceptance at each position. That of all positions together follows Laplace's rule; each
    one begins as if two more of its drafts had been tested, and had passed with that chance."""
    failed = np.maximum(0, tested - expected)  # [n]; chances add up to a little more than 1 by rounding
    of_all = rng.beta(expected.sum() + 1, failed.sum() + 1)
    each = rng.beta(expected + 2 * of_all, failed + 2 * (1 - of_all))  # [n]
    return np.where(tested > 0, each, of_all)


def speedups(chances, proposed: float, c: float, beta) -> np.ndarray:  # [n], ..., [n + 1] -> [n + 1]
    """The speedups of K = 0, ..., n, where a share of the iterations has drafts: see speculative.costs.best_k."""
    K = np.arange(len(beta))  # [n + 1]
    more = np.append(0, np.cumsum(np.cumprod(chances)))  # [n + 1] tokens beyond the target's own
    return (1 + proposed * more) / (1 + proposed * (K * c + np.asarray(beta) - 1))


def most_gaining_K(gains) -> tuple[int, float]:  # [DRAWS, n]
    """The K with the largest gain, as the middle of the draws has it, and that gain."""
    middle = np.median(gains, axis=0)  # [n]
    best = int(np.argmax(middle))
    return best, float(middle[best])


def better_K(gains) -> dict | None:  # [DRAWS, n]
    """The K that are sure to gain more than NOISE, and the gain of the surest; None where there are none."""
    at_least = np.quantile(gains, 1 - SURE, axis=0)  # [n]
    at_least[0] = 0  # which would not be speculation
    better = np.flatnonzero(at_least > 1 + NOISE)
    if not len(better):
        return None
    surest = int(np.argmax(at_least))
    return {
        "from": int(better[0]),
        "to": int(better[-1]),
        "gain": float(np.median(gains[:, surest])) - 1,
        "at_least": float(at_least[surest]) - 1,
        "sure": SURE,
    }
