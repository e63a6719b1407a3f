"""Trains heads for a target, which guess its next tokens without a draft model. This made tiny-target's.

    python -m training heads --target_model_size tiny-target --heads 4 --files doyle.txt wells.txt
    python main.py --target_model_size tiny-target --drafter heads

Rows of text begin with stretches of --files, or with --prompts, as in python -m training distil, and the target writes
on. What its last block gives for each token of this text is computed once and kept. From that, head i learns the
distribution that the target had i tokens later. The target does not change. α is the chance that a head's guess is
accepted, given that those before it were. After an interruption the same command goes on. The heads are saved beside
the model, as heads.safetensors.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from speculative.checkpoints.folders import model_folder
from speculative.checkpoints.tensors import parameter_count
from speculative.drafters.heads import FILE, MOST_HEADS, fingerprint
from speculative.engines.jax.model import keep_compiled
from speculative.support import arguments as values
from speculative.support.arguments import Parser
from speculative.support.errors import UserError
from training.common import add_models, add_recipe, add_texts, check_fits, load_on_device, read_beginnings, want
from training.divergences import kl
from training.files import as_float16, check_new, save_tensors
from training.fit import fit
from training.network import EndToEnd, load_gpt2
from training.recipe import acceptance_chance, after_prompt, distributions, tempered, write

RATE = 0.4  # divided by the width
N_WRITTEN = 64  # rows that the target writes at a time


def arguments_of_heads(arguments: list[str]):
    parser = Parser(__doc__, prog="python -m training heads")
    add_models(parser)
    heads = values.argument(values.integer(1, MOST_HEADS))
    parser.add_argument("--heads", type=heads, default=4, help="how many")
    add_texts(parser)
    add_recipe(parser, RATE, divergence=False)
    parser.set_defaults(temperatures=[0.0, 1.0], n_rows=2048, steps=2000)
    o = parser.parse_args(arguments)
    if (o.files is None) == (o.prompts is None):
        raise UserError("give either --files or --prompts: what rows of text begin with")
    if o.n_rows < o.n_batch:
        raise UserError(f"--n_rows {o.n_rows} must be at least --n_batch, {o.n_batch}")
    if o.heads > o.n_seq // 2:
        raise UserError(f"{o.heads} heads look further than rows of {o.n_seq} tokens reach: give a larger --n_seq")
    return o


def written(gpt2, target, o, begin, n_rows, seed):
    """The target's text: h [n_rows, n_seq, n_embd], temperature [n_rows], which tokens count [n_rows, n_seq]."""

    @jax.jit
    def last_block(params, x):  # [N, n_seq] -> [N, n_seq, n_embd]
        cache = EndToEnd(gpt2, len(params["blocks"]), len(x))
        wpe = jnp.tile(params["wpe"][: x.shape[1]], (len(x), 1))  # [N*n_seq, n_embd]
        gpt2.gpt2(x.ravel(), **params | {"wpe": wpe}, n_head=target.n_head, cache=cache)
        return cache.hidden.reshape(*x.shape, -1)

    rng = np.random.default_rng([o.seed, seed])
    parts = []
    for first in range(0, n_rows, N_WRITTEN):
        n = min(N_WRITTEN, n_rows)
        x, n_prompt, temperature = write(gpt2, target, begin, n, o.n_seq, o.temperatures, rng)
        h = np.asarray(last_block(target.params, x), np.float16)
        parts.append((h, temperature, after_prompt(x, n_prompt)))
        print(f"\rthe target has written {min(first + n, n_rows)} of {n_rows} rows", end="", flush=True)
    print()
    return [np.concatenate(arrays)[:n_rows] for arrays in zip(*parts, strict=True)]


def each_head(gpt2, target_params, params, lesson, of):
    """-> [n_heads], the means of of(log_p, q, temperature) -> [n] over the tokens that count.

    log_p are a head's log-probabilities before the temperature, and q the target's probabilities after it.
    """

    def log_probs(h):  # [..., n_embd] -> [n, n_vocab]
        h = h.reshape(-1, h.shape[-1])  # [n, n_embd]
        return jax.nn.log_softmax(gpt2.layer_norm(h, **target_params["ln_f"]) @ target_params["wte"].T)

    h, temperature, counts = lesson  # [n_batch, n_seq, n_embd], [n_batch], [n_batch, n_seq]
    means = []
    for i, (w, b) in enumerate(zip(params["w"], params["b"], strict=True), start=1):
        before = h[:, :-i]  # [n_batch, n_seq - i, n_embd]
        later = h[:, i:]  # [n_batch, n_seq - i, n_embd]
        log_p = log_probs(before + jax.nn.silu(before @ w + b))  # [n_batch*(n_seq - i), n_vocab]
        t = jnp.repeat(temperature, before.shape[1])  # [n_batch*(n_seq - i)]
        counted = counts[:, :-i].ravel()
        means.append(jnp.average(of(log_p, distributions(log_probs(later), t), t), weights=counted))
    return jnp.stack(means)


def divergence(log_p, q, t):  # [n, n_vocab] twice, [n] -> [n]
    return kl(tempered(log_p, t), q)


def train_heads(o, target, begin, begin_held_out, checkpoint):
    """-> ({w [n_heads, n_embd, n_embd], b [n_heads, n_embd]}, history as of fit, with each head's α)"""
    gpt2 = load_gpt2()
    n_embd = target.params["wte"].shape[1]
    h, temperature, counts = written(gpt2, target, o, begin, o.n_rows, seed=0)
    held_out = written(gpt2, target, o, begin_held_out, 4 * o.n_batch, seed=1)

    def batch(step, params):
        rows = np.random.default_rng([o.seed, step]).integers(len(h), size=o.n_batch)
        return h[rows].astype(np.float32), temperature[rows], counts[rows]

    def loss(params, lesson):
        return each_head(gpt2, target.params, params, lesson, divergence).sum()

    @jax.jit
    def alphas(params, lesson):
        return each_head(gpt2, target.params, params, lesson, acceptance_chance)

    def evaluate(params):
        figures = {}
        for t in dict.fromkeys(o.temperatures):
            lesson = [a[held_out[1] == np.float32(t)].astype(np.float32) for a in held_out]
            for i, alpha in enumerate(alphas(params, lesson) if len(lesson[0]) else [], start=1):
                figures[f"α of head {i} at temperature {t:g}"] = float(alpha)
        return figures

    # At the start every head repeats what the target said of the next token.
    start = {"w": jnp.zeros((o.heads, n_embd, n_embd)), "b": jnp.zeros((o.heads, n_embd))}
    recipe = " ".join(f"{name}={value}" for name, value in vars(o).items())
    return fit("heads", start, loss, batch, evaluate, o.steps, o.rate, checkpoint, max(1, o.steps // 5), recipe=recipe)


def check_memory(o, hparams: dict) -> None:
    """Raises UserError if the target, what it wrote and a step would not fit into memory."""
    kept = 2 * (o.n_rows + 4 * o.n_batch) * o.n_seq * hparams["n_embd"]
    rows = 4 * 8 * o.heads * o.n_batch * o.n_seq * hparams["n_vocab"]
    check_fits(4 * parameter_count(hparams), kept + rows, "--n_rows, --n_batch or --n_seq")


def main(arguments: list[str]) -> None:
    o = arguments_of_heads(arguments)
    folder = Path(model_folder(o.target_model_size, o.models_dir))
    path = folder / FILE
    check_new(path)
    wanted = want("target", o.target_model_size, o)
    hparams = wanted.hparams
    if o.n_seq > hparams["n_ctx"]:
        raise UserError(f"--n_seq {o.n_seq} tokens, and the context has {hparams['n_ctx']}")
    o.rate = o.rate or RATE / hparams["n_embd"]
    begin, begin_held_out = read_beginnings(o.files, o.prompts, wanted.encoder, o.n_batch, o.n_seq)
    check_memory(o, hparams)
    keep_compiled()
    target = load_on_device(wanted, o)
    checkpoint = path.with_suffix(".npz")
    params, history = train_heads(o, target, begin, begin_held_out, checkpoint)
    save_tensors(path, as_float16(params), {"target": fingerprint(hparams, target.params["ln_f"])})
    checkpoint.unlink(missing_ok=True)
    _, after = history[-1]
    for what, figure in after.items():
        print(f"{what} on held-out text of the target: {figure:.3f}")
    print(f"{path} holds the heads: --drafter heads")
