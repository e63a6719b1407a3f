"""What the kernels reach on this machine, beside NumPy and others: a pass over 1 to 17 rows, and a prefill.

    python -m benchmarks.kernels
    python -m benchmarks.kernels 124M 1558M --models_dir MODELS_DIR --rounds 7 --peers

Rows come after a context of 64 tokens; the time of several is over that of 1. GB/s are the bytes of the weights over
the time of 1 row; "of limit" is their share of what this machine reads from memory in the same rounds. An iteration is
4 rows of the first model, one by one, and 5 of the last at once. NumPy without a cache computes all tokens for each new
one, as the blog's code does: here 30, the mean of its run. All are medians of rounds in which row counts take turns.
"""

from functools import partial
from itertools import product

import numpy as np
from tqdm import tqdm

from benchmarks import peers
from benchmarks.common import MODELS, Parser, count, table, take_turns, write_results
from gpt2 import gpt2
from speculative.cli.exits import guarded
from speculative.engines import cached, packed
from speculative.errors import UserError
from speculative.measure.machine import read
from utils import load_encoder_hparams_and_params, model_folder

COLUMNS = f"""model weights 1_row_(ms)=ms:.1f {" ".join(f"{n}_rows=rows{n}:.2f" for n in peers.ROWS[1:])}
    GB/s=gb_per_s:.1f of_limit:.2f iteration_(ms)=iteration:.1f prefill=prefilled (ms)=prefill_ms:.0f
    over_NumPy's=prefill_over_numpy:.2f no_cache_(ms)=no_cache_ms:.1f"""


def row_of(model, weights, times):
    """A row for COLUMNS. times: {rows: seconds}"""
    relative = {f"rows{n}": times[n] / times[1] for n in peers.ROWS[1:]}
    return {"model": model, "weights": weights, "ms": 1e3 * times[1]} | relative


def measure(model, models_dir, weights, memory, rounds):
    """A row for COLUMNS. weights: a dtype, or NumPy."""
    convert = packed.packer(weights) if weights != "NumPy" else None
    _, hparams, params = load_encoder_hparams_and_params(model, models_dir, convert)
    run, n_prefill = (packed.new_pass if convert else cached.PlainPass)(params, hparams), min(512, hparams["n_ctx"])

    def forward(n_rows, n_past=peers.CONTEXT, n_last=None):
        run.length = n_past
        run(np.arange(n_rows), n_last or n_rows)

    tasks = {n: partial(forward, n) for n in peers.ROWS} | {"read": partial(read, memory, packed.most_threads())}
    slow = {"prefill": partial(forward, n_prefill, 0, 1)}
    if weights == "NumPy":
        slow["no_cache"] = partial(gpt2, np.arange(30), **params, n_head=hparams["n_head"])
    times = take_turns(tasks, rounds) | take_turns(slow, 3)
    speed, limit = cached.n_bytes(params) / times[1], memory.nbytes / times["read"]
    row = row_of(model, weights, times) | {"gb_per_s": speed / 1e9, "of_limit": speed / limit, "prefilled": n_prefill}
    return row | {f"{name}_ms": 1e3 * times[name] for name in slow}


def main():
    parser = Parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["tiny-draft", "tiny-target"])
    parser.add_argument("--models_dir", default=str(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=packed.DTYPES, default=[*packed.DTYPES])
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument("--threads", type=count)
    parser.add_argument("--peers", action="store_true", help="also what benchmarks/peers.py measures")
    parser.add_json()
    o = parser.parse_args()
    if not packed.kernels():
        raise UserError("there are no kernels to measure without numba: pip install numba")
    folders = {model: model_folder(model, o.models_dir) for model in o.models}
    others = peers.check(folders.values()) if o.peers else []
    packed.set_threads(o.threads)
    threads, memory, rows = packed.n_threads, np.ones(2**28, np.int64), []  # 2 GiB
    for model, weights in tqdm([*product(o.models, ("NumPy", *o.dtypes, *others))], disable=None):
        if weights in others:
            rows.append(row_of(model, weights, peers.measure(weights, folders[model], threads, o.rounds)))
        else:
            rows.append(measure(model, o.models_dir, weights, memory, o.rounds))
    found = {(row["model"], row["weights"]): row for row in rows}
    for row in rows:
        if "prefill_ms" in row:
            row["prefill_over_numpy"] = row["prefill_ms"] / found[row["model"], "NumPy"]["prefill_ms"]
        if row["model"] == o.models[-1]:
            row["iteration"] = 4 * found[o.models[0], row["weights"]]["ms"] + row["rows5"] * row["ms"]
    print(table(rows, COLUMNS))
    write_results(o.json, o, rows=rows)


if __name__ == "__main__":
    guarded(main)
