"""The time of a forward pass by the number of threads, for each weight format.

    python -m benchmarks cores
    python -m benchmarks cores 124M 1558M --models_dir MODELS_DIR --threads 1 2 4 8 16

Rows come after a context of 64 tokens; the time of several rows is a multiple of that of one. "Of bandwidth" is the
share of what as many threads read in the same rounds if they do nothing else: 1.00 is the limit of one row. "Waited" is
the share of one row's time in which the first thread waited for the others at barriers. All are medians of rounds in
which the row counts take turns. The first threads get the physical cores, as far as the system says which these are.
"""

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.kernels import PROMPT, forward, read
from benchmarks.runs import MODELS
from benchmarks.tables import parser_of, table, take_turns, whole
from speculative.checkpoints.folder import look, open_checkpoint
from speculative.checkpoints.weights import read_all
from speculative.engines.c import engine
from speculative.engines.c.forward import CompiledPass
from speculative.engines.c.packing import pack
from speculative.engines.formats import FORMATS, n_bytes
from speculative.engines.system import lines, n_cores

ROWS = (1, 5, 9, 17, 33)
COLUMNS = f"""model weights threads 1_row_(ms)=ms:.2f {" ".join(f"{n}_rows=rows{n}:.2f" for n in ROWS[1:])}
    prompt_(ms)=prompt_ms:.0f GB/s=gigabytes:.1f of_bandwidth=of_bandwidth:.2f waited=waited:.2f"""


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... up to the most."""
    counts = [2**i for i in range(most.bit_length())]
    return sorted({*counts, most})


def cpus_in_order(cpus: Sequence[int]) -> list[int]:
    """These CPUs, the first of each physical core before its siblings."""
    cores: dict[str, int] = {}  # CPUs seen of each core
    places = []
    for cpu in cpus:
        siblings = "".join(lines(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list")) or str(cpu)
        places.append((cores.get(siblings, 0), cpu))
        cores[siblings] = cores.get(siblings, 0) + 1
    return [cpu for _, cpu in sorted(places)]


def use_cpus(n: int, cpus: Sequence[int]) -> None:
    """Let this process's threads run on the first n of these CPUs, if the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread), cpus[:n])


def waited(run: CompiledPass, cache: Any) -> float:
    """The share of a row's time in which the first thread waited for others."""
    forward(run, cache, 1)
    call: Any = run.arguments
    return call.waited_ns / call.call_ns


def measure(params: dict, hparams: dict, threads: int, memory: np.ndarray, rounds: int) -> dict:
    """The columns of so many threads. memory: an array far larger than the caches."""
    run = CompiledPass(params, hparams, threads)
    cache = run.new_cache()
    forward(run, cache, 1)
    run.tune(cache)
    tasks = {n: partial(forward, run, cache, n) for n in ROWS}
    times = take_turns(tasks | {"read": partial(read, memory, threads)}, rounds)
    n_prompt = min(PROMPT, hparams["n_ctx"])
    prompt = take_turns({"prompt": partial(forward, run, cache, n_prompt, 0, 1)}, 1)["prompt"]
    bandwidth = memory.nbytes / times["read"]
    row = {
        "ms": 1e3 * times[1],
        "prompt_ms": 1e3 * prompt,
        "gigabytes": bandwidth / 1e9,
        "of_bandwidth": n_bytes(params) / times[1] / bandwidth,
        "waited": median(waited(run, cache) for _ in range(rounds)),
    }
    return row | {f"rows{n}": times[n] / times[1] for n in ROWS[1:]}


def main(argv: list[str]) -> None:
    parser = parser_of("cores", __doc__)
    parser.add_argument("models", nargs="*", default=["tiny-draft", "tiny-target"])
    parser.add_argument("--models_dir", default=str(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=FORMATS, default=[*FORMATS])
    parser.add_argument("--threads", nargs="+", type=whole, default=thread_counts(n_cores()))
    parser.add_argument("--rounds", type=whole, default=7)
    parser.add_argument("--memory", type=float, default=2.0, help="GiB that are read to measure the bandwidth")
    o = parser.parse_args(argv)
    all_cpus = cpus_in_order(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else []
    memory = np.ones(int(o.memory * 2**27), np.int64)
    rows = []
    for model, dtype in tqdm([*product(o.models, o.dtypes)], disable=None):
        folder = str(Path(o.models_dir, model))
        files = open_checkpoint(look(folder))
        hparams = files.hparams
        params = read_all(files.open_weights(), partial(pack, dtype))
        for threads in o.threads:
            engine.CEngine(threads)  # refuses more than there are cores
            use_cpus(threads, all_cpus)
            row = {"model": model, "weights": dtype, "threads": threads}
            rows.append(row | measure(params, hparams, threads, memory, o.rounds))
            use_cpus(len(all_cpus), all_cpus)
    print(table(rows, COLUMNS))
