"""Models in and out: the folders that main.py reads."""

import json
import os
from pathlib import Path
from shlex import quote

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save
from speculative.blog.utils import load_encoder_hparams_and_params

from speculative.checkpoints.folder import model_folder
from speculative.checkpoints.names import checked_model_name, local_folder
from speculative.support.errors import UserError
from speculative.support.files import check_writable, existing_part, replacing
from training.loop import say
from training.network import Model

EVERY_BYTE = "".join(map(chr, range(32, 2048)))  # a text by which two vocabularies are compared
VOCABULARY = ["encoder.json", "vocab.bpe", "vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"]
VOCABULARY += ["special_tokens_map.json", "added_tokens.json"]


def load(o, model_size: str, n_seq: int) -> tuple:
    """-> (encoder, Model). Raises UserError if network.py cannot train the model on rows of n_seq tokens."""
    encoder, hparams, params = load_encoder_hparams_and_params(model_size, str(o.models_dir))
    if "activation_function" in hparams:
        raise UserError(f"{model_size} has {hparams['activation_function']}: only gelu_new can be trained")
    if n_seq > hparams["n_ctx"]:
        raise UserError(f"rows of {n_seq} tokens do not fit into the context of {model_size}, {hparams['n_ctx']}")
    return encoder, Model(jax.tree.map(jnp.asarray, params), hparams)


def load_both(o, n_seq: int) -> tuple:
    """-> (encoder, target, draft). Raises UserError if the draft cannot learn from the target."""
    check_new(folder_of(o))
    if o.divergence == "reverse_kl" and 0 in o.temperature:
        raise UserError("--divergence reverse_kl needs temperatures above 0: at 0 it is infinite")
    encoder, target = load(o, o.target_model_size, n_seq)
    if not o.draft_model_size:
        blocks = target.params["blocks"][: o.first_layers]
        return encoder, target, Model(target.params | {"blocks": blocks}, target.hparams | {"n_layer": len(blocks)})
    draft_encoder, draft = load(o, o.draft_model_size, n_seq)
    if draft_encoder.n_vocab != encoder.n_vocab or draft_encoder.encode(EVERY_BYTE) != encoder.encode(EVERY_BYTE):
        raise UserError(f"{o.draft_model_size} and {o.target_model_size} have different vocabularies")
    return encoder, target, draft


def check_new(path: Path) -> None:
    """Raise UserError if a new folder cannot be made there: before the work, which may take an hour."""
    if path.exists():
        raise UserError(f"{path} already exists: delete it, or choose another name")
    outer = existing_part(path)
    if not os.path.isdir(outer):
        raise UserError(f"{path} cannot be made: {outer} is a file")
    check_writable(os.path.join(outer, path.name))


def hugging_face_name(path) -> str:
    """The name of a tensor in model.safetensors: h.0.ln_1.weight is params["blocks"][0]["ln_1"]["g"]."""
    *names, last = jax.tree_util.keystr(path, simple=True, separator=".").replace("blocks", "h").split(".")
    return ".".join([*names, *{"g": ["weight"], "w": ["weight"], "b": ["bias"]}.get(last, [last, "weight"])])


def as_stored(params: dict) -> dict:
    """Return the parameters as a model that is saved has them: in float32, rounded to float16."""
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float16).astype(jnp.float32), params)


def float16(tensors: dict) -> dict:
    return {name: np.ascontiguousarray(a, np.float16) for name, a in tensors.items()}


def convert_all(params, convert, name: str = ""):
    """Return the nested dict of convert(name, tensor). The names are made of the keys: wte, attn/c_proj/w."""
    if isinstance(params, dict):
        return {key: convert_all(value, convert, f"{name}/{key}" if name else key) for key, value in params.items()}
    if isinstance(params, list):
        return [convert_all(block, convert) for block in params]
    return convert(name, params)


def folder_of(o) -> Path:
    """Return the folder of the new draft: --out in models_dir, or --out itself if it is a path. Raises UserError."""
    try:
        name = checked_model_name(o.out)
    except ValueError as must_be:
        raise UserError(f"--out {o.out!r:.200} should be {must_be}") from None
    return Path(local_folder(name, str(o.models_dir)))


def checkpoint_of(o) -> Path:
    folder = folder_of(o)
    return folder.with_name(f"{folder.name}.npz")


def save_draft(o, draft: Model) -> None:
    """Write the draft that has learned, with its target's vocabulary, and delete its checkpoint."""
    folder = Path(model_folder(o.target_model_size, str(o.models_dir)))
    vocabulary = {name: (folder / name).read_bytes() for name in VOCABULARY if (folder / name).exists()}
    save_model(folder_of(o), draft, vocabulary)
    checkpoint_of(o).unlink(missing_ok=True)
    say(f"the new draft is --draft_model_size {quote(str(o.out))} --models_dir {quote(str(o.models_dir))}")


def save_model(folder: Path, model: Model, vocabulary: dict[str, bytes]) -> None:
    """Write a whole folder or nothing. Weights are stored in float16."""
    tensors = {hugging_face_name(path): a for path, a in jax.tree_util.tree_leaves_with_path(model.params)}
    files = {"hparams.json": json.dumps(model.hparams).encode(), "model.safetensors": save(float16(tensors))}
    with replacing(folder) as part:
        Path(part).mkdir()
        for name, content in (files | vocabulary).items():
            Path(part, name).write_bytes(content)
