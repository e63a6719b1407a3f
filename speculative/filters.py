"""From logits to the distribution that is sampled: the same function for draft and target, before p meets q.

The same as temperature, then top-k, top-p, min-p and eta, as in the library transformers. (In the code top-k comes
first: dividing keeps the order, but may round two logits to one.) The p that is tested must be the p that was drawn
from, and the q the one that the target would be sampled from: to filter after the ratio q / p, or to draw from a
filtered p and test with the unfiltered one, would change the output. Draft and target may well have different settings.

Source: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k); Holtzman et al. 2020, "The Curious Case of
Neural Text Degeneration" (top-p, or nucleus); Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling for Creative and
Coherent LLM Outputs"; Hewitt et al. 2022, "Truncation Sampling as Language Model Desmoothing", section 3.3 (eta).
"""

import math
from typing import NamedTuple

import numpy as np

from speculative.blog.gpt2 import softmax


class Filters(NamedTuple):
    """All of them as one value: an argument of both engines, and a function from logits to p or q."""

    temperature: float = 1.0  # >= 0: softmax(logits / temperature). 0 is greedy: all on the largest logit (lowest id on
    # a tie), and the others no longer matter. Close to 0, tied largest logits share the probability.
    top_k: int | None = None  # >= 1: keep the k largest logits, and those that are tied with the k-th
    top_p: float | None = None  # from 0 to 1: keep the fewest most probable tokens that have at least top_p of the
    # probability together, at least one, and those that are tied with the last of them
    min_p: float | None = None  # from 0 to 1: keep the tokens with at least min_p times the largest probability
    eta: float | None = None  # from 0 to 1: keep the typical tokens (is_typical)

    def __call__(self, logits: np.ndarray) -> np.ndarray:  # [n, n_vocab] -> [n, n_vocab]
        """Each row of logits as a distribution, independent of other rows. A logit of -inf is a probability of 0."""
        if self.temperature == 0:
            return one_hot(np.argmax(logits, axis=-1), logits.shape[-1])
        if self.top_k is not None:  # before the division, which may round two to one
            logits = largest(logits, self.top_k)  # [n, n_vocab]
        p = softmax(divide(logits, self.temperature))  # [n, n_vocab]
        for name, keeps in CUTS.items():
            value = getattr(self, name)
            if value is not None:
                p = np.where(keeps(p, value), p, 0)  # [n, n_vocab]
                p /= np.sum(p, axis=-1, keepdims=True)
        return p


GREEDY = Filters(temperature=0.0)


def one_hot(ids, n_vocab: int) -> np.ndarray:  # [n] -> [n, n_vocab]
    """All of the probability on one token in each row."""
    p = np.zeros((len(ids), n_vocab), np.float32)  # [n, n_vocab]
    p[np.arange(len(ids)), ids] = 1
    return p


def largest(logits: np.ndarray, k: int) -> np.ndarray:  # [n, n_vocab] -> [n, n_vocab]
    """The k largest logits of each row, and those that are tied with the k-th; -inf in place of the others."""
    if k >= logits.shape[-1]:
        return logits
    ordered = np.partition(logits, -k, axis=-1)  # [n, n_vocab], so far that the k-th largest has its place
    kth = ordered[:, -k, None]  # [n, 1]
    return np.where(logits >= kth, logits, -np.inf)  # [n, n_vocab]


def margins_of(logits) -> list[float]:  # [n, n_vocab] -> [n]
    """The distance of the two largest logits of each row."""
    others = np.array(logits)  # [n, n_vocab]
    rows = np.arange(len(others))
    best = np.argmax(others, axis=-1)  # [n]
    others[rows, best] = -np.inf  # to look twice takes a tenth of the time of np.partition
    second = np.max(others, axis=-1)  # [n]
    distances = logits[rows, best] - second  # [n]
    return distances.tolist()


def divide(logits: np.ndarray, temperature: float) -> np.ndarray:  # [n, n_vocab] -> [n, n_vocab]
    """logits / temperature, less the largest: at a tiny temperature they overflow to -inf and not to NaN."""
    temperature = min(max(temperature, 2.0**-126), 2.0**126)  # a float32 can hold it and its inverse
    with np.errstate(over="ignore"):
        return (logits - np.max(logits, axis=-1, keepdims=True)) / temperature


def nucleus_edge(p: np.ndarray, top_p: float) -> np.ndarray:  # [n, n_vocab] -> [n, 1]
    """The smallest probability in each row's nucleus.

    Sorting a large vocabulary is slow. Tokens below (1 - top_p) / n_vocab have less than 1 - top_p together, so the
    others have at least top_p, and the nucleus is among them.
    """
    edges = np.empty((len(p), 1), p.dtype)  # [n, 1]
    for edge, row in zip(edges, p, strict=True):
        total = float(np.sum(row, dtype=np.float64))  # 1 up to rounding
        least = (1 - top_p) * total / len(row)
        candidates = np.compress(row >= least, row)  # [n_candidates]
        candidates = np.sort(candidates)[::-1]  # [n_candidates], most probable first
        cumulative = np.cumsum(candidates, dtype=np.float64)  # [n_candidates]
        enough = top_p * total
        last = int(np.searchsorted(cumulative, enough))  # the first whose cumulative probability is enough
        edge[0] = candidates[min(last, len(candidates) - 1)]
    return edges


def is_typical(p, epsilon: float, xp=np):  # [n, n_vocab] -> [n, n_vocab] bool
    """p(x) > min(ε, √ε e**-H(p)), H the entropy in nats; the most probable token is always typical.

    If the model is sure of the next token, a typical one has more than ε. If it could go many ways, e**-H(p) is about
    1 over their number, and a share of that is enough. xp: numpy, or jax.numpy.
    """
    entropy = -xp.sum(p * xp.log(xp.maximum(p, xp.finfo(p.dtype).tiny)), axis=-1, keepdims=True)  # [n, 1]
    threshold = xp.minimum(epsilon, math.sqrt(epsilon) * xp.exp(-entropy))  # [n, 1]
    return (p > threshold) | (p == xp.max(p, axis=-1, keepdims=True))


# The filters on probabilities, in their order: each says which tokens it keeps. xp: numpy, or jax.numpy.
CUTS = {
    "top_p": lambda p, top_p, xp=np: p >= nucleus_edge(p, top_p),
    "min_p": lambda p, min_p, xp=np: p >= min_p * xp.max(p, axis=-1, keepdims=True),
    "eta": is_typical,
}
