"""Minimises a loss, with checkpoints from which an interrupted run goes on."""

import json
import math
import time
from functools import cache, partial
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np
import optax

from speculative.support.errors import UserError
from speculative.support.files import replacing

PATIENCE = 120  # seconds after which a checkpoint is due, though nothing is to be evaluated yet
SILENCE = 10  # seconds without a line, after which a step is shown


def make_optimizer(steps, peak):
    """AdamW. The rate rises, stays, and falls over the last third, so a run can be made longer as long as the rate
    stays. If steps is None it stays from the beginning."""
    if steps is None:
        return adamw(peak)
    warmup = min(300, steps // 10)
    decay = int(0.35 * steps)
    rate = optax.join_schedules(
        [
            optax.linear_schedule(0, peak, warmup),
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, peak / 50, decay),
        ],
        [warmup, steps - decay],
    )
    return adamw(rate)


def adamw(rate):
    """rate: a number, or a function of the step."""
    rule = optax.adamw(rate, b2=0.99, weight_decay=0.1, mask=partial(jax.tree.map, lambda a: a.ndim == 2))
    return optax.chain(optax.clip_by_global_norm(1.0), rule)


@cache
def make_train_step(loss, steps, peak):
    """-> optimizer, and step((params, moments), batch) -> ((params, moments) after it, loss before it)

    The state that goes in must not be used again: its memory becomes that of the state that comes out.
    """
    optimizer = make_optimizer(steps, peak)

    @partial(jax.jit, donate_argnums=0)
    def train_step(state, batch):
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params, batch)
        update, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, update), moments), value

    return optimizer, train_step


def fit(name, params, loss, batch, evaluate, steps, peak, checkpoint, every=500, unit=1, recipe=""):
    """Minimises loss(params, batch(step, params)). -> (params, [(step, evaluate(params))])

    evaluate gives {what: figure}. The figures are printed before the first step, after every `every` steps and after
    the last. Then a checkpoint is written, and also when the last one is PATIENCE seconds old, but only after a
    multiple of `unit` steps. recipe is a text that names this run: a checkpoint of another is refused. Raises UserError
    if the loss is no longer a number; the last checkpoint stays.
    """
    optimizer, train_step = make_train_step(loss, steps, peak)
    params = jax.tree.map(jnp.array, params)  # a copy, as each step gives its state away
    state = (params, optimizer.init(params))
    start = 0
    history = []
    if checkpoint.exists():
        state, start, history = load_checkpoint(checkpoint, state, recipe)
    mean = None
    began = time.time()
    saved = noted = began

    def note(step, loss="", figures=None):
        nonlocal noted
        noted = time.time()
        shown = "".join(f", {what} {figure:.4f}" for what, figure in (figures or {}).items())
        print(f"{name} step {step}/{steps}, {time.time() - began:.0f} s{loss}{shown}", flush=True)
        history.extend([(step, figures)] if figures else [])

    if not history:
        note(0, "", evaluate(state[0]))
    for step in range(start + 1, steps + 1):
        state, value = train_step(state, batch(step - 1, state[0]))
        if not math.isfinite(value):
            raise diverged(step, peak, checkpoint)
        mean = float(value) if mean is None else 0.98 * mean + 0.02 * float(value)
        due = step % every == 0 or step == steps
        if due or time.time() - noted > SILENCE:
            note(step, f": loss {mean:.4f}", evaluate(state[0]) if due else None)
        if due or (step % unit == 0 and time.time() - saved > PATIENCE):
            if not all(jnp.isfinite(a).all() for a in jax.tree.leaves(state[0])):
                raise diverged(step, peak, checkpoint)
            save_checkpoint(checkpoint, state, step, history, recipe)
            saved = time.time()
    return state[0], history


def diverged(step, peak, checkpoint):
    kept = f"{checkpoint} keeps the last good step: " if checkpoint.exists() else ""
    return UserError(f"the loss is not a number after step {step}: {kept}a rate below {peak:g} may go on from it")


def save_checkpoint(path, state, step, history=(), recipe=""):
    """Raises UserError if it cannot be written; then path still holds what it held before."""
    try:
        with replacing(path) as part:  # so that an interruption leaves the old one whole
            np.savez(part, step, json.dumps([recipe, list(history)]), *jax.tree.leaves(state))
    except OSError as error:
        kept = ""
        if path.exists():
            kept = "; the checkpoint before it is whole, and the same command goes on from there"
        raise UserError(f"cannot write {path}: {error.strerror}{kept}") from error


def load_checkpoint(path, state, recipe="", say=print):
    """-> (state, step, history). Raises UserError if path holds the checkpoint of another run, or none."""
    try:
        step, texts, *leaves = np.load(path).values()
        other, history = json.loads(str(texts))
        same = [a.shape for a in leaves] == [a.shape for a in jax.tree.leaves(state)] and other == recipe
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UserError(f"{path} is no checkpoint that can be read: delete it to begin anew") from error
    if not same:
        raise UserError(f"{path} is of another run, with other flags or models: delete it to begin anew")
    say(f"going on from {path}, step {step}")
    state = jax.tree.unflatten(jax.tree.structure(state), [jnp.asarray(a) for a in leaves])
    return state, int(step), [tuple(entry) for entry in history]
