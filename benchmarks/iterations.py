"""How many iterations a text takes, and how that varies, without the noise of the machine; and r at each setting.

    python -m benchmarks.iterations
    python -m benchmarks.iterations --K 4 --settings 0 0.5 1 1:0.9 1:0.8 --sequences 60

Autoregressive decoding always takes as many iterations as tokens. Speculative decoding takes fewer, and their number
varies: Chen et al. 2023 name that as a price. The sequences take 20 prompts in turn, each with a seed of its own, so
the same command gives the same table. At temperature 0, where a seed changes nothing, there is one for each prompt. 200
sequences of 40 tokens take about 25 seconds a line on two idle cores.
"""

import numpy as np

from benchmarks.common import PROMPTS, Pair, Parser, Setting, check_n_tokens, count, setting, write_results
from benchmarks.tables import mean_and_error, table, tokens
from plumbing import arguments as values
from plumbing.exits import guarded
from plumbing.texts import read_prompts

COLUMNS = """T=temperature:g top-p=top_p:g K sequences r:.3f ±=standard_error:.3f iterations:.1f sd:.2f P50=p50:.0f
    P90=p90:.0f P99=p99:.0f"""


def summarise(runs):
    """[[Iteration, ...] of each sequence] -> a row. ms is the time of a whole sequence with its prefill, loop_ms that
    of an iteration without it."""
    n = [len(run) for run in runs]
    share = [len(tokens(run)) / sum(i.step.drafted + 1 for i in run) for run in runs]
    ms = [1e3 * sum(i.seconds for i in run) for run in runs]
    found = {"iterations": np.mean(n), "sd": np.std(n, ddof=1), "ms": np.mean(ms), "ms_sd": np.std(ms, ddof=1)}
    found |= zip(("p50", "p90", "p99"), np.percentile(n, [50, 90, 99]), strict=True)
    found["loop_ms"] = 1e3 * np.mean([i.seconds for run in runs for i in run[1:]])
    row = {"sequences": len(runs)} | {name: float(value) for name, value in found.items()}
    row["r"], row["standard_error"] = mean_and_error(share)
    return row


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_models()
    parser.add_json()
    parser.add_argument("--sequences", type=values.argument(values.integer(2)), default=200)
    parser.add_argument("--n_tokens", type=count, default=40)
    parser.add_argument("--K", nargs="+", type=count, default=[1, 2, 4, 8])
    parser.add_argument("--settings", nargs="+", type=values.argument(setting), default=[(1.0, 0.9)])
    o = parser.parse_args(argv)
    check_n_tokens(o)
    o.prompts = {"prose": read_prompts(PROMPTS["prose"], 20)}
    o.drafters = ["model"]
    pair = Pair(o)
    prompts = o.prompts["prose"]
    rows = []
    for temperature, top_p in o.settings:
        n = o.sequences if temperature else min(o.sequences, len(prompts))
        for K in o.K:
            where = "model", temperature, top_p, "prose", K
            of = [Setting("", i // len(prompts), prompts[i % len(prompts)], *where) for i in range(n)]
            row = summarise([pair.decode(s, o.n_tokens) for s in of])
            rows.append({"temperature": temperature, "top_p": top_p, "K": K} | row)
    write_results(o.json, o, rows=rows)
    print(table(rows, COLUMNS))


if __name__ == "__main__":
    guarded(main)
