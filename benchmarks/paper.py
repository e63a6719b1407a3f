"""The papers' pictures that are formulas alone, with a run's point on each.

    python main.py --demo --temperature 1 --json run.json
    python -m benchmarks.paper theory --run run.json --out docs/theory.png

Takes seconds: nothing is decoded. --run is what main.py --json wrote; its α and c are the point. The formulas are those
of Leviathan et al. 2023, whose γ is our K, and take a window to cost what a row does (β = 1).
"""

import json
from functools import partial

import numpy as np

from benchmarks.common import Parser, table
from benchmarks.sweep import INK, draw
from speculative.cli.exits import guarded
from speculative.errors import UserError
from speculative.measure import files
from speculative.measure.analysis import leviathan_operations, leviathan_speedup, leviathan_tokens

LOOKAHEADS, COSTS, K_MAX = [1, 2, 4, 8], [0.01, 0.05, 0.1, 0.2, 0.4], 16
ALPHAS = np.linspace(0, 0.99, 100)


def read_point(path):
    """{"alpha", "c", "mean_beta", "K"} of a run, from the JSON file of main.py. Raises UserError."""
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)["figures"]
        point = {name: float(found[name]) for name in ("alpha", "c", "mean_beta")}
        return point | {"K": int(found["usual_K"])}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not what main.py --json writes of a run long enough to measure α and c") from None


def best_lookahead(alpha, c):
    """The K from 0, not to speculate, to K_MAX with the highest expected speedup at β = 1."""
    return max(range(K_MAX + 1), key=lambda K: leviathan_speedup(alpha, K, c))


def plot(point, axes):
    tokens, time, best, operations = axes
    alpha, c, K = point["alpha"], point["c"], point["K"]
    here = {"marker": "*", "color": INK, "markersize": 15, "linestyle": "", "zorder": 5}
    for lookahead in LOOKAHEADS:
        tokens.plot(ALPHAS, [leviathan_tokens(a, lookahead) for a in ALPHAS], marker="", label=f"K = {lookahead}")
    tokens.plot(alpha, leviathan_tokens(alpha, K), label=f"the run: α = {alpha:.2f}, K = {K}", **here)
    tokens.set(xlabel="α", ylabel="expected tokens per iteration", title="What acceptance brings")

    lookaheads = [*range(K_MAX + 1)]
    for cost in COSTS:
        time.plot(lookaheads, [1 / leviathan_speedup(alpha, k, cost) for k in lookaheads], label=f"c = {cost:g}", ms=4)
    time.plot(K, 1 / leviathan_speedup(alpha, K, c), label=f"the run: c = {c:.2f}", **here)
    time.set(
        xlabel="K",
        ylabel="time, of autoregressive decoding's",
        title=f"Time at α = {alpha:.2f}",
        xticks=range(0, K_MAX + 1, 2),
    )

    costs = np.linspace(0.005, 0.6, 60)
    grid = [[best_lookahead(a, cost) for a in ALPHAS] for cost in costs]  # [n_costs, n_alphas]
    drawn = best.pcolormesh(ALPHAS, costs, grid, cmap="viridis", vmin=0, vmax=K_MAX)
    best.figure.colorbar(drawn, ax=best, label=f"best K (at most {K_MAX}; 0: do not speculate)")
    best.plot(alpha, c, **(here | {"color": "white", "markeredgecolor": INK}))
    best.grid(False)
    best.set(xlabel="α", ylabel="c = t_draft / t_target", title="The best K")

    for a in (0.6, 0.7, 0.8, 0.9):
        known = [(leviathan_speedup(a, k, 0.0), leviathan_operations(a, k)) for k in range(11)]
        operations.plot(*np.transpose(known), label=f"α = {a:g}, K = 0 to 10", ms=4)
    operations.set(xlabel="speedup (×), if drafting is free", ylabel="operations (×)", title="What it is paid with")
    for panel in (tokens, time, operations):
        panel.legend(fontsize=8)


def main():
    parser = Parser(__doc__)
    parser.add_argument("figure", choices=["theory"])
    parser.add_argument("--run", required=True, help="the JSON file of a run, whose point is drawn")
    parser.add_argument("--out", default="theory.png", help="a file for the picture")
    o = parser.parse_args()
    point = read_point(o.run)
    files.check_writable(o.out)
    alpha, c, K = (point[name] for name in ("alpha", "c", "K"))
    best = best_lookahead(alpha, c)
    rows = [
        {
            **{"which": which, "K": k, "tokens": leviathan_tokens(alpha, k)},
            **{"speedup": leviathan_speedup(alpha, k, c), "operations": leviathan_operations(alpha, k)},
        }
        for which, k in (("the run's", K), ("the best", best))
    ]
    print(f"α = {alpha:.3f}, c = {c:.3f}; β = 1 below, and {point['mean_beta']:.2f} in the run")
    print(table(rows, "which K tokens/iteration=tokens:.2f speedup:.2f operations:.2f"))
    caption = (
        f"Formulas of Leviathan et al. 2023 with β = 1 (the run's was {point['mean_beta']:.2f}); the star is the run."
    )
    try:
        draw(o.out, "What the theory expects", caption, 4, partial(plot, point))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write to {o.out}: {error}") from None


if __name__ == "__main__":
    guarded(main)
