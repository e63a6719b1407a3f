"""The paper's two algorithms, under the blog's names and in its order.

x is the sequence of token ids, n its length, N the number of tokens to generate, T the final length (in the paper's
Algorithm 2 a minimum, as its last window may overshoot) and K the lookahead. **p is the draft's distribution and q the
target's**, as in the paper and the blog (Leviathan et al. 2023 swap the two and write γ for K).

A model is a function from tokens to distributions: model(x, n_last=1) -> [n_last, n_vocab], a row for each of the last
n_last tokens of x, the distribution of what follows it. Weights, temperature and caches are its business alone. A
drafter proposes, draft(x, k) -> Proposal of at most k tokens, and a rule accepts, accept(proposal, q, rng) -> Accepted.
The paper's own rule is token_by_token; accept.py has others.

Source: Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling", Algorithms 1 and 2;
the blog post "Speculative Sampling".
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np


class Proposal(NamedTuple):
    """Up to k tokens that may come after x. A plain pair (tokens, p) is one too.

    Losslessness asks no more than this: tokens[i] was drawn from p[i], given x and the tokens before it, with random
    numbers that nothing else uses; p[i] is one-hot where nothing was drawn; and a token that was drawn is never
    withdrawn, not even an improbable one. A bad drafter costs time and changes nothing else.
    """

    tokens: Sequence[int]  # [m]
    p: Sequence  # [m, n_vocab]
    by: Sequence[str] = ()  # [m], the name of who proposed each


NOTHING = Proposal([], [])


class Test(NamedTuple):
    """The test of one draft. Another rule may add fields after these."""

    u: float  # the random number
    p: float  # of the draft, to the draft model
    q: float  # of the draft, to the target
    passed: bool


class Own(NamedTuple):
    """The draw of a window's last token, which is the target's own."""

    u: float  # the random number
    q: Any  # [n_vocab], what it was drawn from: the target's row, or what is left of it after a rejection


class Accepted(NamedTuple):
    """A rule's verdict on a window."""

    tokens: list[int]  # the drafts that are kept, then one token of the target's own
    tests: list[Test]  # of each draft that was tested, in order
    own: Own | None = None  # the draw of that last token; None where a rule does not tell it


class Step(NamedTuple):
    """One iteration, that is one call of the target model. p and q of the whole window are in it: too large to keep."""

    tokens: list[int]  # the ids that are new
    proposal: Any  # a Proposal, or with trees a Tree
    q: Any  # [m + 1, n_vocab], the target's rows
    tests: list[Test]
    own: Own | None = None
    stopped: bool = (
        False  # whether a stop text has cut it: then all of its tokens are drafts, and none the target's own
    )

    @property
    def drafted(self) -> int:
        """The number of tokens that were proposed."""
        return len(self.proposal.tokens)

    @property
    def accepted(self) -> int:
        """The number of those that were accepted."""
        return len(self.tokens) - int(not self.stopped)

    @property
    def reached(self) -> int:
        """The number of positions of a chain that acceptance came to: the accepted drafts, and the one after them."""
        return min(self.accepted + 1, self.drafted)


def max_fn(x: np.ndarray) -> np.ndarray:  # [n_vocab] -> [n_vocab]
    """(x)_+ of the paper: max(0, x), normalised to a distribution; all zeros where nothing is above 0."""
    x_max = np.maximum(x, 0)  # [n_vocab]
    return x_max / max(x_max.sum(), np.finfo(x.dtype).tiny)  # [n_vocab]


def residual(q: np.ndarray, p: np.ndarray) -> np.ndarray:  # [n_vocab] twice -> [n_vocab]
    """max_fn(q - p): what q has and p lacks; q itself where that is nothing, as the two differ by rounding alone."""
    left = max_fn(q - p)  # [n_vocab]
    return left if left.any() else q


def token_at(u: float, p: np.ndarray) -> int:  # u, [n_vocab] -> id
    """The first id whose cumulative probability exceeds u times the sum, which rounding may keep from being 1. So it is
    never an id of probability 0."""
    cumulative = np.cumsum(p, dtype=np.float64)  # [n_vocab]
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def sample(p: np.ndarray, rng: np.random.Generator) -> int:  # [n_vocab] -> id
    """Draws one id from the distribution p, with exactly one rng.random()."""
    return token_at(rng.random(), p)


def autoregressive_sampling(x, model: Callable, N: int, rng: np.random.Generator) -> Iterator[Step]:
    """Algorithm 1, "Auto-regressive (ArS) with Auto-Regressive Models": one call of the model, one token; N times."""
    x = np.asarray(x)  # [n]
    n = len(x)
    T = n + N

    while n < T:
        q = model(x)  # [1, n_vocab], the one row: what follows the last token
        own = Own(rng.random(), q[0])
        token = token_at(*own)
        x = np.append(x, token)  # [n + 1]
        n += 1
        yield Step([token], NOTHING, q, [], own)


def token_by_token(proposal: Proposal, q, rng: np.random.Generator) -> Accepted:  # q [m + 1, n_vocab]
    """Steps 3 and 4 of Algorithm 2: the paper's rule of acceptance. u is its r.

    Whatever distributions p the drafts were drawn from, the tokens are distributed as the target's own (the paper's
    Theorem 1). It takes one rng.random() for each test, and one for the target's own token.
    """
    x_draft, p, _ = proposal  # [m], [m, n_vocab]
    tokens = []
    tests = []

    # Step 3: accept drafts from left to right; after a rejection, resample from max(0, q - p).
    for i, j in enumerate(map(int, x_draft)):
        u = rng.random()
        p_j = float(p[i][j])
        q_j = float(q[i][j])
        passed = u * p_j < q_j  # u < q / p; strict, so that q = 0 is never accepted
        tests.append(Test(u, p_j, q_j, passed))
        if not passed:
            q_own = residual(q[i], p[i])  # [n_vocab]
            break
        tokens.append(j)

    # Step 4: if all of them were accepted, the target's last row gives a bonus token.
    else:
        q_own = q[len(x_draft)]  # [n_vocab]

    own = Own(rng.random(), q_own)
    tokens.append(token_at(*own))
    return Accepted(tokens, tests, own)


def speculative_sampling(
    x,
    draft: Callable,
    target_model: Callable,
    N: int,
    K: int | Callable[[], int],
    rng: np.random.Generator,
    accept: Callable = token_by_token,
) -> Iterator[Step]:
    """Algorithm 2, "Speculative Sampling (SpS)": one call of the target, up to K + 1 tokens; exactly N tokens in all.

    K may also be a function that chooses the lookahead of the next iteration. accept: the rule; accept.py has others,
    and says which are lossless. (The blog's x_draft, p and q begin with the prompt; here they are the window alone, so
    i counts from 0.)
    """
    next_K = K if callable(K) else lambda: K
    x = np.asarray(x)  # [n]
    n = len(x)
    T = n + N

    while n < T:
        # Step 1: the draft proposes up to K tokens. The target adds one more of its own, so leave room.
        proposal = Proposal(*draft(x, min(next_K(), T - n - 1)))  # tokens [m], p [m, n_vocab]
        m = len(proposal.tokens)

        # Step 2: the target scores them all in one call; q[i] is its distribution at the position of tokens[i].
        q = target_model(np.append(x, proposal.tokens).astype(int), n_last=m + 1)  # [m + 1, n_vocab]

        # Steps 3 and 4: the rule keeps the first of them, none or all, and adds a token of the target's own.
        tokens, tests, own = accept(proposal, q, rng)
        x = np.append(x, tokens)  # [n + len(tokens)]
        n += len(tokens)
        yield Step(tokens, proposal, q, tests, own)
