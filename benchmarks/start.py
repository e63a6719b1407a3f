"""From Enter to the first token, by its parts, for each weight format of the target.

    python -m benchmarks start
    python -m benchmarks start --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M

Each repeat is a process of its own; the medians are printed, in seconds. First nothing is in memory: the files are read
from the disk. Then they are cached. Then another program has written to as much memory as the models take, and ended:
a virtual machine may be slow to give memory that nothing has touched. Last the weights are mapped from packs, which are
written to a temporary folder. Tensors are read, checked and packed by all cores: these columns are a core's share.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median

from benchmarks import runs
from benchmarks.tables import parser_of, table, whole
from speculative.checkpoints.weights import N_THREADS
from speculative.engines.formats import FORMATS

ROOT = Path(__file__).parents[1]
PARTS = {  # functions of which the calls are timed
    "tokens": ("speculative.checkpoints.folder", "Checkpoint.load_encoder"),
    "read": ("speculative.checkpoints.weights", "array_of"),
    "pack": ("speculative.engines.c.packing", "pack_matrix"),
    "passes": ("speculative.engines.c.engine", "CEngine.network"),
}
COLUMNS = "weights files imports:.2f tokens:.2f read:.2f pack:.2f passes:.2f first_call:.2f together:.2f"
FILES = ("on the disk", "cached", "cached, memory touched", "packs")
TOUCH = "import numpy as np; np.ones({}, np.uint8)"


def time_calls(seconds: Counter, part: str, module: str, path: str) -> None:
    """Replace a function by one that adds its time, divided among the threads, to the seconds of this part."""
    *names, name = path.split(".")
    owner = getattr(import_module(module), *names) if names else import_module(module)
    function = getattr(owner, name)
    share = N_THREADS if part in ("read", "pack") else 1

    def call(*given, **named):
        began = time.perf_counter()
        result = function(*given, **named)
        seconds[part] += (time.perf_counter() - began) / share
        return result

    setattr(owner, name, call)


def parts(o) -> dict[str, float]:
    """{part: seconds} of this process, which was started at o.began by time.time's clock."""
    import main  # noqa: F401

    seconds = Counter(imports=time.time() - o.began)
    for part, where in PARTS.items():
        time_calls(seconds, part, *where)
    session = runs.load(o, ["model"])
    loaded = time.time()
    next(iter(session.autoregressive("Alan Turing theorized that computers would one day become", 40)))
    return seconds | {"first_call": time.time() - loaded, "together": time.time() - o.began}


def main(argv: list[str]) -> None:
    parser = parser_of("start", __doc__)
    runs.add_models(parser.add_argument)
    parser.add_argument("--dtypes", nargs="+", choices=FORMATS, default=[*FORMATS])
    parser.add_argument("--repeats", type=whole, default=3)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    o = parser.parse_args(argv)
    if o.began:
        return print(json.dumps(parts(o)))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for size in (o.draft_model_size, o.target_model_size):
            os.symlink(Path(o.models_dir, size).resolve(), Path(folder, size))
            files += [path for path in Path(folder, size).iterdir() if path.stat().st_size > 2**20]
        for dtype, state in product(o.dtypes, FILES):
            words = ["--models_dir", folder if state == "packs" else o.models_dir, "--dtype", dtype]
            words += ["--draft_model_size", o.draft_model_size, "--target_model_size", o.target_model_size]
            if state == "packs":
                subprocess.run([sys.executable, "main.py", "--pack", *words], cwd=ROOT, check=True, stdout=-3)
            found = [run(state, files, words) for _ in range(o.repeats)]
            names = {name for one in found for name in one}
            rows.append({name: median(one.get(name, 0) for one in found) for name in names})
            rows[-1] |= {"weights": dtype, "files": state}
    print(table(rows, COLUMNS))


def run(state: str, files: list[Path], words: list[str]) -> dict[str, float]:
    """{part: seconds} of a new process."""
    for path in files if hasattr(os, "posix_fadvise") else ():
        with open(path, "rb") as f:
            if state == FILES[0]:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if state == FILES[2]:
        subprocess.run([sys.executable, "-c", TOUCH.format(sum(path.stat().st_size for path in files))])
    command = [sys.executable, "-m", "benchmarks", "start", *words, "--began", str(time.time())]
    return json.loads(subprocess.run(command, stdout=-1, text=True, check=True).stdout)
