"""How many experts of a mixture a window touches: the formula beside a count, with random routing.

    python -m benchmarks.experts

A feed-forward of E experts, of which each row is sent to k, reads the weights of only those that some row is sent to.
One row touches k. A window of more rows touches more, so it reads more, and it is no longer so that scoring a window
costs what scoring a token does. The routing here is synthetic: each row draws k different experts, all equally likely
and independent of the other rows. A trained router's rows are neither. Takes seconds.
"""

import numpy as np

from benchmarks.common import Parser, count, table
from speculative.cli import values
from speculative.cli.exits import guarded
from speculative.errors import UserError


def expected_experts(E, k, n_rows):
    """E (1 - (1 - k / E)^n_rows): each expert is missed by a row with chance 1 - k / E, by all with that to the power
    of n_rows. Over k, it is the β of the feed-forward where reading the experts is all that takes time."""
    return E * (1 - (1 - k / E) ** n_rows)


def count_experts(E, k, n_rows, n_windows, rng):  # -> [n_windows], how many different experts each window touches
    touched = np.zeros((n_windows, E), bool)  # [n_windows, E]
    for _ in range(n_rows):
        chosen = np.argsort(rng.random((n_windows, E)), axis=-1)[:, :k]  # [n_windows, k]
        np.put_along_axis(touched, chosen, True, axis=-1)
    return touched.sum(-1)


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "--experts", nargs="+", type=values.argument(values.integer(1, 1000)), default=[8, 16], help="E"
    )
    parser.add_argument("--k", type=count, default=2, help="experts for each row")
    parser.add_argument("--rows", nargs="+", type=values.argument(values.integer(1, 1000)), default=[*range(1, 10)])
    parser.add_argument("--windows", type=values.argument(values.integer(2, 10**5)), default=20_000)
    o = parser.parse_args()
    if o.k > min(o.experts):
        raise UserError(f"--k must be at most the number of experts, here {min(o.experts)}")
    rng, rows = np.random.default_rng(0), []
    for E in o.experts:
        for n in o.rows:
            counted = count_experts(E, o.k, n, o.windows, rng)
            row = {"E": E, "rows": n, "formula": expected_experts(E, o.k, n), "counted": counted.mean()}
            rows.append(row | {"sd": counted.std(), "ratio": counted.mean() / o.k})
    print(table(rows, "E rows formula:.3f counted:.3f sd:.2f over_one_row=ratio:.2f"))


if __name__ == "__main__":
    guarded(main)
