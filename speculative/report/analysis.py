"""The formulas of the papers, in one notation.

p is the draft's distribution, q the target's, K the number of drafts in a window, as in Chen et al. 2023. (Leviathan et
al. 2023 swap p and q and write γ for K.) There are two acceptance rates: r is the share of the K + 1 tokens that an
iteration could give; α is the chance that one drafted token is accepted, 1 - TVD(p, q).

Costs are relative to one row of the target, the cost of a token in autoregressive decoding: c = t_draft / t_target is
the cost of a drafted token, β = t_target(K + 1 rows) / t_target(1 row) that of scoring a window. The papers take β for
1, as it nearly is if reading the weights takes all the time.
"""


def blog_speedup(r: float, K: float, c: float, beta: float = 1.0) -> float:
    """The speedup from r: r (K + 1) tokens are decoded in the time of K drafts and a window.

    Source: the blog post, "Speedup Results", which has 1 for β.
    """
    tokens = r * (K + 1)
    seconds = K * c + beta
    return tokens / seconds


def leviathan_tokens(alpha: float, K: int) -> float:
    """Expected tokens per iteration, between 1 and K + 1, if each draft is accepted with chance α, independently.

    Source: Leviathan et al. 2023, equation 1: (1 - α^(K + 1)) / (1 - α), which is the sum written here.
    """
    chances = [alpha**i for i in range(K + 1)]  # that the first i drafts are accepted
    return sum(chances)
