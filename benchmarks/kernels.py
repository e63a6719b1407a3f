"""The time of a forward pass, for each weight format: 1 to 17 rows, and a prompt.

    python -m benchmarks kernels
    python -m benchmarks kernels 124M 1558M --models_dir MODELS_DIR --dtypes float32 int8 --rounds 7

Rows come after a context of 64 tokens; the time of several rows is a multiple of that of one. The limit of a row is the
time in which this machine reads the bytes of the weights, at the bandwidth of the same rounds. A prompt has 512 tokens,
or as many as the model can see. All are medians of rounds in which the row counts take turns. dtype NumPy is gpt2.py.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.runs import MODELS
from benchmarks.tables import parser_of, table, take_turns, whole
from speculative.checkpoints.folder import look, open_checkpoint
from speculative.checkpoints.weights import read_all
from speculative.engines.c import packing
from speculative.engines.c.engine import CEngine
from speculative.engines.c.forward import CompiledPass
from speculative.engines.formats import FORMATS, n_bytes
from speculative.engines.plain import PlainPass

ROWS = (1, 5, 9, 17)
CONTEXT = 64  # tokens in the cache when rows are timed
PROMPT = 512  # tokens, or as many as the model can see
DTYPES = ["NumPy", *FORMATS]
COLUMNS = f"""model weights 1_row_(ms)=ms:.2f {" ".join(f"{n}_rows=rows{n}:.2f" for n in ROWS[1:])}
    over_limit:.2f prompt=prompt_tokens (ms)=prompt_ms:.0f"""


def new_pass(params: dict, hparams: dict, dtype: str, threads: int):
    """run(tokens, n_last, n_past, cache) -> outputs. dtype: a weight format, or NumPy for gpt2.py."""
    return PlainPass(params, hparams) if dtype == "NumPy" else CompiledPass(params, hparams, threads)


def packer(dtype: str):
    """convert(name, array) for read_all."""
    return (lambda name, array: array) if dtype == "NumPy" else partial(packing.pack, dtype)


def forward(run, cache, n_rows: int, n_past: int = CONTEXT, n_last: int | None = None) -> None:
    """A pass over n_rows rows after n_past tokens, up to the logits of the last n_last, or of all."""
    run(np.arange(n_rows), n_last or n_rows, n_past, cache)


def read(memory: np.ndarray, threads: int) -> None:  # [n]
    """Read memory once, with nothing else to do: the limit of a forward pass."""
    parts = np.array_split(memory, 32 * threads)  # small enough that no thread waits long for another at the end
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.sum, parts))


def measure(folder: str, dtype: str, memory: np.ndarray, rounds: int, threads: int) -> dict:
    """The times of a pass, as columns. memory: an array far larger than the caches; reading it in the same rounds gives
    the bandwidth."""
    files = open_checkpoint(look(folder))
    hparams = files.hparams
    params = read_all(files.open_weights(), packer(dtype))
    run = new_pass(params, hparams, dtype, threads)
    cache = run.new_cache()
    if isinstance(run, CompiledPass):
        forward(run, cache, 1)
        run.tune(cache)
    tasks = {n: partial(forward, run, cache, n) for n in ROWS}
    times = take_turns(tasks | {"read": partial(read, memory, threads)}, rounds)
    limit = n_bytes(params) * times["read"] / memory.nbytes
    n_prompt = min(PROMPT, hparams["n_ctx"])
    prompt = take_turns({"prompt": partial(forward, run, cache, n_prompt, 0, 1)}, 3)["prompt"]
    row = {"ms": 1e3 * times[1], "over_limit": times[1] / limit, "prompt_tokens": n_prompt, "prompt_ms": 1e3 * prompt}
    return row | {f"rows{n}": times[n] / times[1] for n in ROWS[1:]}


def main(argv: list[str]) -> None:
    parser = parser_of("kernels", __doc__)
    parser.add_argument("models", nargs="*", default=["tiny-draft", "tiny-target"])
    parser.add_argument("--models_dir", default=str(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--rounds", type=whole, default=9)
    parser.add_argument("--threads", type=whole)
    parser.add_argument("--memory", type=float, default=2.0, help="GiB that are read to measure the bandwidth")
    o = parser.parse_args(argv)
    folders = {model: str(Path(o.models_dir, model)) for model in o.models}
    threads = CEngine(o.threads).threads
    memory = np.ones(int(o.memory * 2**27), np.int64)
    rows = []
    for model, weights in tqdm([*product(o.models, o.dtypes)], disable=None):
        rows.append({"model": model, "weights": weights} | measure(folders[model], weights, memory, o.rounds, threads))
    print(table(rows, COLUMNS))
