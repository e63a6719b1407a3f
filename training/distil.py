"""Distillation: a draft learns the target's distributions, on rows of text that the target, the draft or both write.

Each row begins with a prompt. After it, at the row's temperature, one of four distances of p from q is lowered:

    kl           KL(q ‖ p) = Σ q log(q / p)      large if the target has a token that the draft lacks
    reverse_kl   KL(p ‖ q) = Σ p log(p / q)      large if the draft has a token that the target lacks
    jsd          (KL(q ‖ m) + KL(p ‖ m)) / 2     m = (p + q) / 2; at most log 2
    tvd          Σ |p - q| / 2 = 1 - α           the chance that a drafted token is rejected

The gradients are those of the distance on a given text. If the draft wrote the text, a change of the draft would also
change the text; that second term of the gradient is left out (Agarwal et al., section 3).

Sources: Zhou et al. 2023, "DistillSpec: Improving Speculative Decoding via Knowledge Distillation"; Agarwal et al.
2023, "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes"; Leviathan et al. 2023,
section 3.2, for 1 - α.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from speculative.support.errors import UserError
from speculative.support.texts import read_prompts
from training.files import as_stored, checkpoint_of, load_both, save_draft
from training.loop import fit, say, schedule
from training.network import Model, log_probs, write

N_HELD_OUT = 4  # batches on which α is measured
N_AT_ONCE = 64  # rows that a model writes together
TINY = float(np.finfo(np.float32).tiny)  # instead of a probability that float32 rounds to 0


class Lesson(NamedTuple):
    """Rows of text, and the target's distributions in them."""

    x: Any  # [n_batch, n_seq]; n = n_batch*n_seq
    q: Any  # [n, n_vocab], of the token that follows
    t: Any  # [n], the temperature of p
    counts: Any  # [n], 1 if the position counts, 0 if not


def kl(log_p, q):  # [n, n_vocab] twice -> [n], nats
    return (xlogy(q, q) - q * log_p).sum(-1)


def reverse_kl(log_p, q):  # [n, n_vocab] twice -> [n], nats
    return (jnp.exp(log_p) * (log_p - jnp.log(jnp.maximum(q, TINY)))).sum(-1)


def jsd(log_p, q):  # [n, n_vocab] twice -> [n], nats
    p = jnp.exp(log_p)  # [n, n_vocab]
    log_m = jnp.log(jnp.maximum((p + q) / 2, TINY))  # [n, n_vocab]
    return (xlogy(q, q) - q * log_m + p * (log_p - log_m)).sum(-1) / 2


def tvd(log_p, q):  # [n, n_vocab] twice -> [n], from 0 to 1
    return abs(jnp.exp(log_p) - q).sum(-1) / 2


DIVERGENCES = {"kl": kl, "reverse_kl": reverse_kl, "jsd": jsd, "tvd": tvd}


def tempered(log_p, t):  # [n, n_vocab], [n] -> [n, n_vocab]
    """Log-probabilities at each row's temperature; at 1 if it is 0."""
    return jax.nn.log_softmax(log_p / jnp.where(t > 0, t, 1)[:, None])


def distributions(log_p, t):  # [n, n_vocab], [n] -> [n, n_vocab]
    """The distribution that is sampled from at each row's temperature; one-hot if it is 0."""
    greedy = jax.nn.one_hot(jnp.argmax(log_p, axis=-1), log_p.shape[-1])  # [n, n_vocab]
    return jnp.where((t > 0)[:, None], jnp.exp(tempered(log_p, t)), greedy)


def acceptance(log_p, q, t):  # [n, n_vocab] twice, [n] -> [n]
    """α, the chance that a draft is accepted: Σ min(p, q)."""
    return jnp.minimum(distributions(log_p, t), q).sum(-1)


def divergence(name: str, log_p, q, t):  # [n, n_vocab] twice, [n] -> [n]
    """At temperature 0, p is taken at temperature 1: kl is then the cross-entropy of the target's greedy choice."""
    return DIVERGENCES[name](tempered(log_p, t), q)


def mean(measure, n_head: int, params: dict, lesson: Lesson):
    """The mean over the positions that count of measure(log_p, q, t), which is acceptance or a divergence."""
    log_p = log_probs(params, n_head, lesson.x)  # [n, n_vocab]
    return jnp.average(measure(log_p, lesson.q, lesson.t), weights=lesson.counts)


@partial(jax.jit, static_argnums=1)
def teach(params: dict, n_head: int, x, n_prompt, temperature) -> Lesson:  # [n_batch, n_seq], [n_batch] twice
    """The target's lesson on rows of text; positions count from the last token of the prompt on."""
    t = jnp.repeat(temperature, x.shape[1])  # [n]
    counts = jnp.arange(x.shape[1]) >= n_prompt[:, None] - 1  # [n_batch, n_seq]
    return Lesson(x, distributions(log_probs(params, n_head, x), t), t, counts.ravel().astype(jnp.float32))


def read_beginnings(path: str, encoder) -> tuple[Callable, Callable]:
    """-> begin, and begin of the held-out prompts, one in five."""
    prompts = [encoder.encode(prompt) for prompt in read_prompts(path)]
    if len(prompts) < 2:
        raise UserError(f"{path} has one prompt, and one in five is held out: give at least two")
    return partial(begin, [ids for i, ids in enumerate(prompts) if i % 5]), partial(begin, prompts[::5])


def begin(prompts: list[list[int]], n_rows: int, n_seq: int, rng) -> tuple:
    """-> x [n_rows, n_seq], n_prompt [n_rows]: rows that begin with one of the prompts, half a row of it at most."""
    chosen = [prompts[i][: n_seq // 2] for i in rng.integers(len(prompts), size=n_rows)]
    x = np.array([ids + [0] * (n_seq - len(ids)) for ids in chosen], np.int32)  # [n_rows, n_seq]
    return x, np.array([len(ids) for ids in chosen])


def written(model: Model, begin: Callable, n: int, n_seq: int, temperatures, rng) -> list:
    """Rows that a model writes, each at one of the temperatures -> [x [n, n_seq], n_prompt [n], temperature [n]]."""
    parts = []
    choices = np.array(temperatures, np.float32)
    for _ in range(0, n, N_AT_ONCE):
        x, n_prompt = begin(min(n, N_AT_ONCE), n_seq, rng)
        temperature = rng.choice(choices, len(x))
        key = jax.random.key(rng.integers(2**31))
        x = write(model.params, model.n_head, x, n_prompt, temperature, key)
        parts.append((np.asarray(x), n_prompt, temperature))
    return [np.concatenate(arrays)[:n] for arrays in zip(*parts, strict=True)]


def lessons(o, target: Model, draft: Model, begin: Callable) -> Callable:
    """-> batch(step, params of the draft), a Lesson. Random numbers depend on the step alone, so that a run that
    continues sees the same text. o: the flags of the command."""
    n_draft = {"target": 0, "draft": o.n_batch, "mixed": o.n_batch // 2}[o.text]  # rows of the draft in a batch
    n_rows = min(o.n_rows, o.steps * o.n_batch) if n_draft < o.n_batch else 1
    say(f"the target writes {n_rows} rows")
    rows = written(target, begin, n_rows, o.n_seq, o.temperature, np.random.default_rng(o.seed))

    def batch(step, params):
        rng = np.random.default_rng([o.seed, step])
        chosen = rng.integers(n_rows, size=o.n_batch - n_draft)
        parts = [[a[chosen] for a in rows]]
        if n_draft:
            writer = draft._replace(params=params)
            parts.append(written(writer, begin, n_draft, o.n_seq, o.temperature, rng))
        x, n_prompt, temperature = map(np.concatenate, zip(*parts, strict=True))
        return teach(target.params, target.n_head, x, n_prompt, temperature)

    return batch


def held_out_lessons(o, target: Model, begin_held_out: Callable) -> dict:
    """-> {temperature: Lessons} on text of the target after held-out prompts."""
    held_out: dict = {}
    n_rows = N_HELD_OUT * o.n_batch
    for t in dict.fromkeys(o.temperature):
        rng = np.random.default_rng([2**32, int(1000 * t)])
        rows = written(target, begin_held_out, n_rows, o.n_seq, (t,), rng)
        held_out[t] = []
        for i in range(N_HELD_OUT):
            x, n_prompt, temperature = (a[i::N_HELD_OUT] for a in rows)
            held_out[t].append(teach(target.params, target.n_head, x, n_prompt, temperature))
    return held_out


def acceptance_figures(n_head: int, held_out: dict) -> Callable:
    """-> figures(params of a draft), {name: α at a temperature}. held_out: {temperature: Lessons}."""
    alpha = jax.jit(partial(mean, acceptance, n_head))

    def figures(params):
        return {f"α at temperature {t:g}": np.mean([alpha(params, x) for x in held_out[t]]) for t in held_out}

    return figures


def save_better(o, draft: Model, params: dict, figures: Callable, show: Callable = print) -> None:
    """Save the draft with these parameters, or as it began if α on held-out text did not rise. Show the figures of the
    draft as it began, and of the one that is saved. They are empty if no text was held out."""
    saved = as_stored(params)
    before, after = figures(draft.params), figures(saved)
    if before and sum(after.values()) <= sum(before.values()):
        say("nothing was gained: α on held-out text did not rise, so the draft is saved as it began")
        saved = as_stored(draft.params)
        after = figures(saved)
    save_draft(o, draft._replace(params=saved))
    for name in before:
        show(f"{name} on held-out text of the target: {before[name]:.3f} before, {after[name]:.3f} of what is saved")


def main(o) -> None:
    if bool(o.draft_model_size) == bool(o.first_layers):
        raise UserError("give either --draft_model_size or --first_layers: the draft to begin with")
    encoder, target, draft = load_both(o, o.n_seq)
    begin, begin_held_out = read_beginnings(o.prompts, encoder)
    loss = partial(mean, partial(divergence, o.divergence), draft.n_head)
    batch = lessons(o, target, draft, begin)
    figures = acceptance_figures(draft.n_head, held_out_lessons(o, target, begin_held_out))
    rate = schedule(o.steps, o.rate / draft.hparams["n_embd"])
    every = max(1, o.steps // 10)
    params = fit(draft.params, loss, batch, figures, o.steps, rate, checkpoint_of(o), str(o), every)
    save_better(o, draft, params, figures)
