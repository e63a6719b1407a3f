"""The paper's Table 1 for GPT-2: both decoders, greedy and nucleus sampling, prose and code; time and quality.

    python benchmarks/table1.py --prompts prose.jsonl humaneval.jsonl
    python benchmarks/table1.py --prompts ... --draft_model_size 124M --target_model_size 1558M --K 4 --json table1.json

ArS is autoregressive sampling, SpS speculative. The quality figure is the mean log-likelihood of a new token under the
target itself (temperature 1, no filter), with the standard error over the texts: nothing is lost where both decoders'
agree within it. With greedy decoding the texts, and so the figures, are the same.

Source: Chen et al. 2023, table 1, where the quality is ROUGE-2 for XSum and pass@100 for HumanEval.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from sweep import PROMPTS, Pair, add_model_arguments, check_n_tokens, token_times  # which sets the path for the rest
from tqdm import tqdm

from speculative.cli import flags
from speculative.cli.exits import guarded
from speculative.cli.texts import read_prompts
from speculative.measure.files import check_writable, write_json
from speculative.measure.machine import machine

COLUMNS = "{:10}  {:8}  {:3}  {:>10}  {:>6}  {:>7}  {:>5}  {:>26}"
HEADINGS = ("domain", "sampling", "", "ms/token", "sd", "speedup", "r", "log-likelihood per token")


def log_likelihood(pair, x, tokens):
    """The mean log-likelihood of tokens after x under the target's own distribution."""
    pair.sample_with(temperature=1.0)
    pair.target_model.forget()
    q = pair.target_model([*x, *tokens[:-1]], len(tokens))  # [len(tokens), n_vocab]
    return float(np.mean(np.log(q[np.arange(len(tokens)), tokens])))


def measure(pair, options, prompts):
    """{(domain, sampling, K): [{ms, likelihood, tokens, positions}, ...]}, the two decoders taking turns."""
    samplings = {"greedy": {"temperature": 0}, "nucleus": {"temperature": 1.0, "top_p": options.top_p}}
    runs = [
        (repeat, domain, number, sampling, K)
        for repeat in range(-1, options.repeats)  # of repeat -1, one prompt of each kind, nothing is counted
        for domain, texts in prompts.items()
        for number in range(len(texts) if repeat >= 0 else 1)
        for sampling in samplings
        for K in (0, options.K)
    ]
    ids = pair.encode(prompts, options.n_tokens)
    results = {}
    for repeat, domain, number, sampling, K in tqdm(runs, unit="run", disable=None):
        x = ids[domain][number]
        pair.sample_with(**samplings[sampling])
        seed = [max(repeat, 0), number]
        tokens, recorder = pair.decode(x, options.n_tokens, K, options.drafter[0], seed)
        steps = [i.step for i in recorder.iterations]
        if repeat >= 0:
            results.setdefault((domain, sampling, K), []).append(
                {
                    "ms": float(np.mean(token_times(recorder.samples))),
                    "likelihood": log_likelihood(pair, x, tokens),
                    "tokens": len(tokens),
                    "positions": sum(step.drafted + 1 for step in steps),
                    "text": tokens,
                }
            )
    return results


def summarise(results):
    rows = []
    for (domain, sampling, K), runs in results.items():
        plain = results[domain, sampling, 0]
        ms, likelihood = ([run[name] for run in runs] for name in ("ms", "likelihood"))
        distinct = {tuple(run["text"]): run["likelihood"] for run in runs}  # a repeat of a greedy text is no evidence
        rows.append(
            {
                "domain": domain,
                "sampling": sampling,
                "decoder": "SpS" if K else "ArS",
                "ms_per_token": float(np.mean(ms)),
                "sd": float(np.std(ms)),
                "speedup": float(np.mean([run["ms"] for run in plain]) / np.mean(ms)),
                "r": sum(run["tokens"] for run in runs) / sum(run["positions"] for run in runs) if K else None,
                "log_likelihood": float(np.mean(likelihood)),
                "standard_error": standard_error([*distinct.values()]),
                "texts_as_plain": sum(a["text"] == b["text"] for a, b in zip(runs, plain, strict=True)),
                "texts": len(runs),
            }
        )
    return rows


def standard_error(values):
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def show(rows):
    print(COLUMNS.format(*HEADINGS))
    for row in rows:
        r = "" if row["r"] is None else f"{row['r']:.2f}"
        error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.3f}"
        numbers = (f"{row['ms_per_token']:.2f}", f"{row['sd']:.2f}", f"{row['speedup']:.2f}x", r)
        quality = f"{row['log_likelihood']:.3f}{error}"
        print(COLUMNS.format(row["domain"], row["sampling"], row["decoder"], *numbers, quality))
    greedy = [row for row in rows if row["sampling"] == "greedy" and row["decoder"] == "SpS"]
    same, texts = (sum(row[key] for row in greedy) for key in ("texts_as_plain", "texts"))
    print(f"Greedy texts that are the same, token for token: {same} of {texts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--prompts", nargs="+", default=[], help=".txt or .jsonl files [four openings of stories]")
    parser.add_argument("--K", type=flags.argument(flags.integer(1)), default=4)
    parser.add_argument("--top_p", type=flags.argument(flags.share), default=0.9, help="of nucleus sampling")
    parser.add_argument("--json", help="where to write the results")
    options = parser.parse_args()
    check_n_tokens(options.n_tokens, [options.K])
    options.drafter = ["model"]
    if options.json:
        check_writable(options.json)
    prompts = {Path(path).stem: read_prompts(path, options.n_prompts) for path in options.prompts}
    rows = summarise(measure(Pair(options), options, prompts or {"stories": PROMPTS}))
    show(rows)
    if options.json:
        write_json(options.json, {"options": vars(options), "machine": machine(), "rows": rows})


if __name__ == "__main__":
    guarded(main)
