"""The one loop: it lowers a loss by AdamW, prints figures, and saves checkpoints from which it continues.

Each command calls it with a loss, batches and figures of its own. Progress is printed to standard error.
"""

import math
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from speculative.support.errors import UserError
from speculative.support.files import replacing

SECONDS = 10  # seconds from one line of progress to the next; a single step may take longer


def schedule(steps: int, peak: float) -> Callable:
    """A learning rate that rises, stays, and falls over the last third of the steps."""
    warmup = min(300, steps // 10)
    decay = int(0.35 * steps)
    rise = optax.linear_schedule(0, peak, warmup)
    fall = optax.linear_schedule(peak, peak / 50, decay)
    return optax.join_schedules([rise, optax.constant_schedule(peak), fall], [warmup, steps - decay])


def fit(
    params: dict,
    loss: Callable,
    batch: Callable,
    figures: Callable,
    steps: int,
    rate: float | Callable,
    checkpoint: Path,
    identity: str,
    every: int,
) -> dict:
    """Lower loss(params, batch(step, params)) -> params.

    figures(params) gives {name: number}; they are printed before the first step, after every `every` steps and after
    the last one, and then the state is saved. identity: a text that describes the run; the checkpoint of another run
    is refused. rate: a number, or a function of the step. Raises UserError, also if the loss is not a number.
    """
    matrices = partial(jax.tree.map, lambda a: a.ndim == 2)  # these alone decay
    adamw = optax.adamw(rate, b2=0.99, weight_decay=0.1, mask=matrices)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw)

    @partial(jax.jit, donate_argnums=0)  # the memory of the old state becomes that of the new one
    def train_step(state, batch):
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params, batch)
        update, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, update), moments), value

    params = jax.tree.map(jnp.array, params)  # a copy, because each step gives its state away
    state = (params, optimizer.init(params))
    start = 0
    if checkpoint.exists():
        state, start = load_checkpoint(checkpoint, state, identity)
        say(f"continuing from {checkpoint}, step {start}")
    reported = time.time()
    mean = {}  # {"loss": moving average}
    for step in range(start, steps + 1):  # so many steps have been taken
        due = step % every == 0 or step == steps
        if due or time.time() - reported > SECONDS:
            reported = time.time()
            values = mean | (figures(state[0]) if due else {})
            say(", ".join([f"step {step}/{steps}", *(f"{k} {v:.4f}" for k, v in values.items())]))
        if due and step > start:
            save_checkpoint(checkpoint, state, step, identity)
        if step < steps:
            state, value = train_step(state, batch(step, state[0]))
            if not math.isfinite(value):
                delete = f"delete {checkpoint} and " if checkpoint.exists() else ""
                raise UserError(f"the loss is not a number after step {step + 1}: {delete}try a smaller rate")
            mean["loss"] = 0.98 * mean.get("loss", float(value)) + 0.02 * float(value)
    return state[0]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def save_checkpoint(path: Path, state, step: int, identity: str) -> None:
    """Write the whole checkpoint, or leave the one before as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        np.savez(part, step, identity, *jax.tree.leaves(state))


def load_checkpoint(path: Path, state, identity: str) -> tuple:
    """-> (state, step). state: one of the same structure. Raises UserError for a damaged checkpoint and for
    that of another run."""
    try:
        step, other, *leaves = np.load(path).values()
    except (EOFError, ValueError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error):
        raise UserError(f"{path} is damaged: delete it to begin again") from None
    if str(other) != identity:
        raise UserError(f"{path} belongs to a run with other flags: delete it to begin again")
    return jax.tree.unflatten(jax.tree.structure(state), [jnp.asarray(a) for a in leaves]), int(step)
