"""The formulas of Leviathan et al. 2023, whose γ is our K, with a run's point on each.

    python main.py --demo --temperature 1 --json run.json
    python -m benchmarks.theory --run run.json --out docs/theory.png

Nothing is decoded. The formulas take a window to cost what a row does (β = 1).
"""

import json
from functools import partial

import numpy as np

from benchmarks.common import Parser, writing
from benchmarks.formulas import leviathan_operations
from benchmarks.pictures import INK, draw, picture
from benchmarks.tables import table
from speculative.measure.analysis import leviathan_speedup, leviathan_tokens
from speculative.support import files
from speculative.support.errors import UserError, guarded

LOOKAHEADS = [1, 2, 4, 8]
COSTS = [0.01, 0.05, 0.1, 0.2, 0.4]
K_MAX = 16
ALPHAS = np.linspace(0, 0.99, 100)


def read_point(path):
    """{"alpha", "c", "mean_beta", "K"} of a run, from the JSON file of main.py. Raises UserError."""
    try:
        with open(path, "rb") as f:
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


def plot_theory(point, axes):
    expected, time, best, operations = axes
    alpha = point["alpha"]
    c = point["c"]
    K = point["K"]
    here = {"marker": "*", "color": INK, "markersize": 15, "linestyle": "", "zorder": 5}
    for lookahead in LOOKAHEADS:
        expected.plot(ALPHAS, [leviathan_tokens(a, lookahead) for a in ALPHAS], marker="", label=f"K = {lookahead}")
    expected.plot(alpha, leviathan_tokens(alpha, K), label=f"the run: α = {alpha:.2f}, K = {K}", **here)
    expected.set(xlabel="α", ylabel="expected tokens per iteration", title="What acceptance brings")

    lookaheads = [*range(K_MAX + 1)]
    for cost in COSTS:
        time.plot(lookaheads, [1 / leviathan_speedup(alpha, k, cost) for k in lookaheads], label=f"c = {cost:g}", ms=4)
    time.plot(K, 1 / leviathan_speedup(alpha, K, c), label=f"the run: c = {c:.2f}", **here)
    time.set(xlabel="K", ylabel="time, of autoregressive decoding's", xticks=range(0, K_MAX + 1, 2))
    time.set_title(f"Time at α = {alpha:.2f}")

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
    for panel in (expected, time, operations):
        panel.legend(fontsize=8)


def show(point):
    """Prints a run's point in the formulas."""
    alpha, c, K = (point[name] for name in ("alpha", "c", "K"))
    rows = []
    for which, k in (("the run's", K), ("the best", best_lookahead(alpha, c))):
        row = {"which": which, "K": k, "tokens": leviathan_tokens(alpha, k), "speedup": leviathan_speedup(alpha, k, c)}
        rows.append(row | {"operations": leviathan_operations(alpha, k)})
    print(f"α = {alpha:.3f}, c = {c:.3f}; β = 1 below, and {point['mean_beta']:.2f} in the run")
    print(table(rows, "which K tokens/iteration=tokens:.2f speedup:.2f operations:.2f"))


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_argument("--run", required=True, help="the JSON file of a run, whose point is drawn")
    parser.add_argument("--out", type=picture, default="theory.png", help="a file for the picture")
    o = parser.parse_args(argv)
    files.check_outputs([o.out], [o.run])
    point = read_point(o.run)
    show(point)
    with writing(o.out):
        caption = f"Formulas of Leviathan et al. 2023 with β = 1 (the run's was {point['mean_beta']:.2f}); "
        draw(o.out, "What the theory expects", f"{caption}the star is the run.", 4, partial(plot_theory, point), 2)


if __name__ == "__main__":
    guarded(main)
