"""The point at which scoring a window begins to cost more than scoring a token: β, the ratio of the two.

    python -m benchmarks assumption

B sequences are scored at once after 64 tokens each, and one sequence after longer contexts, whose keys and values are a
growing share of the bytes that a step reads. (Of B sequences only one has a cache here.) Times are medians of rounds in
which all take turns. The models have random weights, in the shapes of 1558M (the target) and 124M (the draft), cut to a
twelfth of their layers and vocabulary, still far more than a cache holds. Such models agree on nothing, so --alpha is
the chance that a draft is accepted. "Roofline" is β if n rows take as long as one, or n times a row's arithmetic,
whichever is more; speedups are those of Leviathan et al., "predicted" with the roofline's β.
"""

from functools import partial
from itertools import product

import numpy as np

from benchmarks.kernels import forward, new_pass, packer
from benchmarks.tables import parser_of, table, take_turns
from benchmarks.theory import leviathan_speedup
from speculative.checkpoints.tensors import checkpoint_shapes, nested
from speculative.engines.model import n_bytes
from speculative.engines.system import n_cores

CUT = 12  # one layer and one token in so many stays
SHAPES = {"target": (25, 48), "draft": (12, 12)}  # n_head of 64 channels, n_layer of 1558M and 124M
COLUMNS = "dtype B context cache's_share=share:.1% ms:.1f c:.2f β=beta:.2f roofline:.2f speedup:.2f predicted:.2f"


def random_model(name: str, dtype: str, narrower: int) -> tuple:
    """-> (forward(n_rows, n_past), bytes of the weights, bytes that a token adds to the cache)"""
    n_head, n_layer = SHAPES[name]
    n_head = max(1, n_head // narrower)
    hparams = {"n_vocab": 50257 // CUT, "n_ctx": 1024, "n_embd": 64 * n_head, "n_head": n_head}
    hparams["n_layer"] = n_layer // CUT
    rng = np.random.default_rng(0)
    convert = packer(dtype)
    shapes = checkpoint_shapes(hparams).items()
    params = nested({name: convert(name, rng.uniform(-0.02, 0.02, s).astype(np.float32)) for name, s in shapes})
    held = 8 * hparams["n_layer"] * hparams["n_embd"]
    return partial(forward, new_pass(params, hparams, dtype, n_cores())), n_bytes(params), held


def measure(o, dtype: str) -> list[dict]:
    (target, weights, held), (draft, *_) = (random_model(name, dtype, o.narrower) for name in SHAPES)
    points = [(B, 64) for B in o.B] + [(1, context) for context in o.contexts]
    tasks = {("draft", *point): partial(draft, *point) for point in points}
    for (B, past), window in product(points, (1, o.K + 1)):
        tasks["target", B * window, past] = partial(target, B * window, past)
    t = take_turns(tasks, o.rounds)
    row_arithmetic = min(t["target", B * n, past] / (B * n) for B, past in points for n in (1, o.K + 1))
    rows = []
    for B, past in points:
        step = t["target", B, past]
        c = t["draft", B, past] / step
        beta = t["target", B * (o.K + 1), past] / step
        row = {"dtype": dtype, "B": B, "context": past, "ms": 1e3 * step, "c": c, "beta": beta}
        row["share"] = held * past / (held * past + weights)
        row["roofline"] = max(step, B * (o.K + 1) * row_arithmetic) / max(step, B * row_arithmetic)
        row["speedup"] = leviathan_speedup(o.alpha, o.K, c, beta)
        rows.append(row | {"predicted": leviathan_speedup(o.alpha, o.K, c, row["roofline"])})
    return rows


def main(argv: list[str]) -> None:
    parser = parser_of("assumption", __doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--alpha", type=float, default=0.8)
    parser.add_argument("--K", type=int, default=4)
    parser.add_argument("--B", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--contexts", nargs="+", type=int, default=[250, 500, 1000])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--narrower", type=int, default=1, help="divide the number of heads by this, for a trial")
    o = parser.parse_args(argv)
    print(table([row for dtype in o.dtypes for row in measure(o, dtype)], COLUMNS))
