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

import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

from checkpoints.tensors import parameter_count
from plumbing import arguments as values
from plumbing.arguments import Parser
from plumbing.errors import UserError
from plumbing.texts import read_prompts
from speculative.cli.checks import check_vocabularies
from speculative.engines import memory
from speculative.engines.jax.model import devices, keep_compiled
from training.divergences import DIVERGENCES
from training.files import as_float16, check_new, check_trainable, read_vocabulary, save_model
from training.recipe import N_HELD_OUT, ROUND, TEXTS, Model, Recipe, distil
from training.texts import encode, from_corpus, from_prompts, read_works, split_works
from utils import load_encoder_and_hparams, load_params, model_folder

RATE = 0.2  # divided by the draft's width: 1e-3 for the bundled pair, 2.6e-4 for 124M


def add_models(parser: Parser, out: str) -> None:
    """The arguments that say which models, and where the new one goes."""
    name = values.argument(values.folder_name)
    model = values.argument(values.model)
    parser.add_argument("--target_model_size", type=model, required=True, help="as of main.py")
    parser.add_argument("--draft_model_size", type=model, help="the draft to begin with, likewise")
    parser.add_argument("--models_dir", type=values.argument(values.path), default="models", help="where models are")
    parser.add_argument("--out", type=name, required=True, help=f"the name of a new folder in models_dir: {out}")


def add_recipe(parser: Parser, n_seq: bool = True, rate: float = RATE) -> None:
    """The arguments that say how it learns."""
    count = values.argument(values.integer(1))
    integer = values.argument(values.integer(0))
    add = parser.add_argument
    default = Recipe()
    add("--divergence", choices=DIVERGENCES, default=default.divergence, help="of p and q, which is made small")
    add("--n_batch", type=count, default=default.n_batch, help="rows of text in a step")
    if n_seq:
        add("--n_seq", type=values.argument(values.integer(8)), default=default.n_seq, help="tokens in a row of text")
    positive = values.number("a number above 0", lambda value: value > 0)
    add("--rate", type=values.argument(positive), help=f"the highest learning rate [{rate} / n_embd of the draft]")
    add("--seed", type=integer, default=default.seed, help="random seed")


def arguments_of_distil(arguments: list[str]):
    parser = Parser(__doc__, prog="python -m training distil")
    default = Recipe()
    add = parser.add_argument
    count = values.argument(values.integer(1))
    add_models(parser, "the trained draft")
    add("--first_layers", type=count, metavar="L", help="instead of a draft: begin with the target's first L layers")
    add_recipe(parser)
    add("--text", choices=TEXTS, default=default.text, help="who writes the text to learn from")
    add("--mixture", type=values.argument(values.share), default=default.mixture, help="the draft's share, if mixed")
    add("--files", nargs="+", help="text files: the corpus")
    add("--prompts", nargs="+", help="files of prompts, in place of --files")
    temperature = values.argument(values.temperature)
    add("--temperature", nargs="+", type=temperature, default=[1.0], dest="temperatures", help="one, or several")
    add("--top_k", type=count, help="for the text that is written")
    add("--top_p", type=values.argument(values.share), help="for the text that is written")
    add("--n_rows", type=count, default=default.n_rows, help="how many rows the target writes; then they come again")
    add("--steps", type=count, default=default.steps, help="of training")
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


def read_models(o, first_layers: int | None = None, flags: str = "--n_seq", rate: float = RATE):
    """-> (encoder, hparams of target and draft). Raises UserError if one cannot draft for the other."""
    check_new(Path(model_folder(o.out, o.models_dir)))
    encoder, target = load_encoder_and_hparams(o.target_model_size, o.models_dir)
    check_trainable(o.target_model_size, target)
    if first_layers:
        if first_layers > target["n_layer"]:
            raise UserError(f"--first_layers {first_layers}: {o.target_model_size} has {target['n_layer']}")
        draft = target | {"n_layer": first_layers}
    else:
        other, draft = load_encoder_and_hparams(o.draft_model_size, o.models_dir)
        check_trainable(o.draft_model_size, draft)
        check_vocabularies(o.target_model_size, encoder, o.draft_model_size, other)
    n_draft = parameter_count(draft)
    n_target = parameter_count(target)
    if n_draft > n_target:
        raise UserError(
            f"the draft {o.draft_model_size} has {n_draft:,} parameters and the target {o.target_model_size} "
            f"{n_target:,}: a draft should be the smaller of the two"
        )
    n_ctx = min(target["n_ctx"], draft["n_ctx"])
    if o.n_seq > n_ctx:
        raise UserError(f"{flags} {o.n_seq} tokens, and the context has {n_ctx}")
    o.rate = o.rate or rate / draft["n_embd"]
    return encoder, target, draft


def read_beginnings(files, prompts, encoder, n_batch: int, n_seq: int):
    """-> (begin, begin_held_out), each begin(n_rows, n_seq, rng). Raises UserError if there is not enough text."""
    if prompts:
        texts = [encoder.encode(prompt) for path in prompts for prompt in read_prompts(path, sys.maxsize)]
        held_out = texts[::5]
        kept = [ids for i, ids in enumerate(texts) if i % 5]
        if len(kept) < n_batch:
            needs = f"a batch of {n_batch} rows needs as many, beside one in five that is held out"
            raise UserError(f"--prompts has {len(texts)} prompts, and {needs}: give more, or a smaller --n_batch")
        return from_prompts(kept), from_prompts(held_out)
    works = read_works(files)
    n_paragraphs = sum(len(work.split("\n\n")) for work in works)
    parts = split_works(works, n_paragraphs=min(10, max(1, n_paragraphs // 100)))
    tokens = [encode(part, encoder) for part in parts]
    fewest = min(map(len, tokens))
    if fewest <= n_seq:
        raise UserError(f"the text is too short: a part of it has {fewest} tokens, and a row {n_seq}")
    return tuple(map(from_corpus, tokens))


def check_memory(o, target: dict, draft: dict, free: int | None = None) -> None:
    """Raises UserError if training would not fit into memory. Everything is float32."""
    n_tokens = o.n_batch * o.n_seq
    n_written = ROUND * o.n_batch * o.n_seq
    weights = parameter_count(target) + 5 * parameter_count(draft)  # with a gradient, two moments, and what replaces it
    caches = 4 * target["n_layer"] * target["n_embd"] * n_written  # keys and values, before and after a token
    rows = (10 + N_HELD_OUT * len(getattr(o, "temperatures", (1,)))) * n_tokens * target["n_vocab"]
    layers = draft["n_layer"] * n_tokens * (30 * draft["n_embd"] + 6 * draft["n_head"] * o.n_seq)
    needed = 4 * (weights + caches + rows + layers)
    free = memory.available() if free is None else free
    if free is not None and needed > free:
        remedy = "smaller models"
        if needed - 4 * weights > needed / 5:
            remedy = "a smaller --n_batch or --n_seq"
        raise UserError(f"this needs {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: take {remedy}")


def load_on_device(model_size: str, models_dir: str, hparams: dict) -> Model:
    import jax.numpy as jnp

    devices(1)  # raises UserError where JAX finds none
    params = load_params(model_folder(model_size, models_dir), hparams, lambda name, array: jnp.asarray(array))
    return Model(params, hparams["n_head"])


def main(arguments: list[str]) -> None:
    o = arguments_of_distil(arguments)
    encoder, target_hparams, draft_hparams = read_models(o, o.first_layers)
    begin, begin_held_out = read_beginnings(o.files, o.prompts, encoder, o.n_batch, o.n_seq)
    check_memory(o, target_hparams, draft_hparams)
    keep_compiled()
    load = partial(load_on_device, models_dir=o.models_dir)
    target = load(o.target_model_size, hparams=target_hparams)
    if o.first_layers:
        draft = Model(target.params | {"blocks": target.params["blocks"][: o.first_layers]}, target.n_head)
    else:
        draft = load(o.draft_model_size, hparams=draft_hparams)
    folder = Path(model_folder(o.out, o.models_dir))
    recipe = Recipe(**{field.name: getattr(o, field.name) for field in fields(Recipe)})
    about = f"{o.target_model_size} {o.draft_model_size or o.first_layers} {o.files or o.prompts}"
    checkpoint = folder.with_name(f"{o.out}.npz")
    params, history = distil(recipe, target, draft, begin, begin_held_out, checkpoint, o.every, about)
    vocabulary = read_vocabulary(model_folder(o.target_model_size, o.models_dir))
    save_model(folder, draft_hparams, as_float16(params), vocabulary)
    checkpoint.unlink(missing_ok=True)
    (_, before), *_, (_, after) = history
    for what in before:
        print(f"{what} on held-out text of the target: {before[what]:.3f} before, {after[what]:.3f} after")
    print(f"{folder} is the new draft: --draft_model_size {o.out}")
