"""Block verification: the window is tested as a block, so that it keeps more drafts than token by token.

Token by token, a draft that fails its test ends the window. By block the tests after it still count: the longest prefix
whose last draft passes is kept. What that gains, and why nothing is lost, stands in docs/walkthrough.md with numbers.

Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2.
"""

from typing import NamedTuple

import numpy as np

from speculative.sampling import Accepted, Own, Proposal, Step, residual, token_at


class BlockTest(NamedTuple):
    """A sampling.Test by block: it passed if u < h."""

    u: float
    p: float
    q: float
    passed: bool
    w: float  # the chance that this draft is kept, by its own test or by that of a later draft
    h: float  # the chance that this test passes


def chance_to_pass(w: float, q, p) -> float:  # q, p [n_vocab], of the place after the draft
    """h of a draft that is not the last: s / (s + 1 - w), s = Σ max(0, w q - p).

    Where s = 0 and w = 1, p and q are the same there, and the draft after this one is kept for certain. So h may be
    anything: 1 is right also where the two differ by rounding.
    """
    s = float(np.sum(np.maximum(w * q - p, 0), dtype=np.float64))
    return s / (s + 1 - w) if s + 1 - w > 0 else 1.0


def block_by_block(proposal: Proposal, q, rng: np.random.Generator) -> Accepted:  # q [m + 1, n_vocab]
    """The window is tested as a block: as lossless as token_by_token, and it keeps at least as many drafts on average.

    w is the product of the ratios q / p so far, cut to 1 after each. A draft is tested with a chance h that makes w the
    chance that it is kept, be it by its own test or by a later one. The longest prefix whose last draft passes is kept;
    the next token is drawn from what p leaves of w q. It takes one rng.random() for each draft, and one for the token.
    """
    x_draft, p, _ = proposal  # [m], [m, n_vocab]
    m = len(x_draft)
    w = [1.0]  # [m + 1], of no draft, of the first, ...
    tests = []
    kept = 0

    # Draft i is x_draft[i - 1]; so p[i] and q[i] are those of the place after it.
    for i, j in enumerate(map(int, x_draft), start=1):
        p_j = float(p[i - 1][j])
        q_j = float(q[i - 1][j])
        w.append(min(1.0, w[-1] * q_j / p_j))
        h = w[i]
        if i < m:
            h = chance_to_pass(w[i], q[i], p[i])
        u = rng.random()
        tests.append(BlockTest(u, p_j, q_j, u < h, w[i], h))
        if tests[-1].passed:
            kept = i

    q_own = q[m]  # [n_vocab]
    if kept < m:
        q_own = residual(w[kept] * q[kept], p[kept])  # [n_vocab]
    own = Own(rng.random(), q_own)
    return Accepted([*map(int, x_draft[:kept]), token_at(*own)], tests, own)


def chances(step: Step) -> list[float]:
    """The chance that one more draft is kept, at each place that was reached: (w - s) / w, w of the draft before it."""
    w = [1.0, *(test.w for test in step.tests)]
    window = zip(w[: step.reached], step.proposal.p, step.q, strict=False)
    return [float(np.sum(np.minimum(p_i, w_i * q_i))) / w_i for w_i, p_i, q_i in window]
