"""Heads for a target, which guess its next tokens without a draft model.

The output of the target's last block is computed once for rows of text that the target has written. From it, head i
learns the distribution that the target had i tokens later. The target does not change. The heads are stored beside the
model; speculative/drafters/heads.py has their formula and source.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from speculative.checkpoints.folder import model_folder
from speculative.drafters.heads import FILE, fingerprint
from speculative.support.files import replacing
from training.distil import acceptance, distributions, divergence, read_beginnings, written
from training.files import as_stored, check_new, float16, load
from training.loop import fit, say, schedule
from training.network import Model, head_log_probs, last_block


def hidden_rows(o, target: Model, begin, n_rows: int, seed: int) -> list:
    """Text of the target -> h [n_rows, n_seq, n_embd], temperature [n_rows], counts [n_rows, n_seq]."""
    say(f"the target writes {n_rows} rows")
    rng = np.random.default_rng([o.seed, seed])
    x, n_prompt, temperature = written(target, begin, n_rows, o.n_seq, o.temperature, rng)
    output = jax.jit(partial(last_block, target.params, target.n_head))
    of_rows = [np.asarray(output(row[None]), np.float16) for row in x]
    counts = np.arange(o.n_seq) >= n_prompt[:, None] - 1
    return [np.stack(of_rows), temperature, counts]


def each_head(measure, target_params: dict, heads: dict, rows):
    """The mean of measure(log_p, q, t) over the positions that count -> [n_heads]."""
    h, temperature, counts = rows  # [n_batch, n_seq, n_embd], [n_batch], [n_batch, n_seq]
    means = []
    _, n_seq, n_embd = h.shape
    for i, (w, b) in enumerate(zip(heads["w"], heads["b"], strict=True), start=1):
        before = h[:, :-i].reshape(-1, n_embd)  # [n, n_embd], n = n_batch*(n_seq - i)
        later = h[:, i:].reshape(-1, n_embd)  # [n, n_embd]
        t = jnp.repeat(temperature, n_seq - i)  # [n]
        guess = before + jax.nn.silu(before @ w + b)  # [n, n_embd]
        log_p = head_log_probs(target_params, guess)  # [n, n_vocab]
        q = distributions(head_log_probs(target_params, later), t)  # [n, n_vocab]
        weights = counts[:, :-i].ravel()  # [n]
        means.append(jnp.average(measure(log_p, q, t), weights=weights))
    return jnp.stack(means)


def main(o) -> None:
    path = Path(model_folder(o.target_model_size, str(o.models_dir)), FILE)
    check_new(path)
    encoder, target = load(o, o.target_model_size, o.n_seq)
    begin, begin_held_out = read_beginnings(o.prompts, encoder)
    rows = hidden_rows(o, target, begin, o.n_rows, seed=0)
    held_out = hidden_rows(o, target, begin_held_out, 4 * o.n_batch, seed=1)

    def batch(step, params):
        chosen = np.random.default_rng([o.seed, step]).integers(o.n_rows, size=o.n_batch)
        return [a[chosen].astype(np.float32) for a in rows]

    def loss(heads, rows):
        return each_head(partial(divergence, "kl"), target.params, heads, rows).sum()

    alphas = jax.jit(partial(each_head, acceptance, target.params))

    def figures(heads):
        values = {}
        temperatures = held_out[1]  # [n_rows]
        for t in dict.fromkeys(temperatures.tolist()):
            at_t = temperatures == np.float32(t)  # [n_rows]
            rows_at_t = [a[at_t].astype(np.float32) for a in held_out]
            for i, alpha in enumerate(alphas(heads, rows_at_t), start=1):
                values[f"α of head {i} at {t:g}"] = float(alpha)
        return values

    n_embd = target.hparams["n_embd"]
    # At the start every head repeats the target's distribution of the next token.
    start = {"w": jnp.zeros((o.heads, n_embd, n_embd)), "b": jnp.zeros((o.heads, n_embd))}
    rate = schedule(o.steps, o.rate / n_embd)
    checkpoint = path.with_suffix(".npz")
    heads = fit(start, loss, batch, figures, o.steps, rate, checkpoint, str(o), max(1, o.steps // 5))
    with replacing(path) as part:
        Path(part).write_bytes(save(float16(heads), {"target": fingerprint(target.hparams, target.params["ln_f"])}))
    checkpoint.unlink()
    for name, alpha in figures(as_stored(heads)).items():
        print(f"{name} on held-out text of the target: {alpha:.3f}")
    say(f"{path} has the heads for --drafter heads")
