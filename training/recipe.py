"""Distillation: a draft learns to say what the target would say, on text from one of four sources.

Every row of text begins with a prompt. From there the corpus goes on as it was written, or the target writes on, or the
draft, or both in a mixture. The draft learns from the target's distributions after the prompt, at the temperature at
which the row was written; at 0 that is the target's greedy choice.

Sources: Zhou et al. 2023, "DistillSpec: Improving Speculative Decoding via Knowledge Distillation"; Agarwal et al.
2023, "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes" (GKD).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from training.divergences import DIVERGENCES
from training.fit import fit
from training.network import load_gpt2, log_probs
from training.writing import continuations

TEXTS = ("corpus", "target", "draft", "mixed")
ROUND = 4  # steps for which text is written at a time: the draft that wrote it is up to so many steps old
N_HELD_OUT = 4  # batches on which α is measured


@dataclass(frozen=True)
class Recipe:
    """The loss that the draft learns by, the texts that it learns from, and for how long."""

    divergence: str = "jsd"
    text: str = "target"
    mixture: float = 0.5  # the draft's share of the rows, where the text is mixed
    temperatures: tuple[float, ...] = (1.0,)  # each row of text has one of them
    top_k: int | None = None  # this one and the next are for the writing: what is compared are whole distributions
    top_p: float | None = None
    n_batch: int = 8  # rows of text in a step
    n_seq: int = 64  # tokens in a row
    n_rows: int = 4096  # how many rows the target writes; then they come again
    rate: float = 1e-3
    steps: int = 1000
    seed: int = 0


class Model(NamedTuple):
    params: dict
    n_head: int


class Lesson(NamedTuple):
    """Rows of text, and what the target says there."""

    x: Any  # [n_batch, n_seq]
    q: Any  # [n_batch*n_seq, n_vocab], the target's distributions of the token that follows
    temperature: Any  # [n_batch], at which p is compared with q
    counts: Any  # [n_batch, n_seq], 1 where q is to be learned, else 0


def tempered(log_p, temperature):  # [n, n_vocab], [n] -> [n, n_vocab]
    """At each row's temperature; where that is 0, at 1."""
    return jax.nn.log_softmax(log_p / jnp.where(temperature > 0, temperature, 1)[:, None])


def distributions(log_p, temperature):  # [n, n_vocab], [n] -> [n, n_vocab]
    """The distribution that is sampled from, at each row's temperature: at 0, one-hot."""
    greedy = jax.nn.one_hot(jnp.argmax(log_p, axis=-1), log_p.shape[-1])  # [n, n_vocab]
    return jnp.where((temperature > 0)[:, None], jnp.exp(tempered(log_p, temperature)), greedy)


def acceptance_chance(log_p, q, temperature):  # [n, n_vocab] twice, [n] -> [n]
    """α, the chance that a draft is accepted: Σ min(p, q)."""
    return jnp.minimum(distributions(log_p, temperature), q).sum(-1)


@partial(jax.jit, static_argnums=(0, 1))
def teach(gpt2, n_head, params, x, temperature, counts) -> Lesson:
    """The target's lesson on these rows of text."""
    t = jnp.repeat(temperature, x.shape[1])  # [n_batch*n_seq]
    return Lesson(x, distributions(log_probs(gpt2, params, n_head, x), t), temperature, counts)


@cache
def make_loss(gpt2, n_head: int, divergence: str) -> Callable:
    """-> loss(params, lesson), the mean divergence of the rows that count.

    At temperature 0 the draft's p is taken at temperature 1, so kl is the cross-entropy of the target's greedy choice.
    """

    def loss(params, lesson):
        t = jnp.repeat(lesson.temperature, lesson.x.shape[1])  # [n_batch*n_seq]
        log_p = tempered(log_probs(gpt2, params, n_head, lesson.x), t)  # [n_batch*n_seq, n_vocab]
        return jnp.average(DIVERGENCES[divergence](log_p, lesson.q), weights=lesson.counts.ravel())

    return loss


@partial(jax.jit, static_argnums=(0, 1))
def alpha(gpt2, n_head, params, lesson):
    """The mean of α over the rows that count."""
    t = jnp.repeat(lesson.temperature, lesson.x.shape[1])  # [n_batch*n_seq]
    chances = acceptance_chance(log_probs(gpt2, params, n_head, lesson.x), lesson.q, t)  # [n_batch*n_seq]
    return jnp.average(chances, weights=lesson.counts.ravel())


def write(gpt2, model: Model, begin: Callable, n: int, n_seq: int, temperatures, rng, **filters):
    """-> x [n, n_seq], n_prompt [n], temperature [n]: rows that a model writes, each at one of the temperatures."""
    x, n_prompt = begin(n, n_seq, rng)
    temperature = rng.choice(np.array(temperatures, np.float32), n)
    key = jax.random.key(rng.integers(2**31))
    x = continuations(gpt2, model.n_head, model.params, x, n_prompt, temperature, key, **filters)
    return np.asarray(x), n_prompt, temperature


class Texts:
    """batch(step, params of the draft) -> x [n_batch, n_seq], n_prompt [n_batch], temperature [n_batch]

    Each step has its own random numbers, so a run that goes on meets the same text.
    """

    def __init__(self, recipe: Recipe, begin: Callable, target: Model, draft_n_head: int, gpt2, written: dict):
        self.r = recipe
        self.begin = begin
        self.target = target
        self.draft_n_head = draft_n_head
        rows = {"begin": begin, "n_seq": recipe.n_seq, "temperatures": recipe.temperatures}
        self.write = partial(write, gpt2, **rows, top_k=recipe.top_k, top_p=recipe.top_p)
        n = ROUND * recipe.n_batch
        n_draft = {"draft": n, "mixed": round(recipe.mixture * n)}.get(recipe.text, 0)
        self.shares = {"draft": n_draft, recipe.text if recipe.text == "corpus" else "target": n - n_draft}
        self.n_rounds = max(1, recipe.n_rows // n)  # of the target's
        self.written = written  # {round: what the target wrote}
        self.number = None  # of the round whose rows these are
        self.rows = None

    def batch(self, step, params):
        number, i = divmod(step, ROUND)
        if number != self.number:
            parts = [self.part(source, n, number, params) for source, n in self.shares.items() if n]
            self.number = number
            self.rows = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        return [rows[i::ROUND] for rows in self.rows]  # so that each batch has its share of each source

    def part(self, source, n, number, params):
        if source == "target":
            number %= self.n_rounds
        rng = np.random.default_rng([self.r.seed, number, source == "draft"])
        if source == "corpus":
            x, n_prompt = self.begin(n, self.r.n_seq, rng)
            return x, n_prompt, rng.choice(np.array(self.r.temperatures, np.float32), n)
        if source == "draft":
            return self.write(Model(params, self.draft_n_head), n=n, rng=rng)
        if number not in self.written:
            self.written[number] = self.write(self.target, n=n, rng=rng)
        return self.written[number]


def after_prompt(x, n_prompt):  # [n_batch, n_seq], [n_batch] -> [n_batch, n_seq]
    """1 at the positions from which a token after the prompt is predicted, else 0."""
    return (np.arange(x.shape[1]) >= n_prompt[:, None] - 1).astype(np.float32)


def held_out_lessons(recipe: Recipe, begin: Callable, target: Model, gpt2, n_batches=N_HELD_OUT, seed=1):
    """{temperature: lessons on text that the target wrote}. Their seed differs from that of all text to learn from."""
    lessons = {}
    for i, t in enumerate(dict.fromkeys(recipe.temperatures)):
        rng = np.random.default_rng([2**32, seed, i])
        n = n_batches * recipe.n_batch
        filters = {"top_k": recipe.top_k, "top_p": recipe.top_p}
        x, n_prompt, temperature = write(gpt2, target, begin, n, recipe.n_seq, (t,), rng, **filters)
        counts = after_prompt(x, n_prompt)
        batches = [slice(j, j + recipe.n_batch) for j in range(0, len(x), recipe.n_batch)]
        lessons[t] = [teach(gpt2, target.n_head, target.params, x[b], temperature[b], counts[b]) for b in batches]
    return lessons


def mean_acceptance(gpt2, draft: Model, lessons) -> dict[str, float]:
    """α on the lessons of each temperature, in fit's form."""
    mean = {t: np.mean([alpha(gpt2, draft.n_head, draft.params, x) for x in each]) for t, each in lessons.items()}
    return {f"α at temperature {t:g}": float(value) for t, value in mean.items()}


def distil(
    recipe: Recipe, target: Model, draft: Model, begin, begin_held_out, checkpoint, every=None, about="", shared=None
):
    """Teaches the draft -> (params, history), as fit gives them, with α on held-out text of the target for each
    temperature.

    begin, begin_held_out: begin(n_rows, n_seq, rng), as in texts.py. about: what else identifies this run. shared: a
    dict, for several runs whose recipes differ in divergence, rate and steps alone: it keeps the target's lessons.
    """
    gpt2 = load_gpt2()
    kept = {} if shared is None else shared
    lessons = kept.setdefault("lessons", {})  # {step: Lesson}
    texts = Texts(recipe, begin, target, draft.n_head, gpt2, kept.setdefault("written", {}))
    held_out = held_out_lessons(recipe, begin_held_out, target, gpt2)

    def batch(step, params):
        if step in lessons:
            return lessons[step]
        x, n_prompt, temperature = texts.batch(step, params)
        lesson = teach(gpt2, target.n_head, target.params, x, temperature, after_prompt(x, n_prompt))
        if shared is not None and recipe.text in ("corpus", "target"):
            lessons[step] = lesson
        return lesson

    def evaluate(params):
        return mean_acceptance(gpt2, Model(params, draft.n_head), held_out)

    every = ROUND * max(1, round((every or recipe.steps / 10) / ROUND))  # so that no run goes on within a round
    identity = f"{recipe} {about}".replace(f"rate={recipe.rate}, steps={recipe.steps}, ", "")
    loss = make_loss(gpt2, draft.n_head, recipe.divergence)
    settings = (recipe.steps, recipe.rate, checkpoint, every, ROUND, identity)
    return fit("draft", draft.params, loss, batch, evaluate, *settings)
