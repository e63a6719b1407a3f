"""From Enter to the first token: the steps that main.py takes before it prints any text.

    python -m benchmarks start
    python -m benchmarks start --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M

Each repeat is a process of its own; the median of each step is printed. To see the time that packed weights save, run
python main.py --pack with the same models first.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median

from benchmarks import runs
from benchmarks.tables import table


def steps(o, began: float) -> dict[str, float]:
    """{step: seconds} of this process. began: the time at which it was started, on time.time's clock."""
    times = {"": began}
    import main  # noqa: F401

    times["Python, and main.py's imports"] = time.time()
    session = runs.load(o, ["model"])
    times["the models: read, packed or mapped; a pass to warm up"] = time.time()
    next(iter(session.autoregressive("Alan Turing theorized that computers would one day become", 40)))
    times["the prompt's pass: the first token"] = time.time()
    return {name: times[name] - before for before, name in zip(times.values(), [*times][1:], strict=False)}


def main(argv: list[str]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks start", description=__doc__, formatter_class=raw)
    runs.add_models(parser.add_argument)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    o = parser.parse_args(argv)
    if o.began:
        return print(json.dumps(steps(o, o.began)))
    found = []
    for _ in range(o.repeats):
        command = [sys.executable, "-m", "benchmarks", "start", *argv, "--began", str(time.time())]
        found.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
    rows = [{"step": step, "seconds": median(run[step] for run in found)} for step in found[0]]
    rows.append({"step": "together", "seconds": median(sum(run.values()) for run in found)})
    print(table(rows, "step seconds:.2f"))
