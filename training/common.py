"""The parts that the commands share: flags, the models and texts that they name, a check that they fit into memory."""

from pathlib import Path

import jax.numpy as jnp

from speculative import loading
from speculative.checkpoints.folders import model_folder
from speculative.checkpoints.loading import complete_folder
from speculative.checkpoints.tensors import parameter_count
from speculative.checks import different
from speculative.engines import memory
from speculative.engines.jax.model import devices
from speculative.loading import Wanted
from speculative.support import arguments as values
from speculative.support.arguments import Parser
from speculative.support.errors import UserError
from speculative.support.texts import read_prompts
from training.divergences import DIVERGENCES
from training.files import check_new, check_trainable
from training.recipe import Model, Recipe
from training.texts import encode, from_corpus, from_prompts, read_works, split_works

count = values.argument(values.integer(1))


def add_models(parser: Parser, out: str | None = None) -> None:
    """The arguments that say which models. out: what becomes of the draft, where there is one."""
    add = parser.add_argument
    model = values.argument(values.model)
    add("--target_model_size", type=model, required=True, help="as of main.py")
    if out:
        add("--draft_model_size", type=model, help="the draft to begin with, likewise")
    add("--models_dir", type=values.argument(values.path), default="models", help="where models are")
    source = values.argument(values.source)
    add("--source", type=source, default="openai", help="where to download missing models, as of main.py")
    if out:
        name = values.argument(values.folder_name)
        add("--out", type=name, required=True, help=f"the name of a new folder in models_dir: {out}")


def add_texts(parser: Parser) -> None:
    """The arguments that say from what text it learns, and for how long."""
    add = parser.add_argument
    add("--files", nargs="+", help="text files: the corpus")
    add("--prompts", nargs="+", help="files of prompts, in place of --files")
    temperature = values.argument(values.temperature)
    add("--temperature", nargs="+", type=temperature, default=[1.0], dest="temperatures", help="one, or several")
    add("--n_rows", type=count, default=Recipe.n_rows, help="how many rows the target writes; then they come again")
    add("--steps", type=count, default=Recipe.steps, help="of training")


def add_recipe(parser: Parser, rate: float, divergence: bool = True, n_seq: bool = True) -> None:
    """The arguments that say how it learns. rate: the default, times the width."""
    add = parser.add_argument
    if divergence:
        add("--divergence", choices=DIVERGENCES, default=Recipe.divergence, help="of p and q, which is made small")
    add("--n_batch", type=count, default=Recipe.n_batch, help="rows of text in a step")
    if n_seq:
        add("--n_seq", type=values.argument(values.integer(8)), default=Recipe.n_seq, help="tokens in a row of text")
    positive = values.number("a number above 0", lambda value: value > 0)
    add("--rate", type=values.argument(positive), help=f"the highest learning rate [{rate} / n_embd]")
    add("--seed", type=values.argument(values.integer(0)), default=Recipe.seed, help="random seed")


def want(need: str, model_size: str, o) -> Wanted:
    """A model, by its small files. Raises UserError, also where training does not know its kind."""
    one = loading.want(need, model_size, "float32", o)
    check_trainable(model_size, one.hparams)
    return one


def want_both(o, rate: float, first_layers: int | None = None, flags: str = "--n_seq") -> tuple[Wanted, Wanted]:
    """-> (target, draft), by their small files. Raises UserError if one cannot draft for the other.

    rate: as add_recipe's; flags: those that say how many tokens a row has.
    """
    check_new(Path(model_folder(o.out, o.models_dir)))
    target = want("target", o.target_model_size, o)
    if first_layers:
        if first_layers > target.hparams["n_layer"]:
            raise UserError(f"--first_layers {first_layers}: {o.target_model_size} has {target.hparams['n_layer']}")
        draft = target._replace(need="draft", hparams=target.hparams | {"n_layer": first_layers})
    else:
        draft = want("draft", o.draft_model_size, o)
        # To decode, the two may end in different tokens (loading.with_ids_of); to learn, they are the same.
        of_both = [(one.encoder.id_to_bytes, one.encoder.merges) for one in (target, draft)]
        if of_both[0] != of_both[1]:
            raise different(o.target_model_size, o.draft_model_size)
    n_draft = parameter_count(draft.hparams)
    n_target = parameter_count(target.hparams)
    if n_draft > n_target:
        raise UserError(
            f"the draft {o.draft_model_size} has {n_draft:,} parameters and the target {o.target_model_size} "
            f"{n_target:,}: a draft should be the smaller of the two"
        )
    n_ctx = min(target.hparams["n_ctx"], draft.hparams["n_ctx"])
    if o.n_seq > n_ctx:
        raise UserError(f"{flags} {o.n_seq} tokens, and the context has {n_ctx}")
    o.rate = o.rate or rate / draft.hparams["n_embd"]
    return target, draft


def load_on_device(one: Wanted, o) -> Model:
    """The model's weights, as arrays of JAX. What is missing of it is downloaded first. Raises UserError."""
    devices(1)  # raises UserError where JAX finds none

    def load_fn(read, hparams, *_):
        return [Model(read(lambda name, array: jnp.asarray(array)), hparams["n_head"])]

    folder = complete_folder(one.model_size, o.models_dir, o.source)
    [model] = loading.read_models([one], folder, load_fn, {one.need: None}, quiet=False).values()
    return model


def read_beginnings(files, prompts, encoder, n_batch: int, n_seq: int):
    """-> (begin, begin_held_out), each begin(n_rows, n_seq, rng). Raises UserError if there is not enough text."""
    if prompts:
        texts = [encoder.encode(prompt) for path in prompts for prompt in read_prompts(path)]
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


def of_layers(draft: dict, o) -> int:
    """Numbers that a step keeps of the draft's layers, for the gradient."""
    return draft["n_layer"] * o.n_batch * o.n_seq * (30 * draft["n_embd"] + 6 * draft["n_head"] * o.n_seq)


def check_fits(weights: int, more: int, flags: str) -> None:
    """Raises UserError if so many bytes are not free. flags: smaller ones make what is not weights smaller."""
    needed = weights + more
    free = memory.available()
    if free is not None and needed > free:
        remedy = f"a smaller {flags}" if more > needed / 5 else "smaller models"
        raise UserError(f"this needs {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: take {remedy}")
