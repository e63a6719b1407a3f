"""Measures both decoders over prompts, K, temperatures and drafters; shows a table, writes JSON and pictures.

    python benchmarks/sweep.py
    python benchmarks/sweep.py --prompts prose.jsonl code.jsonl --K 1,2,4,8,auto --temperature 0,1 --drafter model,ngram
                               --draft_model_size 124M --target_model_size 1558M --n_prompts 4 --out sweep

Prompts come from .txt files (one a line) or .jsonl (objects with "prompt"); the file's name is their domain. Every
finished measurement is a line of OUT/measurements.jsonl: what was interrupted goes on there when run again, and when
all is measured, only the table and the pictures are made anew.

Everything is measured --repeats times, each time in another random order, so that a machine that slows down for a while
does so to all alike. A first decoding of each kind is not counted. Times are of decoding alone: the reading of the
prompt, which both decoders do once, is left out.
"""

import argparse
import json
import sys
import textwrap
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))
from speculative.cli import flags
from speculative.cli.exits import guarded
from speculative.cli.models import create_model_fn
from speculative.cli.texts import read_prompts
from speculative.drafters import Parts, make_drafter, needs_model, ngram_model
from speculative.engines.packed import packer, warm_up
from speculative.errors import UserError
from speculative.filters import to_distribution
from speculative.lookahead import AutoK
from speculative.measure.machine import machine
from speculative.measure.recorder import Iteration, Recorder, figures
from speculative.sampling import Step, autoregressive_sampling, speculative_sampling
from utils import load_encoder_hparams_and_params

ROOT = Path(__file__).parents[1]
PROMPTS = (
    "It was upon a bitterly cold night in the winter of",
    "The old man put down his pipe and looked at the door, for",
    '"You have been in the city, I perceive," said my friend, and',
    "When the morning came there was nothing left of the camp but",
)


# ---- The models ------------------------------------------------------------------------------------------------------


class Pair:
    """A draft and a target of one vocabulary, and how they decode."""

    def __init__(self, options):
        self.draft_model = None
        if any(map(needs_model, options.drafter)):
            _, _, self.draft_model = load_model(options.draft_model_size, options.models_dir, options.draft_dtype)
        self.encoder, self.hparams, self.target_model = load_model(
            options.target_model_size, options.models_dir, options.dtype
        )

    def encode(self, prompts, n_tokens, n_first=None):
        """{domain: texts} -> {domain: their token ids, the n_first}; UserError if n_tokens more exceed the context."""
        ids = {domain: [self.encoder.encode(text)[:n_first] for text in texts] for domain, texts in prompts.items()}
        longest = max(len(x) for texts in ids.values() for x in texts)
        if longest + n_tokens > self.hparams["n_ctx"]:
            raise UserError(f"a prompt of {longest} tokens and {n_tokens} more exceed the context")
        return ids

    def sample_with(self, **filters):
        """Sets temperature, top_k and top_p of both models."""
        for model in filter(None, (self.draft_model, self.target_model)):
            model.to_probs = partial(to_distribution, **filters)

    def drafter(self, name, rng):
        ngram = ngram_model(self.hparams["n_vocab"], self.target_model.to_probs)
        return make_drafter(name, Parts(self.hparams["n_vocab"], rng, ngram, self.draft_model))

    def decode(self, x, N, K, drafter, seed) -> tuple[list[int], Recorder]:
        """K 0 is the autoregressive decoder. Both begin with empty caches."""
        for model in filter(None, (self.draft_model, self.target_model)):
            model.forget()
        recorder, rng = Recorder(), np.random.default_rng(seed)
        target_model = recorder.target(self.target_model)
        if K == 0:
            steps = autoregressive_sampling(x, target_model, N, rng)
        else:
            draft = recorder.draft(self.drafter(drafter, rng))
            steps = (
                AutoK().decode(x, draft, target_model, N, rng)
                if K == "auto"
                else speculative_sampling(x, draft, target_model, N, K, rng)
            )
        return [token for step in recorder.watch(steps) for token in step.tokens], recorder


def load_model(size, models_dir, dtype):
    warm_up(dtype)
    encoder, hparams, params = load_encoder_hparams_and_params(size, models_dir, packer(dtype))
    return encoder, hparams, create_model_fn(params, hparams, None)


# ---- Measuring -------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """What one measurement is of: the key under which it is kept."""

    repeat: int
    drafter: str  # "" for the autoregressive decoder
    temperature: float
    domain: str
    prompt: int
    K: int | str  # 0 for the autoregressive decoder


def all_settings(options, prompts):
    """In the order in which they are measured: each repeat in a random order of its own."""
    settings = []
    for repeat in range(options.repeats):
        kinds = [("", 0)] + [(drafter, K) for drafter in options.drafter for K in options.K]
        once = [
            Setting(repeat, drafter, temperature, domain, number, K)
            for drafter, K in kinds
            for temperature in options.temperature
            for domain, texts in prompts.items()
            for number in range(len(texts))
        ]
        settings += [once[i] for i in np.random.default_rng(repeat).permutation(len(once))]
    return settings


def header(options):
    """What may not change between an interruption and its continuation."""
    names = ("draft_model_size", "target_model_size", "dtype", "draft_dtype", "n_tokens", "prompts", "top_p")
    return {"sweep": 1, "options": {name: getattr(options, name) for name in names}, "machine": machine()}


def read_measurements(path, expected):
    """{Setting: [Iteration, ...]} of a file that may have been cut off in its last line. Raises UserError."""
    if not path.exists():
        path.write_text(json.dumps(expected) + "\n", encoding="utf-8")
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if whole != raw:
        path.write_bytes(whole)
    first, *lines = [json.loads(line) for line in whole.splitlines()] or [None]
    if first is None or first.get("options") != expected["options"]:
        raise UserError(f"{path} holds measurements with other options: delete it, or name another folder with --out")
    return {Setting(*line["setting"]): [*map(iteration, line["iterations"])] for line in lines}


def iteration(row):
    n_tokens, drafted, accepted, *rest = row
    return Iteration(Step([0] * n_tokens, drafted, accepted), *rest)


def row(i):
    kept = [value for name, value in vars(i).items() if name != "step"]
    return [len(i.step.tokens), i.step.drafted, i.step.accepted, *kept]


def measure(options, prompts, path):
    """Measures what path does not hold yet. -> {Setting: [Iteration, ...]}, all of them"""
    done = read_measurements(path, header(options))
    settings = all_settings(options, prompts)
    todo = [setting for setting in settings if setting not in done]
    if todo:
        measure_all(todo, done, Pair(options), options, prompts, path)
    return {setting: done[setting] for setting in settings}


def measure_all(todo, done, pair, options, prompts, path):
    ids = pair.encode(prompts, options.n_tokens)

    def decode(setting, n_tokens):
        pair.sample_with(temperature=setting.temperature, top_p=options.top_p)
        x, seed = ids[setting.domain][setting.prompt], [setting.repeat, setting.prompt]
        return pair.decode(x, n_tokens, setting.K, setting.drafter, seed)[1]

    for setting in {(s.drafter, s.K): s for s in todo}.values():
        decode(setting, min(options.n_tokens, 24))  # not counted
    with open(path, "a", encoding="utf-8") as f, tqdm(todo, unit="run", disable=None) as bar:
        for setting in bar:
            bar.set_description(f"{setting.drafter or 'plain'} K={setting.K} {setting.domain}")
            done[setting] = decode(setting, options.n_tokens).iterations
            f.write(json.dumps({"setting": setting, "iterations": [*map(row, done[setting])]}) + "\n")
            f.flush()


# ---- What it comes to ------------------------------------------------------------------------------------------------


def recorder_of(samples):
    recorder = Recorder()
    recorder.samples = samples
    recorder.seconds = sum(i.seconds for sample in samples for i in sample)
    return recorder


def token_times(samples):
    """Milliseconds for every token but the first step's: those of its step, divided among the step's tokens."""
    return [
        1e3 * i.seconds / len(i.step.tokens) for sample in samples for i in sample[1:] for _ in i.step.tokens
    ]  # fmt: skip


def summarise(measured):
    """A row for each kind of run, over its prompts and repeats."""
    groups = {}
    for s, iterations in measured.items():
        groups.setdefault((s.drafter, s.temperature, s.domain, s.K), {}).setdefault(s.repeat, []).append(iterations)
    rows = []
    for (drafter, temperature, domain, K), repeats in groups.items():
        plain = groups["", temperature, domain, 0]
        samples, plain_samples = ([*chain(*group.values())] for group in (repeats, plain))
        times, by_run = token_times(samples), [float(np.mean(token_times([sample]))) for sample in samples]
        f = figures(recorder_of(plain_samples), recorder_of(samples))
        by_repeat = [np.mean(token_times(plain[r])) / np.mean(token_times(repeats[r])) for r in repeats]
        percentiles = dict(zip(("p50", "p90", "p99"), np.percentile(times, [50, 90, 99]).tolist(), strict=True))
        rows.append(
            {
                **{"drafter": drafter, "temperature": temperature, "domain": domain, "K": K, "runs": len(samples)},
                **{"ms_per_token": float(np.mean(times)), "sd": float(np.std(by_run)), **percentiles},
                "speedup": float(np.mean(token_times(plain_samples)) / np.mean(times)),
                "speedup_sd": float(np.std(by_repeat)),
                "loop_ms": 1e3 * float(np.mean([i.seconds for sample in samples for i in sample[1:]])),
                "parts_ms_per_token": parts(samples),
                "figures": f,
            }
        )
    return sorted(rows, key=lambda row: (row["drafter"], row["temperature"], row["domain"], str(row["K"]).zfill(4)))


def parts(samples):
    """Milliseconds per token in the draft, in the target and in the rest."""
    iterations = [i for sample in samples for i in sample[1:]]
    n_tokens = sum(len(i.step.tokens) for i in iterations)
    drafting, scoring, all_ = (
        1e3 * sum(getattr(i, part) for i in iterations) / n_tokens for part in ("drafting", "scoring", "seconds")
    )
    return {"drafting": drafting, "scoring": scoring, "rest": all_ - drafting - scoring}


COLUMNS = {  # heading: (key, format)
    "drafter": ("drafter", "{:14.14}"),
    "T": ("temperature", "{:4g}"),
    "domain": ("domain", "{:10.10}"),
    "K": ("K", "{:>4}"),
    "ms/token": ("ms_per_token", "{:8.2f}"),
    "sd": ("sd", "{:6.2f}"),
    "P50": ("p50", "{:7.2f}"),
    "P90": ("p90", "{:7.2f}"),
    "P99": ("p99", "{:7.2f}"),
    "speedup": ("speedup", "{:7.2f}"),
    "r": ("r", "{:5.2f}"),
    "α": ("alpha", "{:5.2f}"),
    "c": ("c", "{:5.2f}"),
    "β": ("mean_beta", "{:5.2f}"),
    "Chen": ("predicted_chen", "{:5.2f}"),
    "Leviathan": ("predicted_leviathan", "{:9.2f}"),
}


def table(rows):
    cells = []
    for line in rows:
        values = line["figures"] | line | {"drafter": line["drafter"] or "plain"}
        cells.append(["" if values[key] is None else form.format(values[key]) for key, form in COLUMNS.values()])
    widths = [max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
    lines = ["  ".join(f"{cell:>{n}}" for cell, n in zip(line, widths, strict=True)) for line in [[*COLUMNS], *cells]]
    return "\n".join(lines)


# ---- Pictures --------------------------------------------------------------------------------------------------------

# Colours that the colour-blind tell apart (Okabe and Ito 2008), on a light grey that shows on white and on black pages.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
PAPER, INK, GRID = "#F3F3F0", "#1A1A1A", "#CFCFC8"


def caption(options, details):
    where = f"{details['processor']}, {details['cpus']} CPUs"
    what = f"draft {options.draft_model_size} {options.draft_dtype}, target {options.target_model_size} {options.dtype}"
    note = f"{options.note}; " if options.note else ""
    return f"{what}; {note}{options.n_tokens} tokens from each prompt, {options.repeats} repeats; {where}"


def draw(path, title, caption, n_panels, plot, width=4.6):
    """plot(axes [n_panels]) -> path.png and path.svg"""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        **{"figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER, "legend.facecolor": PAPER},
        **{"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK},
        **{"axes.grid": True, "grid.color": GRID, "axes.axisbelow": True, "font.size": 11, "lines.linewidth": 2},
        **{"axes.spines.top": False, "axes.spines.right": False, "legend.framealpha": 0.9, "svg.hashsalt": "sweep"},
        "axes.prop_cycle": plt.cycler(color=COLORS, marker=["o", "s", "^", "D", "v", "P"]),
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(1, n_panels, figsize=(width * n_panels, 4.6), layout="constrained", squeeze=False)
        plot(axes[0])
        figure.suptitle(title, fontsize=13)
        figure.supxlabel(textwrap.fill(caption, int(13 * width * n_panels)), fontsize=9)
        figure.savefig(f"{path}.png", dpi=150)
        figure.savefig(f"{path}.svg", metadata={"Date": None})
        plt.close(figure)


def pictures(rows, folder, caption):
    """The four pictures for each drafter. -> the files' names without their ends"""
    names = []
    for drafter in sorted({line["drafter"] for line in rows} - {""}):
        mine = [line for line in rows if line["drafter"] == drafter and line["K"] != "auto"]
        lines = {}  # {label: rows by K}
        one_temperature = len({line["temperature"] for line in mine}) == 1
        for line in mine:
            label = line["domain"] if one_temperature else f"{line['domain']}, T = {line['temperature']:g}"
            lines.setdefault(label, []).append(line)
        temperature = f", temperature {mine[0]['temperature']:g}" if mine and one_temperature else ""
        plain = {(line["temperature"], line["domain"]): line for line in rows if line["drafter"] == ""}
        for kind, title, n_panels, plot, width in (
            ("figure1", "What a longer lookahead brings and costs", 3, partial(plot_figure1, lines), 4.6),
            ("predicted", "Predicted against measured speedup", 1, partial(plot_predicted, lines), 6.4),
            ("parts", "Where the time goes", len(lines), partial(plot_parts, lines, plain), max(4.2, 7 / len(lines))),
            ("positions", "Acceptance by position in the window", 1, partial(plot_positions, lines), 6.4),
        ):
            if mine:
                names.append(f"{kind}_{drafter.replace('+', '_')}")
                draw(folder / names[-1], title, f"drafter {drafter}{temperature}; {caption}", n_panels, plot, width)
    return names


def plot_figure1(lines, axes):
    """The paper's Figure 1: against K, the speedup, the acceptance rate and the time of a loop."""
    speedup, acceptance, loop = axes
    for label, rows in lines.items():
        K = [line["K"] for line in rows]
        speedup.errorbar(K, [x["speedup"] for x in rows], [x["speedup_sd"] for x in rows], capsize=3, label=label)
        acceptance.plot(K, [line["figures"]["r"] for line in rows], label=label)
        loop.plot(K, [line["loop_ms"] for line in rows], label=label)
    speedup.axhline(1, color=INK, linewidth=1, linestyle="--")
    speedup.set(ylabel="speedup over plain decoding (×)", title="Speedup")
    acceptance.set(ylabel="r = tokens / Σ (drafted + 1)", title="Acceptance rate", ylim=(0, 1.02))
    loop.set(ylabel="ms per iteration", title="Time of a loop")
    loop.set_ylim(bottom=0)
    for panel in axes:
        panel.set_xlabel("lookahead K (tokens)")
        panel.set_xticks(sorted({line["K"] for rows in lines.values() for line in rows}))
    speedup.legend()


def plot_predicted(lines, axes):
    [panel] = axes
    gaps = {"chen": [], "leviathan": []}
    for (label, rows), color in zip(lines.items(), COLORS * len(lines), strict=False):
        for name, marker, face in (("chen", "o", color), ("leviathan", "s", "none")):
            known = [x for x in rows if x["figures"][f"predicted_{name}"] is not None]
            predicted = [x["figures"][f"predicted_{name}"] for x in known]
            gaps[name] += [p / x["speedup"] - 1 for p, x in zip(predicted, known, strict=True)]
            measured = [x["speedup"] for x in known]
            panel.scatter(predicted, measured, marker=marker, facecolors=face, edgecolors=color, s=45)
            if name == "chen":
                panel.scatter([], [], color=color, label=label)
    ends = [min([*panel.get_xlim(), *panel.get_ylim()]), max([*panel.get_xlim(), *panel.get_ylim()])]
    panel.plot(ends, ends, color=INK, linewidth=1, linestyle="--", marker="")
    for name, marker, face in (("chen", "o", INK), ("leviathan", "s", "none")):
        worst = max(gaps[name], key=abs, default=0.0)
        text = f"{name.capitalize()}, with β (at most {worst:+.0%} off)"
        panel.scatter([], [], marker=marker, facecolors=face, edgecolors=INK, label=text)
    panel.set(xlabel="predicted speedup (×)", ylabel="measured speedup (×)", xlim=ends, ylim=ends)
    panel.legend()


def plot_parts(lines, plain, axes):
    for panel, (label, rows) in zip(axes, lines.items(), strict=True):
        bars = [plain[rows[0]["temperature"], rows[0]["domain"]], *rows]
        names, bottom = ["plain", *(str(line["K"]) for line in rows)], np.zeros(len(bars))
        for part, color in zip(("scoring", "drafting", "rest"), COLORS, strict=False):
            height = np.array([line["parts_ms_per_token"][part] for line in bars])
            panel.bar(names, height, bottom=bottom, color=color, label=part)
            bottom += height
        panel.set(xlabel="lookahead K (tokens)", title=label)
        panel.grid(axis="x", visible=False)
    top = max(panel.get_ylim()[1] for panel in axes)
    for panel in axes:
        panel.set_ylim(0, 1.2 * top)  # one scale, and room for the legend
    axes[0].set_ylabel("ms per token")
    axes[0].legend(ncols=3, loc="upper center")


def plot_positions(lines, axes):
    [panel] = axes
    for (label, rows), color in zip(lines.items(), COLORS * len(lines), strict=False):
        f = rows[-1]["figures"]  # the largest K
        shares = [a / n for a, n in zip(f["accepted_by_position"], f["met_by_position"], strict=True)]
        positions = range(1, len(shares) + 1)
        panel.plot(positions, shares, color=color, label=f"{label}: accepted / met")
        alphas = f["alpha_by_position"]
        panel.plot(positions, alphas, color=color, linestyle=":", marker="", label=f"{label}: mean Σ min(p, q)")
    panel.set(xlabel="position in the window", ylabel="chance of acceptance", ylim=(0, 1.02))
    panel.set_xticks(range(1, max(len(rows[-1]["figures"]["met_by_position"]) for rows in lines.values()) + 1))
    panel.legend()


# ---- The command line ------------------------------------------------------------------------------------------------


def list_of(parse):
    return lambda text: [parse(part) for part in text.split(",")]


def add_model_arguments(parser):
    count = flags.argument(flags.integer(1))
    parser.add_argument("--draft_model_size", default="tiny-draft")
    parser.add_argument("--target_model_size", default="tiny-target")
    parser.add_argument("--models_dir", default=str(ROOT / "models"))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "int8"], help="of the target")
    parser.add_argument("--draft_dtype", default="float32", choices=["float32", "bfloat16", "int8"])
    parser.add_argument("--n_tokens", type=count, default=64, help="for each prompt")
    parser.add_argument("--n_prompts", type=count, default=4, help="at most so many of each file")
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--note", default="", help="a line for the captions, such as what the weights are")


def check_n_tokens(n_tokens, lookaheads):
    fewest = 2 + max(1 if K == "auto" else K for K in lookaheads)  # auto begins with 1
    if n_tokens < fewest:
        raise UserError(f"--n_tokens must be at least {fewest}: only what follows the first window is timed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--prompts", nargs="+", default=[], help=".txt or .jsonl files [four openings of stories]")
    parser.add_argument("--K", type=flags.argument(list_of(flags.lookahead)), default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--temperature", type=flags.argument(list_of(flags.temperature)), default=[0.0, 1.0])
    parser.add_argument("--top_p", type=flags.argument(flags.share))
    parser.add_argument("--drafter", type=list_of(flags.drafter), default=["model"])
    parser.add_argument("--out", type=Path, default=ROOT / "sweep", help="the folder for what is written")
    options = parser.parse_args()
    check_n_tokens(options.n_tokens, options.K)
    prompts = {Path(path).stem: read_prompts(path, options.n_prompts) for path in options.prompts}
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        measured = measure(options, prompts or {"stories": PROMPTS}, options.out / "measurements.jsonl")
        rows, details = summarise(measured), machine()
        content = {"options": {**vars(options), "out": str(options.out)}, "machine": details, "rows": rows}
        (options.out / "sweep.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {options.out}: {error.strerror}") from None
    print(table(rows))
    for name in pictures(rows, options.out, caption(options, details)):
        print(options.out / f"{name}.png")


if __name__ == "__main__":
    guarded(main, "interrupted; run again to go on from here")
