"""The paper's two algorithms, under the blog's names and in its order.

x is the sequence of token ids, n its length, N the number of tokens to generate, T the final length (in the paper's
Algorithm 2 a minimum, as its last window may overshoot) and K the lookahead. **p is the draft's distribution and q the
target's**, as in the paper and the blog (Leviathan et al. 2023 swap the two and write γ for K).

A model is a function from tokens to distributions: model(x, n_last=1) -> [n_last, n_vocab], a row for each of the last
n_last tokens of x, the distribution of what follows it. Weights, temperature and caches are its business alone. A
drafter is draft(x, k) -> (tokens [m], p [m, n_vocab], by [m]) with m <= k, where p[i] is the distribution that
tokens[i] was drawn from, and by says who proposed it; a token that was drawn is never withdrawn.

Source: Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling", Algorithms 1 and 2;
the blog post "Speculative Sampling".
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np


class Step(NamedTuple):
    """What one iteration yields, that is one call of the target model."""

    tokens: list[int]  # the ids that are new in this step: the accepted drafts, then one of the target's own
    drafted: int  # how many tokens the drafter proposed
    accepted: int  # how many of those were accepted


def max_fn(x: np.ndarray) -> np.ndarray:  # [n_vocab] -> [n_vocab]
    """(x)_+ of the paper: max(0, x), normalised to a distribution; all zeros where nothing is above 0."""
    x_max = np.maximum(x, 0)  # [n_vocab]
    return x_max / max(x_max.sum(), np.finfo(x.dtype).tiny)  # [n_vocab]


def sample(p: np.ndarray, rng: np.random.Generator) -> int:  # [n_vocab] -> id
    """Draws one id from the distribution p, with exactly one rng.random(), u.

    It is the first id whose cumulative probability exceeds u times the sum of all. So one of probability 0 is never
    drawn.
    """
    cumulative = np.cumsum(p, dtype=np.float64)  # [n_vocab]
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def autoregressive_sampling(x, model: Callable, N: int, rng: np.random.Generator) -> Iterator[Step]:
    """Algorithm 1, "Auto-regressive (ArS) with Auto-Regressive Models": one call of the model, one token; N times."""
    x = np.asarray(x)  # [n]
    n = len(x)
    T = n + N

    while n < T:
        [q] = model(x)  # [n_vocab], the one row: what follows the last token
        token = sample(q, rng)
        x = np.append(x, token)  # [n + 1]
        n += 1
        yield Step([token], drafted=0, accepted=0)


def speculative_sampling(
    x,
    draft: Callable,
    target_model: Callable,
    N: int,
    K: int | Callable[[], int],
    rng: np.random.Generator,
    lenience: float = 1.0,
) -> Iterator[Step]:
    """Algorithm 2, "Speculative Sampling (SpS)": one call of the target, up to K + 1 tokens; exactly N tokens in all.

    Whatever distributions p the draft draws from, the tokens are distributed as the target's own (the paper's Theorem
    1). K may also be a function that chooses the lookahead of the next iteration. u is the paper's r. (The blog's
    x_draft, p and q begin with the prompt; here they are the window alone, so i counts from 0.)

    The theorem does not hold for a lenience below 1: u is then drawn from [0, lenience), more drafts are accepted, and
    the tokens are distributed neither as the target's nor as the draft's. (At temperature 0 it changes nothing.)
    Source of the lenience: Leviathan et al. 2023, appendix "Lenience"; u from [0, b) is toyllm's way to write it.
    """
    next_K = K if callable(K) else lambda: K
    x = np.asarray(x)  # [n]
    n = len(x)
    T = n + N

    while n < T:
        # Step 1: the draft proposes up to K tokens. The target adds one more of its own, so leave room.
        x_draft, p, _ = draft(x, min(next_K(), T - n - 1))  # [m], [m, n_vocab], and who proposed each
        m = len(x_draft)

        # Step 2: the target scores them all in one call; q[i] is its distribution at the position of x_draft[i].
        q = target_model(np.append(x, x_draft).astype(int), n_last=m + 1)  # [m + 1, n_vocab]

        # Step 3: accept drafts from left to right; after a rejection, resample from max(0, q - p).
        tokens = []
        for i in range(m):
            j = int(x_draft[i])
            u = rng.random() * lenience
            if u * float(p[i][j]) < float(q[i][j]):  # u < q / p; strict, so that q = 0 is never accepted
                tokens.append(j)
            else:
                residual = max_fn(q[i] - p[i])  # [n_vocab]
                if not residual.any():  # where p and q differ by rounding alone
                    residual = q[i]
                tokens.append(sample(residual, rng))
                break

        # Step 4: if all of them were accepted, the target's last row gives a bonus token.
        else:
            tokens.append(sample(q[m], rng))

        x = np.append(x, tokens)  # [n + len(tokens)]
        n += len(tokens)
        yield Step(tokens, drafted=m, accepted=len(tokens) - 1)
