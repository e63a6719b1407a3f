"""Minimises a loss, with checkpoints from which an interrupted run goes on."""

import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from speculative.errors import UserError


def make_optimizer(steps, peak):
    """AdamW. The rate rises, stays, and falls over the last third, so that a run can be made longer while it stays."""
    warmup, decay = min(300, steps // 10), int(0.35 * steps)
    rate = optax.join_schedules(
        [
            optax.linear_schedule(0, peak, warmup),
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, peak / 50, decay),
        ],
        [warmup, steps - decay],
    )
    adamw = optax.adamw(rate, b2=0.99, weight_decay=0.1, mask=partial(jax.tree.map, lambda a: a.ndim == 2))
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def fit(name, params, loss, batch, held_out, steps, peak, checkpoint):
    """Minimises loss(params, x) over x = batch(step). -> (params, [(step, held-out loss)])

    Prints the running mean of the loss every 100 steps, and that of the held-out batches every 500.
    """
    optimizer = make_optimizer(steps, peak)
    params = jax.tree.map(jnp.array, params)  # a copy, as each step gives its state away
    state, start = (params, optimizer.init(params)), 0
    if checkpoint.exists():
        state, start = load_checkpoint(checkpoint, state)

    @partial(jax.jit, donate_argnums=0)
    def train_step(state, x):
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params, x)
        update, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, update), moments), value

    evaluate = jax.jit(loss)
    history, mean, began = [], None, time.time()
    for step in range(start, steps):
        state, value = train_step(state, batch(step))
        mean = float(value) if mean is None else 0.98 * mean + 0.02 * float(value)
        if step % 100 == 0:
            print(f"{name} step {step}/{steps}, {time.time() - began:.0f} s: loss {mean:.4f}", flush=True)
        if step == start or (step + 1) % 500 == 0 or step + 1 == steps:
            history.append((step + 1, float(np.mean([evaluate(state[0], x) for x in held_out]))))
            print(f"{name} step {step + 1}/{steps}: held-out loss {history[-1][1]:.4f}", flush=True)
            save_checkpoint(checkpoint, state, step + 1)
    return state[0], history


def save_checkpoint(path, state, step):
    part = path.with_suffix(".part.npz")
    np.savez(part, step, *jax.tree.leaves(state))
    os.replace(part, path)  # so that an interruption leaves the old one whole


def load_checkpoint(path, state):
    step, *leaves = np.load(path).values()
    if [a.shape for a in leaves] != [a.shape for a in jax.tree.leaves(state)]:
        raise UserError(f"{path} is of a model of another size: delete it to begin anew")
    print(f"going on from {path}, step {step}")
    return jax.tree.unflatten(jax.tree.structure(state), [jnp.asarray(a) for a in leaves]), int(step)
