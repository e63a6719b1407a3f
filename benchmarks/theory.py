"""The formulas of Leviathan et al. 2023, whose γ is our K, with a run's point on each.

    python -m benchmarks theory
    python main.py --demo --temperature 1 --json run.json
    python -m benchmarks theory --run run.json --out docs/theory.png

Nothing is decoded. The formulas take a window to cost as much as a row (β = 1). Without a run, Table 1 of Leviathan et
al. is computed.
"""

from functools import partial

import numpy as np

from benchmarks.plots import INK, draw
from benchmarks.tables import parser_of, table
from speculative.report.document import read_run
from speculative.report.figures import leviathan_tokens
from speculative.support.errors import UserError

K_MAX = 16
ALPHAS = np.linspace(0, 0.99, 100)
TABLE_1 = [(0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10)]  # α and K


def leviathan_speedup(alpha: float, K: int, c: float, beta: float = 1.0) -> float:
    """Expected improvement of the wall time. Source: Leviathan et al. 2023, theorem 3.8, with β for their 1."""
    return leviathan_tokens(alpha, K) / (K * c + beta)


def leviathan_operations(alpha: float, K: int) -> float:
    """Expected factor by which arithmetic operations grow, with a draft that costs none. Source: theorem 3.11."""
    return (K + 1) / leviathan_tokens(alpha, K)


def table_1() -> str:
    """Leviathan et al., Table 1: the operations and the speedup, at c = 0."""
    rows = []
    for alpha, K in TABLE_1:
        row = {"alpha": alpha, "K": K, "operations": leviathan_operations(alpha, K)}
        rows.append(row | {"speedup": leviathan_speedup(alpha, K, c=0)})
    return table(rows, "α=alpha:.1f K operations:.2f speedup:.2f")


def best_lookahead(alpha: float, c: float) -> int:
    """The K from 0, not to speculate, to K_MAX with the highest expected speedup at β = 1."""
    return max(range(K_MAX + 1), key=lambda K: leviathan_speedup(alpha, K, c))


def plot_theory(alpha: float, c: float, K: int, axes) -> None:
    expected, time, best = axes
    here = {"marker": "*", "color": INK, "markersize": 15, "linestyle": "", "zorder": 5}
    for lookahead in (1, 2, 4, 8):
        expected.plot(ALPHAS, [leviathan_tokens(a, lookahead) for a in ALPHAS], marker="", label=f"K = {lookahead}")
    expected.plot(alpha, leviathan_tokens(alpha, K), label=f"the run: α = {alpha:.2f}, K = {K}", **here)
    expected.set(xlabel="α", ylabel="tokens per iteration", title="The gain of acceptance")

    lookaheads = [*range(K_MAX + 1)]
    for cost in (0.01, 0.05, 0.1, 0.2, 0.4):
        time.plot(lookaheads, [1 / leviathan_speedup(alpha, k, cost) for k in lookaheads], label=f"c = {cost:g}", ms=4)
    time.plot(K, 1 / leviathan_speedup(alpha, K, c), label=f"the run: c = {c:.2f}", **here)
    time.set(xlabel="K", ylabel="time, of autoregressive decoding's", title=f"Time at α = {alpha:.2f}")

    costs = np.linspace(0.005, 0.6, 60)
    grid = [[best_lookahead(a, cost) for a in ALPHAS] for cost in costs]  # [n_costs, n_alphas]
    drawn = best.pcolormesh(ALPHAS, costs, grid, cmap="viridis", vmin=0, vmax=K_MAX)
    best.figure.colorbar(drawn, ax=best, label=f"best K (at most {K_MAX}; 0: do not speculate)")
    best.plot(alpha, c, **(here | {"color": "white", "markeredgecolor": INK}))
    best.grid(False)
    best.set(xlabel="α", ylabel="c = t_draft / t_target", title="The best K")

    for panel in (expected, time):
        panel.legend(fontsize=8)


def main(argv: list[str]) -> None:
    parser = parser_of("theory", __doc__)
    parser.add_argument("--run", help="the JSON file of a run, whose point is drawn")
    parser.add_argument("--out", default="theory.png", help="file for the picture")
    o = parser.parse_args(argv)
    if not o.run:
        return print(table_1())
    f = read_run(o.run).figures
    if not f.account or f.alpha is None:
        raise UserError(f"{o.run} is too short a run, without α, c or β: decode more tokens")
    alpha, c, beta, K = f.alpha, f.account.c, f.account.mean_beta, f.usual_K
    rows = []
    for which, k in (("the run's", K), ("the best", best_lookahead(alpha, c))):
        tokens = leviathan_tokens(alpha, k)
        rows.append({"which": which, "K": k, "tokens": tokens, "speedup": leviathan_speedup(alpha, k, c)})
    print(f"α = {alpha:.3f}, c = {c:.3f}; β = 1 below, and {beta:.2f} in the run")
    print(table(rows, "which K tokens/iteration=tokens:.2f speedup:.2f"))
    draw(o.out, f"Leviathan et al. with β = 1 (the run's was {beta:.2f})", 3, partial(plot_theory, alpha, c, K))
