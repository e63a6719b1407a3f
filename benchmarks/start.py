"""From Enter to the first token: where the time goes before main.py prints any text.

    python -m benchmarks.start
    python -m benchmarks.start --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M

Each repeat is a process of its own, which goes the way of main.py step by step; the median of each step is printed.
What packed weights save shows after python main.py --pack with the same models.
"""

import json
import os
import subprocess
import sys
import time
from statistics import median

from benchmarks.common import Parser, count
from benchmarks.tables import table
from speculative.support.errors import guarded

COLUMNS = "step seconds=seconds:.2f"
PROMPT = "Alan Turing theorized that computers would one day become"


def steps(options: dict, began: float) -> dict[str, float]:
    """{step: seconds} of this process. began: when it was asked for, on time.time's clock."""
    seconds = {}

    def done(step):
        nonlocal began
        now = time.time()
        seconds[step] = now - began
        began = now

    import main  # noqa: F401

    done("Python, and main.py's imports")
    from speculative import load_pair
    from speculative.checkpoints.loading import load_encoder_and_hparams
    from speculative.engines import runtime

    for size in (options["draft_model_size"], options["target_model_size"]):
        load_encoder_and_hparams(size, options["models_dir"])
    done("settings and tokens")
    runtime.warm_up(["float32", "int8"])
    done("the kernels, compiled before")
    pair = load_pair(**options)
    done("weights: read, packed or mapped; a pass to warm up")
    next(pair.autoregressive(PROMPT, 40))
    done("the prompt's pass: the first token")
    return seconds


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_models()
    parser.add_argument("--repeats", type=count, default=3)
    options = vars(parser.parse_args(argv))
    repeats = options.pop("repeats")
    if "BEGAN" in os.environ:
        print(json.dumps(steps(options, float(os.environ["BEGAN"]))))
        return
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    runs = []
    for _ in range(repeats):
        environment = os.environ | {"BEGAN": str(time.time())}
        child = subprocess.run(
            [sys.executable, "-m", "benchmarks.start", *words], env=environment, capture_output=True, text=True
        )
        if child.returncode:
            sys.exit(child.stderr)
        runs.append(json.loads(child.stdout))
    rows = [{"step": step, "seconds": median(run[step] for run in runs)} for step in runs[0]]
    rows.append({"step": "together", "seconds": median(sum(run.values()) for run in runs)})
    print(table(rows, COLUMNS))


if __name__ == "__main__":
    guarded(main)
