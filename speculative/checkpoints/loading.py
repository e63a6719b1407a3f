"""A model's folder -> its encoder, hparams and params. An official model, or one of the hub, is downloaded first.

A folder holds settings, tokens and weights, in OpenAI's form or in Hugging Face's. A file that does not fit is refused
in a line that names it.
"""

import filecmp
import os
import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np

from speculative.blog.encoder import Encoder, get_encoder
from speculative.checkpoints import hugging_face, openai
from speculative.checkpoints.advice import advice, has_own_weights
from speculative.checkpoints.config import absorb, load_hparams, read_config, read_object
from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.names import ask_hub, is_of_hub, is_path, local_folder, model_folder
from speculative.checkpoints.names import model as checked
from speculative.checkpoints.official import HUGGING_FACE, MODEL_SIZES, TF_DATA, TF_ENDS, TF_INDEX, TF_PREFIX
from speculative.checkpoints.padded import Padding, build_padded, small_folder
from speculative.checkpoints.tensors import bad_file, build_params
from speculative.checkpoints.tokenizer import read_encoder
from speculative.support.errors import UserError
from speculative.support.synonyms import MODELS, meant

# Each in the order in which they are looked for.
SETTINGS = ("config.json", "hparams.json")
VOCABULARIES = (("encoder.json", "vocab.bpe"), ("tokenizer.json",), ("vocab.json", "merges.txt"))
OPTIONAL = ("tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "generation_config.json")
SAFETENSORS = "model.safetensors"
SHARDS = "model.safetensors.index.json"  # names the files that belong together
# The files of the hub that are read here.
SMALL_NAMES = [*SETTINGS, *chain(*VOCABULARIES), *OPTIONAL]
WEIGHT_NAMES = [SAFETENSORS, SHARDS, "model-*-of-*.safetensors"]


class Checkpoint(NamedTuple):
    """The files of a model's folder that are read, or that should be there."""

    folder: str
    names: set[str]  # of all that is in the folder
    settings: str
    vocabulary: Sequence[str]
    weights: Sequence[str]

    def missing(self, weights: bool = True) -> dict[str, Sequence[str]]:
        """Return the files that the folder lacks, by what they hold. weights=False: without those of the weights."""
        found = {"settings": [self.settings], "tokens": self.vocabulary, "weights": self.weights if weights else ()}
        for what, names in found.items():
            found[what] = [name for name in names if not os.path.isfile(os.path.join(self.folder, name))]
        return {what: names for what, names in found.items() if names}


def look(folder: str) -> Checkpoint:
    """Look once at a folder, which may not exist: of the forms of each kind of file the first that it has is read."""
    names = {*os.listdir(folder)} if os.path.isdir(folder) else set()
    settings = next((name for name in SETTINGS if name in names), SETTINGS[-1])
    forms = VOCABULARIES if settings == "hparams.json" else [*VOCABULARIES[1:], VOCABULARIES[0]]  # of one program
    vocabulary = next((form for form in forms if names & {*form}), VOCABULARIES[0])
    if settings in names and (small := small_folder(folder, read_config(os.path.join(folder, settings)))):
        return Checkpoint(
            folder, names, settings, vocabulary, [os.path.join(small, name) for name in look(small).weights]
        )
    return Checkpoint(folder, names, settings, vocabulary, weights_of(folder, names))


def weights_of(folder: str, names: set[str]) -> Sequence[str]:
    """Return the names of the files that hold the weights, or should. Raises UserError."""
    if SAFETENSORS in names:
        return [SAFETENSORS]
    if SHARDS in names:
        return shards_of_index(os.path.join(folder, SHARDS))
    prefix = openai.latest_checkpoint(folder)
    in_tf = [f"{prefix or TF_PREFIX}{end}" for end in TF_ENDS]
    if prefix or names & {*in_tf}:
        return in_tf
    settings = os.path.join(folder, "hparams.json")
    small = small_folder(folder, read_object(settings)) if "hparams.json" in names else None
    return [os.path.join(small or "", SAFETENSORS)]


def shards_of_index(path: str) -> Sequence[str]:
    """Return the names of the shards in model.safetensors.index.json: others are of another save. Raises UserError."""
    shards = read_object(path).get("weight_map")
    names = shards.values() if isinstance(shards, dict) else ()
    if not names or not all(isinstance(name, str) and re.fullmatch(r"\w[\w.-]*\.safetensors", name) for name in names):
        raise bad_file(path, "its weight_map should name a .safetensors file of this folder for each tensor")
    return sorted(set(names))


def load_encoder_and_hparams(folder: str, known: tuple[str, Encoder] | None = None) -> tuple[Encoder, dict]:
    """Load everything but the weights: enough to know whether a model fits, before gigabytes are downloaded.

    known: another folder and its encoder, which is this one's too if the files are equal. Raises UserError.
    """
    files = look(folder)
    settings = os.path.join(folder, files.settings)
    hparams = load_hparams(settings)
    if files.vocabulary != VOCABULARIES[0]:
        return read_encoder(folder, hparams["n_vocab"]), hparams
    try:
        is_known = known and filecmp.cmpfiles(folder, known[0], files.vocabulary, False)[0] == [*files.vocabulary]
        encoder = known[1] if known and is_known else get_encoder(os.path.basename(folder), os.path.dirname(folder))
    except ValueError as error:  # "PATH: FAULT"
        raise bad_file(*str(error).split(": ", 1)) from None
    if encoder.n_vocab != hparams["n_vocab"]:
        raise bad_file(settings, f"n_vocab is {hparams['n_vocab']}, but encoder.json has {encoder.n_vocab} tokens")
    return encoder, hparams


def load_params(
    folder: str,
    hparams: dict,
    convert: Callable[[str, np.ndarray], Any] = lambda name, array: array,
    progress: Callable[[int], object] = lambda n_bytes: None,
) -> dict:
    """Read the weights of a complete folder, in whichever form it holds them -> what gpt2.gpt2 takes.

    convert and progress are called for each tensor: see build_params. Raises UserError.
    """
    files = look(folder)
    read_index = openai.read_index if files.weights[0].endswith(".index") else hugging_face.read_index
    index = read_index([os.path.join(folder, name) for name in files.weights])
    config = read_config(os.path.join(folder, files.settings))
    small = small_folder(folder, config)
    if not small:
        return build_params(index, hparams, absorb(config, convert), progress)
    old = load_hparams(os.path.join(small, look(small).settings))
    tensors: dict[str, np.ndarray] = {}
    build_params(index, old, tensors.setdefault, lambda n_bytes: None)
    return build_padded(Padding(old, hparams), tensors, convert, progress)


def unknown_model(name: str, models_dir: str) -> str:
    """Return what a name could have been: the official sizes, and the folders of models_dir."""
    folders = sorted({path.parent.name for path in Path(models_dir).glob("*/*.json")})
    there = f"; {models_dir} has {shorten(', '.join(folders), 200)}" if folders else ""
    hint = meant(name, [*MODEL_SIZES, *folders], MODELS)
    return f"unknown model size {name!r}: official models are {', '.join(MODEL_SIZES)}{there}{hint}"


def complete_folder(model_size: str, models_dir: str, source: str = "openai", weights: bool = True) -> str:
    """Return the model's folder, after a download of missing files. weights=False: only of the small ones.

    Nothing is downloaded if the folder holds weights of the user's. source, for an official model: "openai",
    "huggingface", or the URL of a mirror that has OpenAI's files at URL/model_size. Raises UserError.
    """
    try:
        name = checked(model_size)
    except ValueError as must_be:
        raise UserError(f"model size {model_size!r:.200} should be {must_be}") from None
    if source == "huggingface" and not os.path.isdir(local_folder(name, models_dir)):
        name = HUGGING_FACE.get(name, name)
    local = local_folder(name, models_dir)
    if os.path.isfile(local):
        raise UserError(f"{local} is a file: give the folder that holds it, with the settings and tokens beside it")
    if is_path(name) and not os.path.isdir(local):
        raise UserError(f"{local} does not exist: give the folder of a model")
    is_official, on_hub = name in MODEL_SIZES, is_of_hub(name, models_dir)
    weights = weights or not (is_official or on_hub)  # others are not downloaded: they have to be whole
    files = look(model_folder(name, models_dir))
    usual = files.weights in ([SAFETENSORS], [TF_INDEX, TF_DATA])
    if is_official and files.missing(weights) and usual and not has_own_weights(local, files.names):
        download_gpt2_files(name, local, source, weights)
        return local
    if on_hub and files.missing(weights):
        files = look(ask_hub("snapshot_download", name, allow_patterns=SMALL_NAMES + WEIGHT_NAMES * weights))
    if missing := files.missing(weights):
        names = {file.rfilename for file in ask_hub("model_info", name).siblings} if on_hub else files.names
        names = names.difference(*missing.values())  # a name that is no file
        help = advice(missing, names, name if on_hub else local, local) if names else unknown_model(name, models_dir)
        raise UserError(f"{files.folder} lacks {', '.join(chain(*missing.values()))}; {help}")
    return files.folder
