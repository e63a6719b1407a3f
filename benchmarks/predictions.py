"""The error of the predicted speedup, run by run: fixed K and auto, one drafter, + and levels.

    python -m benchmarks.predictions
    python -m benchmarks.predictions --cpu

Each run is predicted from its own acceptance and costs, and compared with its own speedup, both without the prefill.
"Rest" is the share of a run outside of both models. --cpu times one thread by the CPU it was given, which is nearly
what a machine without other work would show.
"""

import os
import time
from functools import partial
from statistics import median

from benchmarks import grid
from benchmarks.common import Parser, lookahead, write_results
from benchmarks.tables import recorder_of, table
from speculative.engines import runtime
from speculative.measure.figures import figures
from speculative.support.errors import guarded

DRAFTERS = ["model", "prompt_lookup+model", "self/model"]
K = [*map(lookahead, ["1", "2", "4", "8", "auto", "8/4"])]
COLUMNS = "drafter K runs predicted:.2f measured:.2f off:.1% at_most=most_off:.1% rest:.1%"


def main(argv=None):
    parser = Parser(__doc__)
    grid.add_grid(parser)
    parser.add_argument("--cpu", action="store_true", help="measure the CPU time of one thread")
    parser.add_json()
    settings = [(0.0, None), (1.0, None)]
    parser.set_defaults(drafters=DRAFTERS, K=K, settings=settings, n_prompts=1, repeats=1, out=None)
    o = parser.parse_args(argv)
    grid.read(o)
    runs = [*predicted(grid.measure(o, by_cpu(o) if o.cpu else None))]
    print(table([*of_kinds(runs)], COLUMNS))
    off = sorted(run["off"] for run in runs)
    within = f"off by {median(off):.1%} (median), by {off[-1]:.1%} at most"
    print(f"{len(runs)} runs: {within}; load {os.getloadavg()[0]:.1f}")
    write_results(o.json, o, runs=runs)


def by_cpu(o):
    """run(s, N) -> [Iteration, ...], for grid.measure."""
    session = grid.loaded(o)
    runtime.set_threads(1)
    return partial(grid.decode, session, clock=time.thread_time)


def predicted(measured):
    """{drafter, K, predicted, measured, off, rest} of each run that can be predicted."""
    plain = {of_text(s): run for s, run in measured.items() if s.drafter == grid.BASELINE}
    for s, run in measured.items():
        if s.drafter == grid.BASELINE:
            continue
        f = figures(recorder_of([plain[of_text(s)]]), recorder_of([run]))
        if f["predicted_blog"]:
            row = {"drafter": s.drafter, "K": s.K, "predicted": f["predicted_blog"]}
            row["measured"] = f["speedup_without_prefill"]
            row["off"] = abs(row["predicted"] / row["measured"] - 1)
            yield row | {"rest": f["seconds"]["rest"] / f["seconds"]["speculative"]}


def of_text(s):
    return s.repeat, s.prompt, s.temperature, s.top_p


def of_kinds(runs):
    """The medians of each drafter and K, and the largest error."""
    kinds = {}
    for run in sorted(runs, key=lambda run: (run["drafter"], str(run["K"]).zfill(4))):
        kinds.setdefault((run["drafter"], run["K"]), []).append(run)
    for kind, of in kinds.items():
        medians = {name: median(run[name] for run in of) for name in ("predicted", "measured", "off", "rest")}
        most_off = max(run["off"] for run in of)
        yield dict(zip(("drafter", "K"), kind, strict=True)) | {"runs": len(of), "most_off": most_off} | medians


if __name__ == "__main__":
    guarded(main, "interrupted; with --out, run again to go on from there")
