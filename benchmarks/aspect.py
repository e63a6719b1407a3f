"""A draft's aspect: one wide layer, or several narrow ones, that learn for the same time.

    python -m benchmarks.aspect [--seconds 60]

The drafts have about as many parameters in their layers and start from random weights. They learn the bundled target's
distributions, at temperature 1, on what it writes after some prompts. Each makes as many steps as fit into --seconds,
going by the time of a step. α is measured on text after other prompts; c is the time of a row of the draft over that of
the target. Takes --seconds for each draft and two minutes more.

Source: Chen et al. 2023, who chose a wide and shallow draft because drafting is a chain of layers.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import MODELS, PROMPTS, Parser, count, write_results
from benchmarks.tables import table, take_turns
from plumbing.exits import guarded
from plumbing.texts import read_prompts
from speculative.engines.jax.model import keep_compiled
from training.distil import RATE, load_on_device
from training.files import as_float16
from training.fit import make_train_step
from training.network import init_params, load_gpt2
from training.online import numpy_model
from training.recipe import Model, Recipe, held_out_lessons, make_loss, mean_acceptance
from training.texts import from_prompts
from utils import load_encoder_and_hparams

SHAPES = {1: 256, 2: 192, 4: 128}  # layers: width, with heads of 64; 0.8 to 0.9 million parameters in the layers
COLUMNS = "layers width parameters steps ms_a_step=step_ms:.0f α=alpha:.3f c:.2f"


def new_draft(n_layer, n_embd, hparams, seed=0):
    """-> (hparams, Model) of a draft with random weights, for a target of these hparams."""
    hparams = hparams | {"n_layer": n_layer, "n_embd": n_embd, "n_head": n_embd // 64}
    return hparams, Model(init_params(hparams, np.random.default_rng(seed)), hparams["n_head"])


def learner(draft, steps, rate, loss, lessons):
    """-> a function without arguments that makes the next step and returns the parameters after it."""
    optimizer, train_step = make_train_step(loss, steps, rate)
    params = jax.tree.map(jnp.array, draft.params)
    state = (params, optimizer.init(params))
    step = 0

    def learn():
        nonlocal state, step
        lesson = lessons[step % len(lessons)]
        state, value = train_step(state, lesson._replace(q=jnp.asarray(lesson.q, jnp.float32)))
        step += 1
        value.block_until_ready()
        return state[0]

    return learn


def row_seconds(model):
    """Seconds for one row after 64 tokens."""
    run = model.forward

    def forward():
        run.length = 64
        run(np.zeros(1, int), 1)

    return forward


def main(argv=None, shapes=SHAPES):
    parser = Parser(__doc__)
    parser.add_argument("--target_model_size", default="tiny-target")
    parser.add_argument("--models_dir", default=str(MODELS))
    parser.add_argument("--seconds", type=count, default=60, help="for each draft to learn")
    parser.add_argument("--lessons", type=count, default=256, help="batches of 8 rows of 64 tokens, used in turn")
    parser.add_json()
    o = parser.parse_args(argv)
    keep_compiled()
    encoder, hparams = load_encoder_and_hparams(o.target_model_size, o.models_dir)
    ids = [encoder.encode(prompt) for prompt in read_prompts(PROMPTS["prose"], 20)]
    target = load_on_device(o.target_model_size, o.models_dir, hparams)
    recipe = Recipe(divergence="kl")
    gpt2 = load_gpt2()
    [lessons] = held_out_lessons(recipe, from_prompts(ids[:12]), target, gpt2, o.lessons, seed=0).values()
    # The target's distributions take most of the memory, so they are kept in half precision.
    lessons = [lesson._replace(q=np.asarray(lesson.q, np.float16)) for lesson in lessons]
    tests = held_out_lessons(recipe, from_prompts(ids[12:]), target, gpt2, 16)
    drafts = {n_layer: new_draft(n_layer, n_embd, hparams) for n_layer, n_embd in shapes.items()}
    losses = {n_layer: make_loss(gpt2, draft.n_head, recipe.divergence) for n_layer, (_, draft) in drafts.items()}
    tries = {n: learner(drafts[n][1], 100, 1e-3, losses[n], lessons) for n in drafts}
    step_seconds = take_turns(tries, 15)
    rows = []
    for n_layer, (of, draft) in drafts.items():
        steps = max(1, round(o.seconds / step_seconds[n_layer]))
        learn = learner(draft, steps, RATE / of["n_embd"], losses[n_layer], lessons)
        print(f"{n_layer} layers, {of['n_embd']} wide: {steps} steps", flush=True)
        for _ in range(steps - 1):
            learn()
        params = as_float16(learn())
        [alpha] = mean_acceptance(gpt2, Model(params, draft.n_head), tests).values()
        models = {"draft": numpy_model(params, of, 1.0), "target": numpy_model(target.params, hparams, 1.0)}
        t = take_turns({name: row_seconds(model) for name, model in models.items()}, 200)
        row = {"layers": n_layer, "width": of["n_embd"], "steps": steps, "step_ms": 1e3 * step_seconds[n_layer]}
        row |= {"parameters": 12 * n_layer * of["n_embd"] ** 2, "alpha": alpha, "c": t["draft"] / t["target"]}
        rows.append(row)
    write_results(o.json, o, rows=rows)
    print(table(rows, COLUMNS))


if __name__ == "__main__":
    guarded(main)
