"""The drafters compared: every one, for K from 1 to 10 and auto, at several temperatures, on prose and code.

    python -m benchmarks.drafters
    python -m benchmarks.drafters --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M
                                  --n_prompts 2 --settings 0 --repeats 1 --out drafters

auto starts each run knowing nothing. On a shared machine the best of ten K is partly luck. So auto is also compared
with the best K "at even costs": each iteration and each draft counts the time that it takes on average in all of the
drafter's runs on that kind of text. (The time of choosing K shows by the clock alone.)
"""

from collections import defaultdict

import numpy as np

from benchmarks import grid
from benchmarks.common import write_results
from benchmarks.tables import autoregressive_of, by_setting, summarise, table, tokens, unlike_texts
from speculative.drafters import KINDS
from speculative.support.errors import guarded

DEFAULTS = {
    "drafters": [*KINDS, "prompt_lookup+model"],
    "K": [*range(1, 11), "auto"],
    "settings": [(0.0, None), (0.5, None), (1.0, None), (1.0, 0.9)],
    "n_tokens": 128,
}


def even_seconds(runs):
    """{K: [[Iteration, ...], ...]} of one drafter -> {K: seconds per token at even costs}, a geometric mean.

    The times of an iteration and of a draft are fitted to the seconds of all runs, without the first iteration.
    """
    timed = [(K, run[1:]) for K, each in runs.items() for run in each]
    counted = np.array([(len(run), sum(i.step.drafted for i in run)) for _, run in timed], float)  # [n_runs, 2]
    measured = np.array([sum(i.seconds for i in run) for _, run in timed])  # [n_runs]
    weights = np.ones(len(timed))
    for _ in range(20):  # least absolute errors, by least squares with weights
        costs = np.linalg.lstsq(counted * weights[:, None], measured * weights, rcond=None)[0]  # [2]
        weights = np.maximum(abs(measured - counted @ costs), 1e-3 * measured) ** -0.5
    logs = defaultdict(list)
    for (K, run), even in zip(timed, counted @ costs, strict=True):
        logs[K].append(np.log(even / len(tokens(run))))
    return {K: float(np.exp(np.mean(each))) for K, each in logs.items()}


def line_of(rows, measured):
    """The rows of a drafter -> that of its best K, with the speedup at each K, and auto's share of the best speedup.

    The share is by the clock and at even costs, where another K may be the best.
    """
    by_K = {row["K"]: row for row in rows}
    fixed = {K: row for K, row in by_K.items() if K != "auto"} or by_K
    best = max(fixed.values(), key=lambda row: row["speedup"])
    line = best | {str(K): row["speedup"] for K, row in by_K.items()}
    if "auto" in by_K:
        runs = defaultdict(list)
        for s, iterations in measured.items():
            if all(getattr(s, name) == best[name] for name in ("drafter", "temperature", "top_p", "domain")):
                runs[s.K].append(iterations)
        even = even_seconds(runs)
        line["auto_over_best"] = by_K["auto"]["speedup"] / best["speedup"]
        line["auto_over_best_at_even_costs"] = min(even[K] for K in fixed) / even["auto"]
    return line


def main(argv=None):
    o = grid.options(__doc__, argv, **DEFAULTS)
    measured = grid.measure(o)
    rows = summarise(measured)
    write_results(o.out and f"{o.out}/drafters.json", o, rows=rows)
    columns = f"""drafter {" ".join(f"{K}:.2f" for K in o.K)} best_K=K tokens/iteration=tokens_per_iteration:.2f r:.2f
        auto/best=auto_over_best:.2f at_even_costs=auto_over_best_at_even_costs:.2f"""
    for alone, *others in by_setting(rows):
        of = {name: [row for row in others if row["drafter"] == name] for name in o.drafters}
        print(f"{autoregressive_of(alone)}; speedups")
        print(table([line_of(rows, measured) for rows in of.values()], columns))
    print(unlike_texts(rows))


if __name__ == "__main__":
    guarded(main, "interrupted; with --out, run again to go on from there")
