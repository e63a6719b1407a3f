"""What helps a draft to learn: four divergences on text from four sources, with the same start and number of steps.

    python -m benchmarks.distillation FILES... [--steps 100 --seeds 3 --out distillation]

FILES are the corpus, as for python -m training pair. Every run begins with the target's first layer. α, the chance that
a draft is accepted, is measured on text that the target wrote from held-out prompts. Tokens per iteration and speedup
come from decoding --prompts with K = 4, both decoders in turn. After an interruption the same command goes on: --out
keeps each evaluation, and each run its checkpoint.
"""

import contextlib
import json
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from zlib import crc32

import numpy as np

from benchmarks.common import PROMPTS, Pair, Parser, Setting, count
from benchmarks.sweep import COLORS, INK, draw
from benchmarks.tables import ms_per_token, recorder_of, table
from plumbing.errors import UserError
from plumbing.exits import guarded
from plumbing.texts import read_prompts
from speculative.engines.jax.model import keep_compiled
from speculative.measure.figures import counts
from speculative.measure.machine import machine
from training.distil import RATE, load_on_device, read_beginnings
from training.divergences import DIVERGENCES
from training.files import as_float16
from training.network import load_gpt2
from training.online import numpy_model
from training.recipe import TEXTS, Model, Recipe, distil, held_out_lessons, mean_acceptance
from utils import load_encoder_and_hparams

K = 4
TEMPERATURES = (1.0, 0.0)
N_TEST = 16  # batches of fresh text, at each temperature
COLUMNS = """divergence text α_at_1=alpha1:.3f ±=alpha1_sd:.3f α_at_0=alpha0:.3f ±=alpha0_sd:.3f
    tokens/iteration_at_1=tokens1:.2f ±=tokens1_sd:.2f at_0=tokens0:.2f ±=tokens0_sd:.2f
    speedup_at_1=speedup1:.2f ±=speedup1_sd:.2f at_0=speedup0:.2f ±=speedup0_sd:.2f"""
FIGURES = [f"{name}{t:g}" for name in ("alpha", "tokens", "speedup") for t in TEMPERATURES]


def settings_of(o):
    """The key of kept figures: other models, texts or machines make other figures."""
    names = ("models_dir", "target_model_size", "draft_model_size", "dtype", "first_layers", "files", "steps")
    decoding = (o.prompts["prompts"], o.n_tokens)
    return " ".join(
        map(str, [*(getattr(o, name) for name in names), crc32(repr(decoding).encode()), *machine().values()])
    )


def checkpoint_of(folder, divergence, text, seed):
    return Path(folder, f"{divergence}-{text}-{seed}.npz")


def decoded(pair, hparams, params, temperature, prompts, n_tokens, repeat):
    """-> (tokens per iteration, speedup) of a draft with these parameters, the median over the prompts."""
    pair.draft = numpy_model(params, hparams, temperature)
    pair.models = [pair.target, pair.draft]
    runs = []
    speedups = []
    for i, prompt in enumerate([prompts[0], *prompts]):
        plain, run = (
            pair.decode(Setting("", repeat, prompt, "model", temperature, None, "", k), n_tokens) for k in (0, K)
        )
        if i:  # the first warms up
            runs.append(run)
            speedups.append(ms_per_token(plain) / ms_per_token(run))
    return counts(recorder_of(runs))["tokens_per_iteration"], median(speedups)


class Experiment:
    """What all runs share: the models, the text to learn from, and text of the target on which they are compared."""

    def __init__(self, o):
        keep_compiled()
        self.o = o
        encoder, self.target_hparams = load_encoder_and_hparams(o.target_model_size, o.models_dir)
        self.begin, self.begin_held_out = read_beginnings(o.files, None, encoder, Recipe.n_batch, Recipe.n_seq)
        self.target = load_on_device(o.target_model_size, o.models_dir, self.target_hparams)
        first = {"blocks": self.target.params["blocks"][: o.first_layers]}
        self.start = Model(self.target.params | first, self.target.n_head)
        self.hparams = self.target_hparams | {"n_layer": o.first_layers}
        self.gpt2 = load_gpt2()
        self.shared = {}
        self.lessons = None
        self.pair = None

    def train(self, divergence, text, seed):
        rate = RATE / self.hparams["n_embd"]
        o = self.o
        recipe = Recipe(divergence, text, seed=seed, steps=self.o.steps, rate=rate)
        checkpoint = checkpoint_of(o.out, divergence, text, seed)
        if (text, seed) not in self.shared:
            self.shared = {(text, seed): {}}  # what was kept of the text before takes memory
        args = (recipe, self.target, self.start, self.begin, self.begin_held_out, checkpoint)
        params, _ = distil(*args, every=o.steps, about=settings_of(o), shared=self.shared[text, seed])
        return as_float16(params)

    def evaluate(self, params, hparams, seed):
        """-> {name: figure} of a draft, on the text that is the same for all"""
        if not self.lessons:
            recipe = Recipe(temperatures=TEMPERATURES)
            args = (recipe, self.begin_held_out, self.target, self.gpt2, N_TEST, 2)
            self.lessons = held_out_lessons(*args)
            self.pair = Pair(self.o)
        alphas = mean_acceptance(self.gpt2, Model(params, hparams["n_head"]), self.lessons)
        figures = dict(zip(("alpha1", "alpha0"), alphas.values(), strict=True))
        for t in TEMPERATURES:
            args = (self.pair, hparams, params, t, self.o.prompts["prompts"], self.o.n_tokens, seed)
            figures[f"tokens{t:g}"], figures[f"speedup{t:g}"] = decoded(*args)
        return figures


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


def plot(done, references, axes):
    """α at both temperatures, a dot for each seed; the Gaussian of each divergence."""
    *alphas, gaussians = axes
    for panel, name, title in zip(alphas, ("alpha1", "alpha0"), ("temperature 1", "temperature 0"), strict=True):
        for i, (divergence, color) in enumerate(zip(DIVERGENCES, COLORS, strict=False)):
            dots = [(TEXTS.index(t) + 0.18 * (i - 1.5), f[name]) for (d, t, _), f in done.items() if d == divergence]
            panel.scatter(*zip(*dots, strict=True), color=color, s=22, label=divergence)
        for reference, style in zip(references, (":", "--"), strict=False):
            panel.axhline(references[reference][name], color=INK, linewidth=1, linestyle=style, label=reference)
        panel.set(title=f"Acceptance at {title}", ylabel="α, the chance that a draft is accepted", xlabel="text")
        panel.set_xticks(range(len(TEXTS)), TEXTS)
    alphas[1].legend(fontsize=9)
    for divergence, color in zip(DIVERGENCES, COLORS, strict=False):
        x, p, q = fit_gaussian(divergence)
        gaussians.plot(x, p, color=color, marker="", label=divergence)
    gaussians.fill_between(x, q, color=INK, alpha=0.2, linewidth=0, label="the mixture q")
    gaussians.set(title="One Gaussian p for a mixture q", xlabel="x", yticks=[])
    gaussians.legend(fontsize=9)


# ---- The command -----------------------------------------------------------------------------------------------------


def read_done(path, on):
    """{(divergence, text, seed): figures} of a file, with the same settings; a line that was cut off is skipped."""
    done = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            its_settings, *run, figures = json.loads(line)
            if its_settings == on:
                done[tuple(run)] = figures
    return done


def measure(o):
    """{(divergence, text, seed): figures} of all runs, and {reference: figures}. What was kept is not run again."""
    Path(o.out).mkdir(parents=True, exist_ok=True)
    path = Path(o.out, "runs.jsonl")
    on = settings_of(o)
    done = read_done(path, on)
    runs = [(d, text, seed) for seed in range(o.seeds) for text in TEXTS for d in DIVERGENCES]
    references = [("", "the start", 0), ("", o.draft_model_size, 0)]
    experiment = None
    for run in [run for run in [*references, *runs] if run not in done]:
        experiment = experiment or Experiment(o)
        params = experiment.start.params
        hparams = experiment.hparams
        if run == references[1]:
            _, hparams = load_encoder_and_hparams(o.draft_model_size, o.models_dir)
            params = load_on_device(o.draft_model_size, o.models_dir, hparams).params
        elif run in runs:
            print(f"{run[0]} on {run[1]}, seed {run[2]}", flush=True)
            params = experiment.train(*run)
        done[run] = experiment.evaluate(params, hparams, run[2])
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"\n{json.dumps([on, *run, done[run]])}")
        checkpoint_of(o.out, *run).unlink(missing_ok=True)
    return {run: done[run] for run in runs}, {run[1]: done[run] for run in references}


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILES")
    parser.add_models()
    parser.add_argument("--first_layers", type=count, default=1, help="layers of the target to begin with")
    parser.add_argument("--steps", type=count, default=100)
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--prompts", default=PROMPTS["prose"], help="a file of prompts to decode")
    parser.add_argument("--n_prompts", type=count, default=8, help="how many of them at most")
    parser.add_argument("--n_tokens", type=count, default=40, help="to decode from each prompt")
    parser.add_argument("--out", default="distillation", help="a folder for what is kept, and the picture")
    parser.set_defaults(drafters=["model"])
    o = parser.parse_args(argv)
    o.prompts = {"prompts": read_prompts(o.prompts, o.n_prompts)}
    try:
        done, references = measure(o)
        rows = [{"text": name} | figures for name, figures in references.items()] + summarise(done)
        print(table(rows, COLUMNS))
        caption = f"target {o.target_model_size}, draft its first layer; {o.steps} steps of 8 rows of 64 tokens; "
        caption += f"{o.seeds} seeds; {machine()['processor']}"
        picture = Path(o.out, "distillation.png")
        draw(picture, "What helps a draft to learn", caption, 3, partial(plot, done, references))
        print(picture)
    except OSError as error:
        raise UserError(f"cannot write to {o.out}: {error.strerror}") from None


if __name__ == "__main__":
    guarded(main, "interrupted; run again to go on from here")
