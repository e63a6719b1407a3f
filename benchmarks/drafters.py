"""Who drafts best: every drafter, for K from 1 to 10 and auto, at several temperatures, against plain decoding.

    python benchmarks/drafters.py
    python benchmarks/drafters.py --prompts prose.jsonl code.jsonl --draft_model_size 124M --target_model_size 1558M
                                  --models_dir models --n_prompts 2 --n_tokens 64 --repeats 1 --json drafters.json

All runs are taken in a random order, --repeats times over. The time of a run is that of its tokens after the first
call, so the reading of the prompt is left out of both decoders. The speedup is plain decoding's time per token over the
drafter's, both the median over the repeats, and then the median over the prompts. auto starts each run knowing nothing.

Where a machine is shared, the best of ten K owes a part of its time to luck. So auto is also compared with the best K
"at even costs": each run's iterations and drafts counted at what one of each takes in all of the drafter's runs on that
kind of text. (What choosing takes is not in these. It is seen by the clock, where models are small.)
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
from sweep import PROMPTS, Pair, add_model_arguments, check_n_tokens  # which sets the path for what follows
from tqdm import tqdm

from speculative.cli import flags
from speculative.cli.exits import guarded
from speculative.cli.texts import read_prompts, read_text
from speculative.drafters import DRAFTERS, Parts, make_drafter, ngram_model
from speculative.measure.files import check_writable, write_json
from speculative.measure.machine import machine


class DraftersPair(Pair):
    """The pair, with one n-gram model for all runs."""

    def __init__(self, options):
        super().__init__(options)
        ngram_text = read_text(options.ngram_text, "text for n-grams") if options.ngram_text else ""
        tokens = self.encoder.encode(ngram_text, allowed_special=True)
        n_vocab = self.hparams["n_vocab"]
        # sample_with() replaces to_probs, so it is looked up at each call.
        self.ngram = ngram_model(n_vocab, lambda log_p: self.target_model.to_probs(log_p), tokens)

    def drafter(self, name, rng):
        return make_drafter(name, Parts(self.hparams["n_vocab"], rng, self.ngram, self.draft_model))


def measure(options, prompts):
    """-> {(temperature, top_p, domain, drafter, K): {prompt: [run, ...]}}; plain decoding is drafter "", K 0."""
    pair = DraftersPair(options)
    ids = pair.encode(prompts, options.n_tokens, options.prompt_tokens)

    def run(setting, domain, drafter, K, prompt, repeat, n_tokens):
        pair.sample_with(temperature=setting[0], top_p=setting[1])
        tokens, recorder = pair.decode(ids[domain][prompt], n_tokens, K, drafter, [repeat, prompt])
        return {"tokens": tokens, **counts(recorder.iterations)}

    kinds = [("", 0)] + [(drafter, K) for drafter in options.drafter for K in options.K]
    once = [
        (setting, domain, drafter, K, prompt)
        for setting in options.settings
        for domain, texts in ids.items()
        for drafter, K in kinds
        for prompt in range(len(texts))
    ]
    for drafter, K in kinds:  # the first calls of each kind are not counted
        run(options.settings[-1], next(iter(ids)), drafter, K, 0, 0, min(24, options.n_tokens))
    runs = defaultdict(lambda: defaultdict(list))
    order = [
        (repeat, i) for repeat in range(options.repeats) for i in np.random.default_rng(repeat).permutation(len(once))
    ]
    for repeat, i in tqdm(order, unit="run", disable=None):
        setting, domain, drafter, K, prompt = once[i]
        runs[(*setting, domain, drafter, K)][prompt].append(run(*once[i], repeat, options.n_tokens))
    return runs


def counts(iterations):
    """What the figures are made of. Seconds, and what is timed, are without the first iteration, which also reads the
    prompt; the other counts are of all."""
    steps = [i.step for i in iterations]
    later = iterations[1:]
    return {
        "seconds": sum(i.seconds for i in later),
        "timed_tokens": sum(len(i.step.tokens) for i in later),
        "iterations": len(steps),
        "drafted": sum(s.drafted for s in steps),
        "timed_drafted": sum(i.step.drafted for i in later),
        "accepted": sum(s.accepted for s in steps),
    }


def summarise(runs):
    """A row for each kind of run."""
    of_drafter = defaultdict(dict)  # {(temperature, top_p, domain, drafter): {K: {prompt: [run, ...]}}}
    for (*kind, K), by_prompt in runs.items():
        of_drafter[tuple(kind)][K] = by_prompt
    even = {kind: even_seconds(by_K) for kind, by_K in of_drafter.items()}
    rows = []
    for (temperature, top_p, domain, drafter, K), by_prompt in runs.items():
        plain = runs[temperature, top_p, domain, "", 0]
        all_ = [run for group in by_prompt.values() for run in group]
        n_tokens, iterations = sum(len(run["tokens"]) for run in all_), sum(run["iterations"] for run in all_)
        row = {"temperature": temperature, "top_p": top_p, "domain": domain, "drafter": drafter, "K": K}
        row["seconds_per_token"] = median(seconds(group) for group in by_prompt.values())
        row["speedup"] = median(seconds(plain[prompt]) / seconds(group) for prompt, group in by_prompt.items())
        row["tokens_per_iteration"] = n_tokens / iterations
        row["r"] = n_tokens / (sum(run["drafted"] for run in all_) + iterations)
        if temperature == 0:
            row["texts_unlike_plain"] = sum(
                run["tokens"] != plain[prompt][0]["tokens"] for prompt, group in by_prompt.items() for run in group
            )
        row["even_seconds_per_token"] = even[temperature, top_p, domain, drafter][K]
        rows.append(row)
    return rows


def even_seconds(runs):
    """{K: {prompt: [run, ...]}} of a drafter -> {K: seconds per token at even costs, the geometric mean over the runs}.

    With a for an iteration and b for a draft, the least sum of |seconds - a * iterations - b * drafted| over all runs:
    one that was interrupted counts for no more than another. (By least squares, weighted anew again and again.)
    """
    all_ = [(K, run) for K, by_prompt in runs.items() for group in by_prompt.values() for run in group]
    counted = np.array([(run["iterations"] - 1, run["timed_drafted"]) for _, run in all_], float)  # [n_runs, 2]
    measured = np.array([run["seconds"] for _, run in all_])  # [n_runs]
    weights = np.ones(len(all_))  # [n_runs]
    for _ in range(50):
        costs = np.linalg.lstsq(counted * weights[:, None], measured * weights, rcond=None)[0]  # [2]
        weights = np.maximum(abs(measured - counted @ costs), 1e-3 * measured) ** -0.5
    per_token = defaultdict(list)
    for (K, run), even in zip(all_, counted @ costs, strict=True):
        per_token[K].append(even / run["timed_tokens"])
    return {K: float(np.exp(np.mean(np.log(each)))) for K, each in per_token.items()}


def seconds(group):
    """Per token, the median over the repeats."""
    return median(run["seconds"] / run["timed_tokens"] for run in group)


def table(rows, options):
    """For each setting and domain a line for each drafter: the speedup at each K; the best fixed K, its tokens per
    iteration and r; auto's speed over that K's, and at even costs over that of the K that is then the best."""
    found = {(r["temperature"], r["top_p"], r["domain"], r["drafter"], r["K"]): r for r in rows}
    lines = []
    for temperature, top_p in options.settings:
        for domain in dict.fromkeys(r["domain"] for r in rows):
            plain = found[temperature, top_p, domain, "", 0]["seconds_per_token"]
            of = f"temperature {temperature:g}" + (f", top-p {top_p:g}" if top_p else "")
            lines += [f"\n{domain}, {of}: plain decoding takes {1e3 * plain:.2f} ms a token"]
            lines += [
                f"{'speedup at K =':22}"
                + "".join(f"{K:>6}" for K in options.K)
                + "    best K: tokens/iter.     r   auto/best  at even costs"
            ]
            for drafter in options.drafter:
                cells = {K: found[temperature, top_p, domain, drafter, K] for K in options.K}
                fixed = {K: cell for K, cell in cells.items() if K != "auto"} or cells
                K, best = max(fixed.items(), key=lambda cell: cell[1]["speedup"])
                auto = ""
                if "auto" in cells:
                    even = {K: cell["even_seconds_per_token"] for K, cell in cells.items()}
                    even_best = min(even[K] for K in fixed)
                    auto = f"{cells['auto']['speedup'] / best['speedup']:12.2f}{even_best / even['auto']:15.2f}"
                lines.append(
                    f"{drafter:22}"
                    + "".join(f"{cell['speedup']:6.2f}" for cell in cells.values())
                    + f"{K:>10}{best['tokens_per_iteration']:14.2f}{best['r']:6.2f}{auto}"
                )
    unlike = sum(r.get("texts_unlike_plain", 0) for r in rows)
    lines += [f"\nAt temperature 0, texts that differ from plain decoding's: {unlike}"]
    return "\n".join(lines)


def setting(text):
    """ "0.5" -> (0.5, None); "1:0.9" -> (1.0, 0.9), the temperature and top-p."""
    temperature, colon, top_p = text.partition(":")
    return flags.temperature(temperature), flags.share(top_p) if colon else None


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    add = parser.add_argument
    add("--prompts", nargs="+", default=[], help=".txt or .jsonl files; the file's name is the domain")
    add(
        "--prompt_tokens",
        type=flags.argument(flags.integer(1)),
        help="how many of each prompt's tokens, from its beginning; default: all",
    )
    add("--drafters", dest="drafter", nargs="+", type=flags.drafter, default=[*DRAFTERS, "prompt_lookup+model"])
    add("--K", nargs="+", type=flags.argument(flags.lookahead), default=[*range(1, 11), "auto"])
    add(
        "--settings",
        nargs="+",
        type=flags.argument(setting),
        default=[(0.0, None), (0.5, None), (1.0, None), (1.0, 0.9)],
        help="temperature or temperature:top_p",
    )
    add("--ngram_text", help="a text that the n-gram drafter counts in")
    add("--json", help="a file to write all rows and runs to")
    parser.set_defaults(n_tokens=128)
    options = parser.parse_args(arguments)
    check_n_tokens(options.n_tokens, options.K)
    if options.json:
        check_writable(options.json)
    return options


def main(arguments=None):
    options = parse(arguments)
    prompts = {Path(path).stem: read_prompts(path, options.n_prompts) for path in options.prompts}
    runs = measure(options, prompts or {"prose": list(PROMPTS)[: options.n_prompts]})
    rows = summarise(runs)
    print(table(rows, options))
    if options.note:
        print(options.note)
    if options.json:
        kept = [{"of": key, "prompts": dict(by_prompt)} for key, by_prompt in runs.items()]
        result = {"machine": machine(), "options": vars(options), "rows": rows, "runs": kept}
        write_json(options.json, result)


if __name__ == "__main__":
    guarded(main)
