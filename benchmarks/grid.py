"""One grid: every drafter with every K and rule, at each temperature, after each prompt; and its presets.

Each setting is measured --repeats times, each time with another seed and in another random order, so that a machine
that slows down for a while does so for all settings alike. Both decoders run in turn for every setting. The first run
of each drafter and K is not counted. With --out, an interrupted command continues if it is given again.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from benchmarks import plots, runs
from benchmarks.tables import parser_of, table
from speculative.support.texts import read_prompts

KIND = ("temperature", "top_p", "domain", "drafter", "accept", "K")  # columns that all runs of a line share
NO_MEAN = ("prompt", "repeat", "plain_tokens", "spec_tokens")
SETTING = "T=temperature:g top-p=top_p:g domain"


def number(text: str) -> int | str:
    """ "4" -> 4; "auto", "16/4" (for two levels) and "2,2,1" (a tree) stay as they are."""
    return int(text) if text.isdigit() else text


def setting(text: str) -> tuple[float, float | None]:
    """ "1:0.9" -> (1.0, 0.9), the temperature and top-p; "0.5" -> (0.5, None)."""
    temperature, _, top_p = text.partition(":")
    return float(temperature), float(top_p) if top_p else None


def measure(o) -> list[dict]:
    """A row for each run of the grid."""
    prompts = [(d, prompt) for d, path in o.prompts.items() for prompt in read_prompts(str(path), o.n_prompts)]
    models = [o.models_dir, o.target_model_size, o.dtype, o.draft_model_size, o.draft_dtype, o.n_tokens]
    # A K may have fewer numbers than a drafter has levels, not more.
    kinds = [kind for kind in product(o.drafters, o.K, o.accept) if str(kind[1]).count("/") <= kind[0].count("/")]
    settings = []
    for repeat in range(o.repeats):
        once = [*product(kinds, o.settings, prompts)]
        settings += [(repeat, *once[i]) for i in np.random.default_rng(repeat).permutation(len(once))]
    file = Path(o.out, "runs.jsonl") if o.out else None
    done = dict(map(json.loads, file.read_text("utf-8").splitlines())) if file and file.exists() else {}
    todo = [s for s in settings if json.dumps([models, s]) not in done]
    if todo:
        session = runs.load(o, o.drafters)
        for drafter, K, accept in dict.fromkeys(kind for _, kind, *_ in todo):
            runs.run(session, prompts[0][1], min(o.n_tokens, 24), drafter, K, 1.0, None, accept, 0)  # not counted
    for s in tqdm(todo, unit="run", disable=None):
        repeat, (drafter, K, accept), (temperature, top_p), (domain, prompt) = s
        row = {"temperature": temperature, "top_p": top_p, "domain": domain, "drafter": drafter, "accept": accept}
        row |= {"K": K, "prompt": prompt, "repeat": repeat}
        row |= runs.run(session, prompt, o.n_tokens, drafter, K, temperature, top_p, accept, repeat)
        done[json.dumps([models, s])] = row
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file, "a", encoding="utf-8") as f:
                f.write(json.dumps([json.dumps([models, s]), row]) + "\n")
    return [done[json.dumps([models, s])] for s in settings]


def summarise(rows: list[dict]) -> list[dict]:
    """A line for each kind of run: means, the median speedup, and counts over the texts."""
    kinds = {}
    for row in rows:
        kinds.setdefault(tuple(row[name] for name in KIND), []).append(row)
    lines = []
    for kind, of in kinds.items():
        line = dict(zip(KIND, kind, strict=True)) | {"runs": len(of), "of": of}
        for name in of[0].keys() - line.keys() - {*NO_MEAN}:
            values = [row[name] for row in of if row.get(name) is not None]
            line[name] = mean(values) if values else None
        line["speedup"] = median(row["speedup"] for row in of)
        line["unlike"] = sum(row["spec_tokens"] != row["plain_tokens"] for row in of)
        # A repeat at temperature 0 is the same text again, and not further evidence.
        texts = [row for row in of if row["temperature"] or row["repeat"] == 0]
        line |= {"texts": len(texts), "r_error": standard_error([row["r"] for row in texts])}
        lines.append(line)
    return sorted(lines, key=lambda line: [str(line[name]).zfill(6) for name in KIND])


def standard_error(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


# ---- The columns that a preset adds ----------------------------------------------------------------------------------


def side_by_side(o, lines: list[dict]) -> list[dict]:
    """The rules of acceptance beside each other."""
    found = {}
    for line in lines:
        both = found.setdefault(tuple(line[name] for name in KIND if name != "accept"), dict(line))
        both |= {f"{line['accept']}_{name}": line[name] for name in ("tokens_per_iteration", "speedup")}
    for both in found.values():
        token = both.get("token_tokens_per_iteration")
        both["gain"] = both.get("block_tokens_per_iteration", token) / token - 1 if token else None
    return [*found.values()]


def likelihoods(o, lines: list[dict]) -> list[dict]:
    """The mean log-likelihood of a new token under the target, and its standard error, for both decoders."""
    session = runs.load(o, o.drafters)
    _, target = runs.models_of(session)
    for line in lines:
        texts = [row for row in line["of"] if row["temperature"] or row["repeat"] == 0]
        for name in ("plain", "spec"):
            found = [log_likelihood(target, session.encode(row["prompt"]), row[f"{name}_tokens"]) for row in texts]
            line |= {f"{name}_log": mean(found), f"{name}_log_error": standard_error(found)}
    return lines


def log_likelihood(target, x: list[int], new: list[int]) -> float:
    q = np.asarray(target([*x, *new[:-1]], len(new)))  # [len(new), n_vocab]
    return float(np.mean(np.log(q[np.arange(len(new)), new])))


# ---- The presets -----------------------------------------------------------------------------------------------------


class Preset(NamedTuple):
    help: str
    columns: str  # for tables.table
    defaults: dict  # of flags
    change: Callable | None = None  # (options, lines) -> lines
    plots: tuple = ()  # names of functions in plots.py


R = "r:.3f ±=r_error:.3f"
GREEDY, WARM, NUCLEUS = (0.0, None), (1.0, None), (1.0, 0.9)
PAPER = {"n_tokens": 40, "n_prompts": 20, "repeats": 1, "settings": [GREEDY, NUCLEUS]}
PROSE = {"prompts": {"prose": runs.PROMPTS["prose"]}}
PRESETS = {
    "sweep": Preset(
        "both decoders over K: speedup, acceptance rate and the formulas; a picture",
        f"drafter {SETTING} K plain=plain_ms:.2f ms/token=spec_ms:.2f speedup:.2f r:.3f α=alpha:.2f c:.2f "
        "β=mean_beta:.2f blog=account_blog:.2f Leviathan=account_leviathan:.2f",
        {"K": [1, 2, 3, 4, 6, 8], "settings": [GREEDY, WARM]},
        plots=("speedup",),
    ),
    "rules": Preset(
        "token by token beside block verification",
        f"drafter {SETTING} K token=token_tokens_per_iteration:.2f block=block_tokens_per_iteration:.2f gain:+.1% "
        "token×=token_speedup:.2f block×=block_speedup:.2f",
        {"K": [2, 4, 8, 16], "accept": ["token", "block"], "settings": [(0.5, None), WARM, NUCLEUS], "repeats": 1},
        side_by_side,
    ),
    "figure1": Preset(
        "Chen et al., Figure 1: the time of a text, the acceptance rate and the time of an iteration; a picture",
        f"{SETTING} K texts=runs autoregressive=plain_text_ms:.1f ms=spec_text_ms:.1f loop=loop_ms:.2f {R}",
        PAPER | {"K": [1, 2, 3, 4, 6, 8]},
        plots=("figure1",),
    ),
    "table1": Preset(
        "Chen et al., Table 1: the time of a token, and that nothing is lost",
        f"{SETTING} texts ArS_(ms/token)=plain_ms:.2f SpS=spec_ms:.2f speedup:.2f r:.2f "
        "ArS's_log-likelihood_a_token=plain_log:.3f ±=plain_log_error:.3f SpS's=spec_log:.3f ±=spec_log_error:.3f",
        PAPER | {"n_tokens": 64},
        likelihoods,
    ),
    "lenience": Preset(
        "the price of acceptance that is not lossless",
        f"K rule=accept runs {R} tokens/iteration=tokens_per_iteration:.2f speedup:.2f "
        "log-likelihood_a_token=spec_log:.3f ±=spec_log_error:.3f",
        PAPER | PROSE | {"settings": [WARM], "accept": ["token", *(f"lenient:0.{b}" for b in (8, 6, 4, 2, 1))]},
        likelihoods,
    ),
}


def main(name: str, argv: list[str]) -> None:
    help, columns, defaults, change, plot_names = PRESETS[name]
    parser = parser_of(name, f"{help}\n\n{__doc__}")
    add = parser.add_argument
    runs.add_models(add)
    add("--prompts", nargs="+", help="files, .jsonl (objects with a prompt) or one prompt a line [prose and code]")
    add("--n_prompts", type=int, default=4, help="of each file, at most")
    add("--n_tokens", type=int, default=64, help="to generate after each prompt")
    add("--settings", nargs="+", type=setting, default=[(0.0, None)], help="temperature or temperature:top_p")
    add("--drafters", nargs="+", default=["model"])
    add("--K", nargs="+", type=number, default=[4], help="numbers, auto, 8/4 for two levels, or a tree as 2,2,1")
    add("--accept", nargs="+", default=["token"], help="rules: token, block, lenient:0.5")
    add("--repeats", type=int, default=1, help="with other seeds; each run is the median of half a second")
    add("--out", help="folder for the runs" + " and the pictures" * bool(plot_names))
    parser.set_defaults(**{"prompts": runs.PROMPTS} | defaults)
    o = parser.parse_args(argv)
    if o.out and plot_names:
        import matplotlib  # noqa: F401 (a missing one is told before anything is measured)
    if isinstance(o.prompts, list):
        known = {str(path): domain for domain, path in runs.PROMPTS.items()}
        o.prompts = {known.get(str(Path(path).resolve()), Path(path).stem): path for path in o.prompts}
    lines = summarise(measure(o))
    greedy = [line["unlike"] for line in lines if line["temperature"] == 0]
    lines = change(o, lines) if change else lines
    print(table(lines, columns))
    if greedy:
        print(f"\nAt temperature 0, texts that differ from autoregressive decoding's: {sum(greedy)}")
    for plot in plot_names if o.out else ():
        print(getattr(plots, plot)(lines, f"{o.out}/{plot}.png"))
