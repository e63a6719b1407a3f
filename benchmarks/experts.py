"""The cost of a window for a mixture of experts: its tokens choose experts of their own, whose weights are all read.

    python -m benchmarks experts

Of E experts a token takes k. If the router chooses at random, a window of T tokens touches E (1 - ((E - k) / E)^T) of
them. A simulation beside the formula counts them. β is the window's experts over those of one token, if nothing but
experts is read.
"""

import numpy as np

from benchmarks.tables import parser_of, table, whole

MODELS = {  # a model -> its experts in a layer, and those that a token takes
    "Mixtral 8x7B": (8, 2),
    "Qwen3 30B-A3B": (128, 8),
    "DeepSeek-V3": (256, 8),
}


def experts_touched(n_experts: int, n_chosen: int, n_tokens: int) -> float:
    """Return the mean number of experts that n_tokens tokens choose, each n_chosen of n_experts at random."""
    return n_experts * (1 - ((n_experts - n_chosen) / n_experts) ** n_tokens)


def count_touched(n_experts: int, n_chosen: int, n_tokens: int, rng: np.random.Generator, draws: int) -> float:
    """Return the same by drawing the experts of each token."""
    total = 0
    for _ in range(draws):
        scores = rng.random((n_tokens, n_experts))  # [n_tokens, n_experts]
        chosen = np.argpartition(scores, n_chosen, axis=1)[:, :n_chosen]  # [n_tokens, n_chosen]
        total += len(np.unique(chosen))
    return total / draws


def main(argv: list[str]) -> None:
    parser = parser_of("experts", __doc__)
    parser.add_argument("--T", nargs="+", type=whole, default=[5], help="tokens of a window")
    parser.add_argument("--draws", type=whole, default=2000, help="windows to simulate")
    o = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    rows = []
    for name, (n_experts, n_chosen) in MODELS.items():
        for T in o.T:
            formula = experts_touched(n_experts, n_chosen, T)
            simulated = count_touched(n_experts, n_chosen, T, rng, o.draws)
            row = {"model": name, "E": n_experts, "k": n_chosen, "T": T}
            rows.append(row | {"formula": formula, "simulated": simulated, "beta": formula / n_chosen})
    print(table(rows, "model E:d k:d T:d formula:.2f simulated:.2f β=beta:.2f"))
