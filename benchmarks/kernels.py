"""The speed of the kernels on this machine, beside NumPy and others: a pass over 1 to 17 rows, and a prefill.

    python -m benchmarks.kernels
    python -m benchmarks.kernels 124M 1558M --models_dir MODELS_DIR --dtypes float32 int8 --rounds 7 --peers
    python -m benchmarks.kernels 1558M --models_dir MODELS_DIR --tune

Rows come after a context of 64 tokens; the time of several rows is a multiple of that of one. The limit of a row is the
time in which this machine reads the bytes of the weights, at the bandwidth of the same rounds. An iteration is 4 rows
of the first model, one by one, and 5 of the last at once; its limit is that of 4 + 1 rows. A prompt has 512 tokens, or
as many as the model can see. All are medians of rounds in which the row counts take turns.

--tune measures what the kernels go by on this machine, whatever was found before: how many bytes ahead memory is asked
for with so many rows or more (ahead), how many rows a pass has at most (rows), and how many bytes of a tile several
passes share (share); for a model that this CPU's caches hold, how many threads it takes. It shows the time of each
candidate over that of the usual one, and what is taken.
"""

from functools import partial
from itertools import product
from statistics import median

import numpy as np
from tqdm import tqdm

from benchmarks import peers
from benchmarks.bandwidth import read
from benchmarks.common import MODELS, Parser, count, write_results
from benchmarks.tables import forward, table, take_turns
from speculative.checkpoints.folders import model_folder
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.engines import formats, packed, plain, runtime
from speculative.support.errors import UserError, guarded

WEIGHTS = ["NumPy", *formats.FORMATS]  # NumPy: gpt2.py itself, in float32
COLUMNS = f"""model weights 1_row_(ms)=ms:.1f {" ".join(f"{n}_rows=rows{n}:.2f" for n in peers.ROWS[1:])}
    over_limit:.2f iteration_(ms)=iteration:.1f over_limit=iteration_over_limit:.2f
    prompt=prompt_tokens (ms)=prompt_ms:.0f"""
TUNED = "model weights choice rounds times_over_the_usual=found taken"


def row_of(model, weights, times):
    """A row for COLUMNS. times: as peers.take_all_turns gives them; None where there are none."""
    row = {"model": model, "weights": weights}
    if not times:
        return row | {"ms": "–"}
    relative = {f"rows{n}": times[n] / times[1] for n in peers.ROWS[1:]}
    prompt = {"prompt_tokens": times["prompt_tokens"], "prompt_ms": 1e3 * times["prompt"]}
    return row | {"ms": 1e3 * times[1]} | relative | prompt


def load(model, models_dir, weights):
    """hparams and params. weights: a dtype, or NumPy."""
    convert = packed.packer(weights) if weights != "NumPy" else None
    _, hparams = load_encoder_and_hparams(model, models_dir)
    return hparams, load_params(complete_folder(model, models_dir), hparams, convert)


def measure(model, models_dir, weights, memory, rounds):
    """A row for COLUMNS."""
    hparams, params = load(model, models_dir, weights)
    run = (plain.PlainPass if weights == "NumPy" else runtime.new_pass)(params, hparams)
    if weights != "NumPy":
        forward(run, 1)
        runtime.tune(params, hparams)
    tasks = {n: partial(forward, run, n, peers.CONTEXT) for n in peers.ROWS}
    times = take_turns(tasks | {"read": partial(read, memory, runtime.most_threads())}, rounds)
    n_prompt = min(peers.PROMPT, hparams["n_ctx"])
    times |= take_turns({"prompt": partial(forward, run, n_prompt, 0, 1)}, 3) | {"prompt_tokens": n_prompt}
    limit = plain.n_bytes(params) * times["read"] / memory.nbytes
    limits = {"limit_ms": 1e3 * limit, "over_limit": times[1] / limit}
    return row_of(model, weights, times) | limits


def tune(model, models_dir, dtype):
    """Rows for TUNED. Raises UserError."""
    hparams, params = load(model, models_dir, dtype)
    forward(runtime.new_pass(params, hparams), 1)
    tuned = runtime.tune(params, hparams, limit=10.0, anew=True)
    if not tuned:
        raise UserError(f"{model} in {dtype} fits into this CPU's caches, and has one core: there is nothing to choose")
    for name, ratios in tuned.ratios.items():
        found = ", ".join(f"{candidate}: {median(found):.2f}" for candidate, found in ratios.items())
        n_rounds = max(map(len, ratios.values()))
        row = {"model": model, "weights": dtype, "choice": name, "rounds": n_rounds}
        yield row | {"found": found, "taken": tuned.chosen[name]}


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["tiny-draft", "tiny-target"])
    parser.add_argument("--models_dir", default=str(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument("--threads", type=count)
    parser.add_argument("--peers", action="store_true", help="also what benchmarks/peers.py measures")
    parser.add_argument("--tune", action="store_true", help="find out anew what the kernels go by")
    parser.add_json()
    o = parser.parse_args(argv)
    if not runtime.compiled_pass():
        raise UserError("there are no kernels to measure without numba: pip install numba")
    folders = {model: model_folder(model, o.models_dir) for model in o.models}
    others = peers.check(folders.values()) if o.peers else []
    runtime.set_threads(o.threads)
    threads = runtime.n_threads
    if o.tune:
        dtypes = [dtype for dtype in o.dtypes if dtype != "NumPy"]
        rows = [row for model, dtype in product(o.models, dtypes) for row in tune(model, o.models_dir, dtype)]
        print(table(rows, TUNED))
        return write_results(o.json, o, rows=rows)
    memory = np.ones(2**28, np.int64)  # 2 GiB
    rows = []
    for model, weights in tqdm([*product(o.models, (*o.dtypes, *others))], disable=None):
        if weights in others:
            rows.append(row_of(model, weights, peers.measure(weights, folders[model], threads, o.rounds)))
        else:
            rows.append(measure(model, o.models_dir, weights, memory, o.rounds))
    found = {(row["model"], row["weights"]): row for row in rows}
    for row in (row for row in rows if row["model"] == o.models[-1]):
        draft = found[o.models[0], row["weights"]]
        if "–" in (draft["ms"], row["ms"]):
            continue
        row["iteration"] = 4 * draft["ms"] + row["rows5"] * row["ms"]
        if "limit_ms" in row:
            row["iteration_over_limit"] = row["iteration"] / (4 * draft["limit_ms"] + row["limit_ms"])
    print(table(rows, COLUMNS))
    write_results(o.json, o, rows=rows)


if __name__ == "__main__":
    guarded(main)
