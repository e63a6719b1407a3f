"""Learning compared: four divergences on text from four sources, with the same start and number of steps.

    python -m benchmarks.distillation FILES... [--steps 100 --seeds 3 --out distillation]

FILES are the corpus, as for python -m training pair. Every run begins with the target's first layer. α, the chance that
a draft is accepted, is measured on text that the target wrote from held-out prompts. After an interruption the same
command goes on: --out keeps each evaluation, and each run its checkpoint.
"""

import json
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from benchmarks.common import Parser, count, writing
from benchmarks.grid import measured_on, read_lines
from benchmarks.pictures import COLORS, INK, draw
from benchmarks.tables import table
from speculative.engines.jax.model import keep_compiled
from speculative.measure.machine import machine
from speculative.support.errors import guarded
from training.common import load_on_device, read_beginnings, want
from training.distil import RATE
from training.divergences import DIVERGENCES
from training.files import as_float16
from training.network import load_gpt2
from training.recipe import TEXTS, Model, Recipe, distil, held_out_lessons, mean_acceptance

TEMPERATURES = (1.0, 0.0)
N_TEST = 16  # batches of fresh text, at each temperature
COLUMNS = "divergence text α_at_1=alpha1:.3f ±=alpha1_sd:.3f α_at_0=alpha0:.3f ±=alpha0_sd:.3f"
FIGURES = ("alpha1", "alpha0")


def settings_of(o):
    return measured_on(o, "models_dir", "target_model_size", "draft_model_size", "files", "steps")


def checkpoint_of(folder, divergence, text, seed):
    return Path(folder, f"{divergence}-{text}-{seed}.npz")


class Experiment:
    """Shared by all runs: the models, the text to learn from, and text of the target on which they are compared."""

    def __init__(self, o):
        keep_compiled()
        self.o = o
        wanted = want("target", o.target_model_size, o)
        self.hparams = wanted.hparams
        self.begin, self.begin_held_out = read_beginnings(o.files, None, wanted.encoder, Recipe.n_batch, Recipe.n_seq)
        self.target = load_on_device(wanted, o)
        first = {"blocks": self.target.params["blocks"][:1]}
        self.start = Model(self.target.params | first, self.target.n_head)
        self.gpt2 = load_gpt2()
        self.shared = {}
        recipe = Recipe(temperatures=TEMPERATURES)
        self.lessons = held_out_lessons(recipe, self.begin_held_out, self.target, self.gpt2, N_TEST, 2)

    def train(self, divergence, text, seed):
        recipe = Recipe(divergence, text, seed=seed, steps=self.o.steps, rate=RATE / self.hparams["n_embd"])
        checkpoint = checkpoint_of(self.o.out, divergence, text, seed)
        if (text, seed) not in self.shared:
            self.shared = {(text, seed): {}}  # what was kept of the text before takes memory
        args = (recipe, self.target, self.start, self.begin, self.begin_held_out, checkpoint)
        params, _ = distil(*args, every=self.o.steps, about=settings_of(self.o), shared=self.shared[text, seed])
        return Model(as_float16(params), self.target.n_head)

    def evaluate(self, draft):
        """-> {name: figure} of a draft, on the text that is the same for all"""
        return dict(zip(FIGURES, mean_acceptance(self.gpt2, draft, self.lessons).values(), strict=True))


def summarise(done):
    """{(divergence, text, seed): figures} -> a row for each (divergence, text): means, and their spread over seeds."""
    groups = {}
    for (divergence, text, _), figures in done.items():
        groups.setdefault((divergence, text), []).append(figures)
    rows = []
    for (divergence, text), each in groups.items():
        row = {"divergence": divergence, "text": text, "seeds": len(each)}
        for name in FIGURES:
            row[name] = mean(figures[name] for figures in each)
            row[f"{name}_sd"] = stdev(figures[name] for figures in each) if len(each) > 1 else None
        rows.append(row)
    return rows


# ---- The picture -----------------------------------------------------------------------------------------------------


def fit_gaussian(divergence):
    """The Gaussian p that is closest to a mixture q of two, by a divergence. -> x, p, q, each [n]"""
    from jax.nn import log_softmax
    from scipy.optimize import minimize

    x = np.linspace(-6, 7, 400)  # the tokens of a vocabulary, so to say
    q = 0.6 * np.exp(-((x + 2) ** 2) / (2 * 0.8**2)) / 0.8 + 0.4 * np.exp(-((x - 3) ** 2) / (2 * 0.6**2)) / 0.6
    q /= q.sum()

    def log_p(parameters):
        return log_softmax(-((x - parameters[0]) ** 2) / (2 * np.exp(2 * parameters[1])))

    def loss(parameters):
        return float(DIVERGENCES[divergence](log_p(parameters)[None], q[None].astype(np.float32))[0])

    fits = [minimize(loss, [middle, width], method="Nelder-Mead") for middle, width in product((-2, 0.5, 3), (-0.5, 1))]
    return x, np.exp(log_p(min(fits, key=lambda fit: fit.fun).x)), q


def plot(done, references, o, axes):
    """α at both temperatures, a dot for each seed; the Gaussian of each divergence."""
    *alphas, gaussians = axes
    colors = dict(zip(DIVERGENCES, COLORS, strict=False))
    for panel, name, title in zip(alphas, ("alpha1", "alpha0"), ("temperature 1", "temperature 0"), strict=True):
        for i, divergence in enumerate(o.divergences):
            dots = [(TEXTS.index(t) + 0.18 * (i - 1.5), f[name]) for (d, t, _), f in done.items() if d == divergence]
            panel.scatter(*zip(*dots, strict=True), color=colors[divergence], s=22, label=divergence)
        for reference, style in zip(references, (":", "--"), strict=False):
            panel.axhline(references[reference][name], color=INK, linewidth=1, linestyle=style, label=reference)
        panel.set(title=f"Acceptance at {title}", ylabel="α, the chance that a draft is accepted", xlabel="text")
        panel.set_xticks(range(len(TEXTS)), TEXTS)
    alphas[1].legend(fontsize=9)
    for divergence in o.divergences:
        x, p, q = fit_gaussian(divergence)
        gaussians.plot(x, p, color=colors[divergence], marker="", label=divergence)
    gaussians.fill_between(x, q, color=INK, alpha=0.2, linewidth=0, label="the mixture q")
    gaussians.set(title="One Gaussian p for a mixture q", xlabel="x", yticks=[])
    gaussians.legend(fontsize=9)


# ---- The command -----------------------------------------------------------------------------------------------------


def measure(o):
    """{(divergence, text, seed): figures} of all runs, and {reference: figures}. What was kept is not run again."""
    Path(o.out).mkdir(parents=True, exist_ok=True)
    path = Path(o.out, "runs.jsonl")
    on = settings_of(o)
    done = {tuple(run): figures for its_settings, *run, figures in read_lines(path) if its_settings == on}
    runs = [(d, text, seed) for seed in range(o.seeds) for text in o.texts for d in o.divergences]
    references = [("", "the start", 0), ("", o.draft_model_size, 0)]
    experiment = None
    for run in [run for run in [*references, *runs] if run not in done]:
        experiment = experiment or Experiment(o)
        draft = experiment.start
        if run == references[1]:
            draft = load_on_device(want("draft", o.draft_model_size, o), o)
        elif run in runs:
            print(f"{run[0]} on {run[1]}, seed {run[2]}", flush=True)
            draft = experiment.train(*run)
        done[run] = experiment.evaluate(draft)
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"\n{json.dumps([on, *run, done[run]])}")
        checkpoint_of(o.out, *run).unlink(missing_ok=True)
    return {run: done[run] for run in runs}, {run[1]: done[run] for run in references}


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILES")
    parser.add_pair()
    parser.add_argument("--divergences", nargs="+", choices=DIVERGENCES, default=[*DIVERGENCES])
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=TEXTS)
    parser.add_argument("--steps", type=count, default=100)
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--out", default="distillation", help="a folder for what is kept, and the picture")
    o = parser.parse_args(argv)
    with writing(o.out):
        done, references = measure(o)
        rows = [{"text": name} | figures for name, figures in references.items()] + summarise(done)
        print(table(rows, COLUMNS))
        caption = f"target {o.target_model_size}, draft its first layer; {o.steps} steps of 8 rows of 64 tokens; "
        caption += f"{o.seeds} seeds; {machine()['processor']}"
        picture = Path(o.out, "distillation.png")
        draw(picture, "What helps a draft to learn", caption, 3, partial(plot, done, references, o))
        print(picture)


if __name__ == "__main__":
    guarded(main, "interrupted; run again to go on from here")
