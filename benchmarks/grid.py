"""One grid: every drafter with every K and rule, at each temperature, after each prompt; and its presets.

Each setting is measured --repeats times, each time with another seed and in another random order, so that a machine
that slows down for a while does so for all settings alike. Both decoders run in turn for every setting. The first run
of each drafter and K is not counted. With --out, an interrupted command continues if it is given again.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from benchmarks import latency, plots, runs
from benchmarks.quiet import add_busy, undisturbed
from benchmarks.tables import parser_of, table, whole
from speculative.report.figures import mean_of
from speculative.support.texts import read_prompts

KIND = ("temperature", "top_p", "domain", "drafter", "accept", "K")  # columns that all runs of a line share
NO_MEAN = ("prompt", "repeat", "plain_tokens", "spec_tokens", "plain_waits", "spec_waits", "trouble")
SETTING = "T=temperature:g top-p=top_p:g domain"


def number(text: str) -> int | str:
    """ "4" -> 4; "auto", "16/4" (for two levels) and "2,2,1" (a tree) stay as they are."""
    return int(text) if text.isdigit() else text


def setting(text: str) -> tuple[float, float | None]:
    """ "1:0.9" -> (1.0, 0.9), the temperature and top-p; "0.5" -> (0.5, None)."""
    temperature, _, top_p = text.partition(":")
    return float(temperature), float(top_p) if top_p else None


# ---- The runs --------------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """A run of the grid."""

    setting: runs.Setting  # whose seed is the number of the repeat
    domain: str
    prompt: str

    def row(self, session, N: int) -> dict[str, Any]:
        """Decode -> the run's row."""
        s = self.setting
        row = {"temperature": s.temperature, "top_p": s.top_p, "domain": self.domain, "drafter": s.drafter}
        row |= {"accept": s.accept, "K": s.K, "prompt": self.prompt, "repeat": s.seed}
        return row | runs.run(session, self.prompt, N, s)


def wanted_runs(o) -> list[Wanted]:
    """Return the runs of the grid, in a random order for each repeat."""
    prompts = [
        (domain, prompt) for domain, path in o.prompts.items() for prompt in read_prompts(str(path), o.n_prompts)
    ]
    every = []
    for repeat in range(o.repeats):
        of_repeat = []
        for drafter, K, accept in kinds(o):
            for (temperature, top_p), (domain, prompt) in product(o.settings, prompts):
                of_run = runs.Setting(drafter, K, temperature, top_p, accept, repeat)
                of_repeat.append(Wanted(of_run, domain, prompt))
        order = np.random.default_rng(repeat).permutation(len(of_repeat))
        every += [of_repeat[place] for place in order]
    return every


def kinds(o) -> list[tuple]:
    """Return (drafter, K, rule) of the grid. A K may have fewer numbers than a drafter has levels, not more."""
    every = product(o.drafters, o.K, o.accept)
    return [kind for kind in every if str(kind[1]).count("/") <= kind[0].count("/")]


class Done:
    """The runs so far, in a file if --out names a folder for it."""

    def __init__(self, o):
        target = [o.models_dir, o.target_model_size, o.dtype]
        draft = [o.draft_model_size, o.draft_dtype]
        self.models = [*target, *draft, o.n_tokens]
        self.file = Path(o.out, "runs.jsonl") if o.out else None
        self.rows: dict[str, dict] = {}
        if self.file and self.file.exists():
            for line in self.file.read_text("utf-8").splitlines():
                key, row = json.loads(line)
                self.rows[key] = row

    def key(self, wanted: Wanted) -> str:
        return json.dumps([self.models, wanted])

    def __contains__(self, wanted: Wanted) -> bool:
        return self.key(wanted) in self.rows

    def add(self, wanted: Wanted, row: dict) -> None:
        self.rows[self.key(wanted)] = row
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a", encoding="utf-8") as f:
                f.write(json.dumps([self.key(wanted), row]) + "\n")


def measure(o) -> list[dict]:
    """Return a row for each run of the grid."""
    wanted = wanted_runs(o)
    done = Done(o)
    todo = [run for run in wanted if run not in done]
    if todo:
        session = runs.load(o, o.drafters)
        for first in {run.setting.uncounted() for run in todo}:
            runs.run(session, wanted[0].prompt, min(o.n_tokens, 24), first)
        for run in tqdm(todo, unit="run", disable=None):
            row = undisturbed(partial(run.row, session, o.n_tokens), itemgetter("trouble"), o.busy)
            done.add(run, row)
    return [done.rows[done.key(run)] for run in wanted]


# ---- The lines -------------------------------------------------------------------------------------------------------


def summarise(rows: list[dict]) -> list[dict]:
    """Return a line for each kind of run."""
    runs_of: dict[tuple, list[dict]] = defaultdict(list)
    for row in rows:
        kind = tuple(row[name] for name in KIND)
        runs_of[kind].append(row)
    lines = [line_of(of_kind) for of_kind in runs_of.values()]
    return sorted(lines, key=order)


def order(line: dict[str, Any]) -> list[str]:
    """Return the key by which lines are sorted: numbers as texts of one length."""
    return [str(line[name]).zfill(6) for name in KIND]


def line_of(rows: list[dict]) -> dict[str, Any]:
    """Return the means of runs of one kind, the median speedup, and counts over the texts."""
    line: dict[str, Any] = {name: rows[0][name] for name in KIND}
    for name in rows[0].keys() - {*KIND, *NO_MEAN}:
        line[name] = mean_of(row[name] for row in rows if row.get(name) is not None)
    texts = different_texts(rows)
    line["of"] = rows
    line["runs"] = len(rows)
    line["speedup"] = median(row["speedup"] for row in rows)
    line["unlike"] = sum(row["spec_tokens"] != row["plain_tokens"] for row in rows)
    line["texts"] = len(texts)
    line["r_error"] = standard_error([row["r"] for row in texts])
    return line


def different_texts(rows: list[dict]) -> list[dict]:
    """Return the runs that are evidence: a repeat at temperature 0 is the same text again."""
    return [row for row in rows if row["temperature"] or row["repeat"] == 0]


def standard_error(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


# ---- The columns that a preset adds ----------------------------------------------------------------------------------


def side_by_side(o, lines: list[dict]) -> list[dict]:
    """Return the rules of acceptance beside each other."""
    merged: dict[tuple, dict] = {}
    for line in lines:
        kind = tuple(line[name] for name in KIND if name != "accept")
        both = merged.setdefault(kind, dict(line))
        for name in ("tokens_per_iteration", "speedup"):
            both[f"{line['accept']}_{name}"] = line[name]
    for both in merged.values():
        token = both.get("token_tokens_per_iteration")
        block = both.get("block_tokens_per_iteration", token)
        both["gain"] = block / token - 1 if token else None
    return [*merged.values()]


def likelihoods(o, lines: list[dict]) -> list[dict]:
    """Add the mean log-likelihood of a new token under the target, and its standard error, for both decoders."""
    session = runs.load(o, o.drafters)
    _, target = runs.models_of(session)
    for line in lines:
        texts = different_texts(line["of"])
        for name in runs.DECODERS:
            of_texts = []
            for row in texts:
                x = session.encode(row["prompt"])
                of_texts.append(log_likelihood(target, x, row[f"{name}_tokens"]))
            line |= {f"{name}_log": mean(of_texts), f"{name}_log_error": standard_error(of_texts)}
    return lines


def log_likelihood(target, x: list[int], new: list[int]) -> float:
    q = np.asarray(target([*x, *new[:-1]], len(new)))  # [len(new), n_vocab]
    return float(np.mean(np.log(q[np.arange(len(new)), new])))


# ---- The presets -----------------------------------------------------------------------------------------------------


class Preset(NamedTuple):
    help: str
    columns: str  # for tables.table
    defaults: dict  # the defaults of flags
    change: Callable | None = None  # (options, lines) -> lines
    plots: Sequence[str] = ()  # names of functions in plots.py
    more: Callable | None = None  # lines -> a second table


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
        "Chen et al., Figure 1: the time of a text, the acceptance rate and the time of an iteration; how the times of "
        "texts and tokens vary; a picture",
        f"{SETTING} K texts=runs autoregressive=plain_text_ms:.1f ms=spec_text_ms:.1f loop=loop_ms:.2f {R}",
        PAPER | {"K": [1, 2, 3, 4, 6, 8]},
        plots=("figure1",),
        more=latency.by_K,
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


def options_of(name: str, argv: list[str]):
    """Return the options of a preset, from the words of its command."""
    preset = PRESETS[name]
    parser = parser_of(name, f"{preset.help}\n\n{__doc__}")
    add = parser.add_argument
    runs.add_models(add)
    add("--prompts", nargs="+", help="files, .jsonl (objects with a prompt) or one prompt a line [prose and code]")
    add("--n_prompts", type=whole, default=4, help="of each file, at most")
    add("--n_tokens", type=whole, default=64, help="to generate after each prompt")
    add("--settings", nargs="+", type=setting, default=[(0.0, None)], help="temperature or temperature:top_p")
    add("--drafters", nargs="+", default=["model"])
    add("--K", nargs="+", type=number, default=[4], help="numbers, auto, 8/4 for two levels, or a tree as 2,2,1")
    add("--accept", nargs="+", default=["token"], help="rules: token, block, lenient:0.5")
    add("--repeats", type=whole, default=1, help="with other seeds; each run is the median of half a second")
    add_busy(add)
    add("--out", help="folder for the runs and the pictures" if preset.plots else "folder for the runs")
    parser.set_defaults(**{"prompts": runs.PROMPTS} | preset.defaults)
    o = parser.parse_args(argv)
    if isinstance(o.prompts, list):
        o.prompts = by_domain(o.prompts)
    return o


def by_domain(paths: list[str]) -> dict[str, str]:
    """Return {domain: file of prompts}: the kind of our own texts, the file's name of others."""
    ours = {str(path): domain for domain, path in runs.PROMPTS.items()}
    domains = {}
    for path in paths:
        domain = ours.get(str(Path(path).resolve()), Path(path).stem)
        domains[domain] = path
    return domains


def main(name: str, argv: list[str]) -> None:
    preset = PRESETS[name]
    o = options_of(name, argv)
    plot_names = preset.plots if o.out else ()
    if plot_names:
        import matplotlib  # noqa: F401 (a missing one is told before anything is measured)
    lines = summarise(measure(o))
    greedy = [line["unlike"] for line in lines if line["temperature"] == 0]
    if preset.change:
        lines = preset.change(o, lines)
    print(table(lines, preset.columns))
    if preset.more:
        print(f"\nMilliseconds of a text and of the wait for a token; K = 0: autoregressive\n\n{preset.more(lines)}")
    if greedy:
        print(f"\nAt temperature 0, texts that differ from autoregressive decoding's: {sum(greedy)}")
    for plot in plot_names:
        print(getattr(plots, plot)(lines, f"{o.out}/{plot}.png"))
