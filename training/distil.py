"""Distillation: teaches a draft model what the target would say, so that the target accepts more of its drafts.

    python -m training distil --target_model_size 1558M --draft_model_size 124M --prompts my.jsonl --out my-draft
    python -m training distil --target_model_size 1558M --first_layers 6 --files my.txt --text mixed --out my-draft
    python main.py --target_model_size 1558M --draft_model_size my-draft

Each row of text begins with a stretch of --files (UTF-8, paragraphs apart by an empty line, works by <|endoftext|>), or
with one of --prompts (.jsonl, an object with "prompt" on each line, or a prompt a line). From there the target writes
on, or the draft, or both in a mixture, or the corpus goes on as it stands. About one paragraph in fifty, or one prompt
in five, is held out. α, the chance that a draft is accepted, is measured on what the target writes from those, at the
same temperature. After an interruption the same command goes on.
"""

from dataclasses import fields
from pathlib import Path

from speculative.checkpoints.folders import model_folder
from speculative.checkpoints.tensors import parameter_count
from speculative.engines.jax.model import keep_compiled
from speculative.support import arguments as values
from speculative.support.arguments import Parser
from speculative.support.errors import UserError
from training.common import (
    add_models,
    add_recipe,
    add_texts,
    check_fits,
    count,
    load_on_device,
    of_layers,
    read_beginnings,
    want_both,
)
from training.files import as_float16, read_vocabulary, save_model
from training.recipe import N_HELD_OUT, ROUND, TEXTS, Model, Recipe, distil

RATE = 0.2  # divided by the draft's width: 1e-3 for the bundled pair, 2.6e-4 for 124M


def arguments_of_distil(arguments: list[str]):
    parser = Parser(__doc__, prog="python -m training distil")
    add = parser.add_argument
    add_models(parser, "the trained draft")
    add("--first_layers", type=count, metavar="L", help="instead of a draft: begin with the target's first L layers")
    add_recipe(parser, RATE)
    add("--text", choices=TEXTS, default=Recipe.text, help="who writes the text to learn from")
    add("--mixture", type=values.argument(values.share), default=Recipe.mixture, help="the draft's share, if mixed")
    add_texts(parser)
    add("--top_k", type=count, help="for the text that is written")
    add("--top_p", type=values.argument(values.share), help="for the text that is written")
    add("--every", type=count, help="steps from one measurement of α to the next [a tenth of all]")
    o = parser.parse_args(arguments)
    o.temperatures = tuple(o.temperatures)
    if (o.draft_model_size is None) == (o.first_layers is None):
        raise UserError("give either --draft_model_size or --first_layers: what the draft begins with")
    if (o.files is None) == (o.prompts is None):
        raise UserError("give either --files or --prompts: what rows of text begin with")
    if o.text == "corpus" and not o.files:
        raise UserError("--text corpus needs --files: prompts do not say how they go on")
    if o.divergence == "reverse_kl" and 0 in o.temperatures:
        raise UserError("--divergence reverse_kl needs temperatures above 0: at 0 it is infinite")
    return o


def check_memory(o, target: dict, draft: dict) -> None:
    """Raises UserError if training would not fit into memory. Everything is float32."""
    n_tokens = o.n_batch * o.n_seq
    n_written = ROUND * o.n_batch * o.n_seq
    weights = parameter_count(target) + 5 * parameter_count(draft)  # with a gradient, two moments, and what replaces it
    caches = 4 * target["n_layer"] * target["n_embd"] * n_written  # keys and values, before and after a token
    rows = (10 + N_HELD_OUT * len(o.temperatures)) * n_tokens * target["n_vocab"]
    check_fits(4 * weights, 4 * (caches + rows + of_layers(draft, o)), "--n_batch or --n_seq")


def main(arguments: list[str]) -> None:
    o = arguments_of_distil(arguments)
    wanted, wanted_draft = want_both(o, RATE, o.first_layers)
    begin, begin_held_out = read_beginnings(o.files, o.prompts, wanted.encoder, o.n_batch, o.n_seq)
    check_memory(o, wanted.hparams, wanted_draft.hparams)
    keep_compiled()
    target = load_on_device(wanted, o)
    if o.first_layers:
        draft = Model(target.params | {"blocks": target.params["blocks"][: o.first_layers]}, target.n_head)
    else:
        draft = load_on_device(wanted_draft, o)
    folder = Path(model_folder(o.out, o.models_dir))
    recipe = Recipe(**{field.name: getattr(o, field.name) for field in fields(Recipe)})
    about = f"{o.target_model_size} {o.draft_model_size or o.first_layers} {o.files or o.prompts}"
    checkpoint = folder.with_name(f"{o.out}.npz")
    params, history = distil(recipe, target, draft, begin, begin_held_out, checkpoint, o.every, about)
    vocabulary = read_vocabulary(model_folder(o.target_model_size, o.models_dir))
    save_model(folder, wanted_draft.hparams, as_float16(params), vocabulary)
    checkpoint.unlink(missing_ok=True)
    (_, before), *_, (_, after) = history
    for what in before:
        print(f"{what} on held-out text of the target: {before[what]:.3f} before, {after[what]:.3f} after")
    print(f"{folder} is the new draft: --draft_model_size {o.out}")
