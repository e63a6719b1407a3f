"""From the name of a model to its checkpoint: which of a folder's files hold the settings, the tokens and the weights.

find_files        the name -> a complete folder, looked at once; official models and the hub's are downloaded first
open_checkpoint   its files -> their settings, and from these the tokens and the weights
look              the folder -> the files of it that are read, in OpenAI's form or in Hugging Face's
"""

import filecmp
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from speculative.blog.encoder import Encoder, get_encoder
from speculative.checkpoints import hub, hugging_face, openai
from speculative.checkpoints.advice import broken_link, has_own_weights, instead_of_file, lacking
from speculative.checkpoints.config import (
    read_config,
    read_object,
    say_what_is_not_applied,
    settings_in_weights,
    sizes_of,
)
from speculative.checkpoints.disk import bad_file
from speculative.checkpoints.download import announce_all, download_gpt2_files
from speculative.checkpoints.names import (
    HUGGING_FACE,
    MODEL_SIZES,
    OPENAI_VOCABULARY,
    SAFETENSORS,
    SHARDS,
    TF_ENDS,
    TF_PREFIX,
    USUAL_WEIGHTS,
    VOCABULARIES,
    checked_model_name,
    is_of_hub,
    is_path,
    local_folder,
)
from speculative.checkpoints.padded import PaddedWeights, Padding, cannot_be_padded
from speculative.checkpoints.tokenizer import read_encoder
from speculative.checkpoints.weights import Weights, read_all
from speculative.support.errors import UserError

# ---- The name of a model, and its folder -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model's folder that are read, or that should be there."""

    folder: str
    names: set[str]  # the names of all files in the folder
    settings_file: str  # config.json, or hparams.json
    raw_settings: dict  # its content; {} if it is not there
    vocabulary_files: Sequence[str]
    weights: Sequence[str]  # the names of their files; of a padded model, paths in the smaller model's folder
    small: "ModelFiles | None"  # a smaller model, which has the weights: see padded.py

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @property
    def has_checksums(self) -> bool:
        """Whether the weights are in OpenAI's files, which have checksums."""
        return self.weights[0].endswith(".index")

    def missing(self, weights: bool = True) -> dict[str, list[str]]:
        """Return the files that the folder lacks, by their contents. weights=False: without those of the weights."""
        needed = {
            "settings": [self.settings_file],
            "tokens": self.vocabulary_files,
            "weights": self.weights if weights else [],
        }
        missing = {}
        for what, names in needed.items():
            absent = [name for name in names if not os.path.isfile(self.path(name))]
            if absent:
                missing[what] = absent
        return missing


def find_files(
    model_size: str, models_dir: str, source: str = "openai", weights: bool = True, refresh: bool = False
) -> ModelFiles:
    """Return the model's files, all of them, after a download of missing ones. weights=False: only of the small ones.

    Nothing is downloaded if the folder holds weights of the user's. source, for an official model: "openai",
    "huggingface", or the URL of a mirror that has OpenAI's files at URL/model_size. refresh: ask the hub for a newer
    version of the files in its cache. Raises UserError.
    """
    name = name_of(model_size, models_dir, source)
    folder = local_folder(name, models_dir)
    if os.path.isfile(folder):
        beside = look(os.path.dirname(folder))
        raise UserError(f"{folder} is a file: {instead_of_file(folder, beside.weights)}")
    if not os.path.isdir(folder):
        if is_path(name):
            raise UserError(f"{folder} does not exist: give the folder of a model{broken_link(folder)}")
        if is_of_hub(name, models_dir):
            return files_of_hub(name, models_dir, weights, refresh)
    files = look(folder)
    missing = files.missing(weights or name not in MODEL_SIZES)  # another model is not downloaded: it has to be whole
    if not missing:
        return files
    if not can_be_downloaded(name, files):
        if files.small and [*missing] == ["weights"]:
            files = files.small
            missing = files.missing()
            name = os.path.basename(files.folder)
        raise lacking(missing, files.folder, files.names, name, models_dir)
    download_gpt2_files(name, folder, source, weights)
    return look(folder)


def name_of(model_size: str, models_dir: str, source: str) -> str:
    """Return the name that was typed, or the hub's name of an official model. Raises UserError."""
    try:
        name = checked_model_name(model_size)
    except ValueError as must_be:
        raise UserError(f"model size {model_size!r:.200} should be {must_be}") from None
    if source == "huggingface" and name in HUGGING_FACE:
        files = look(local_folder(name, models_dir))
        if files.missing() and can_be_downloaded(name, files):
            return HUGGING_FACE[name]
    return name


def files_of_hub(name: str, models_dir: str, weights: bool, refresh: bool) -> ModelFiles:
    """Return the files in the hub's cache, after a download if it lacks one. Raises UserError."""
    cached = [] if refresh else [look(folder) for folder in hub.cached_folders(name)]
    whole = [files for files in cached if not files.missing(weights)]
    files = whole[0] if whole else look(hub.download(name, weights))
    missing = files.missing(weights)
    if missing:
        raise lacking(missing, files.folder, hub.names_of_files(name), name, models_dir)
    return files


def model_folder(name: str, models_dir: str) -> str:
    """Return the folder of a model, which may not be there yet: its local folder, or one in the cache of Hugging Face's
    library. Only a path leads out of these."""
    in_cache = hub.cached_folders(name) if is_of_hub(name, models_dir) else []
    return in_cache[0] if in_cache else local_folder(name, models_dir)


def inputs_of(name: str, models_dir: str) -> list[str]:
    """Return the paths from which a model is read: its folder, and the files to which links in it lead; of a padded
    model, also those of the smaller one."""
    folders = [model_folder(name, models_dir)]
    with suppress(UserError):  # damaged settings are refused when they are read
        small = look(folders[0]).small
        folders += [small.folder] if small else []
    paths = [*folders]
    for folder in filter(os.path.isdir, folders):
        paths += [os.path.realpath(entry.path) for entry in os.scandir(folder)]
    return paths


def announce_downloads(model_sizes: Iterable[str], models_dir: str, source: str) -> None:
    """Print how much will be downloaded in all, if official models of these names are missing. Raises UserError."""
    folders = {}
    for model_size in model_sizes:
        name = name_of(model_size, models_dir, source)
        files = look(local_folder(name, models_dir))
        if "weights" in files.missing() and can_be_downloaded(name, files):
            folders[name] = files.folder
    if folders:
        announce_all(folders, source)


def can_be_downloaded(name: str, files: ModelFiles) -> bool:
    """Return True for an official model in whose folder nobody has put weights of another form."""
    is_usual = name in MODEL_SIZES and files.weights in USUAL_WEIGHTS
    return is_usual and not has_own_weights(files.folder, files.names)


# ---- A look at a folder ----------------------------------------------------------------------------------------------


def look(folder: str, may_be_padded: bool = True) -> ModelFiles:
    """Look once at a folder, which may not exist. may_be_padded: False for a model from which another one is padded.
    Raises UserError."""
    names = {*os.listdir(folder)} if os.path.isdir(folder) else set()
    settings = "config.json" if "config.json" in names else "hparams.json"
    path = os.path.join(folder, settings)
    content = read_object(path) if os.path.isfile(path) else {}
    forms = [form for form in VOCABULARIES[settings] if names.intersection(form)]
    tokens = forms[0] if forms else OPENAI_VOCABULARY
    name = content.get("padded_from", "")
    if may_be_padded and is_name(name):
        models_dir = os.path.dirname(os.path.abspath(folder))
        small = look(os.path.join(models_dir, name), may_be_padded=False)
        weights = [small.path(file) for file in small.weights]
    else:
        small = None
        weights = weights_of(folder, names)
    return ModelFiles(folder, names, settings, content, tokens, weights, small)


def is_name(name: object) -> bool:
    """Return True for the name of a file or folder that leads nowhere else."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name) is not None


def weights_of(folder: str, names: set[str]) -> list[str]:
    """Return the names of the files that hold the weights, or should. Raises UserError."""
    if SAFETENSORS in names:
        return [SAFETENSORS]
    if SHARDS in names:
        return shards_of_index(os.path.join(folder, SHARDS))
    prefix = openai.latest_checkpoint(folder)
    in_tf = [f"{prefix or TF_PREFIX}{end}" for end in TF_ENDS]
    return in_tf if prefix or names.intersection(in_tf) else [SAFETENSORS]


def shards_of_index(path: str) -> list[str]:
    """Return the names of the shards in model.safetensors.index.json: others are of another save. Raises UserError."""
    weight_map = read_object(path).get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else ()
    if not names or not all(is_name(name) and name.endswith(".safetensors") for name in names):
        raise bad_file(path, "its weight_map should name a .safetensors file of this folder for each tensor")
    return sorted(set(names))


# ---- The contents of a folder ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint(ModelFiles):
    """A folder whose settings were read, once."""

    config: dict  # all settings
    hparams: dict  # the sizes: see config.sizes_of

    def load_encoder(self, other: "tuple[Checkpoint, Encoder] | None" = None) -> Encoder:
        """Read the tokens. other: another checkpoint and its encoder, which is this one's too if their files are equal.
        Raises UserError."""
        n_vocab = self.hparams["n_vocab"]
        say_what_is_not_applied(self.folder)
        if self.vocabulary_files != OPENAI_VOCABULARY:
            return read_encoder(self.folder, n_vocab)
        encoder = other[1] if other and has_equal_vocabulary(self.folder, other[0].folder) else None
        try:
            encoder = encoder or get_encoder(self.folder, "")
        except ValueError as error:  # "PATH: FAULT"
            raise bad_file(*str(error).split(": ", 1)) from None
        if encoder.n_vocab != n_vocab:
            fault = f"n_vocab is {n_vocab}, but encoder.json has {encoder.n_vocab} tokens"
            raise bad_file(self.path(self.settings_file), fault)
        return encoder

    def open_weights(self, hparams: dict | None = None) -> Weights:
        """Return the weights by name, none of which is read yet. hparams: in place of those in the settings. Raises
        UserError if the tensors are not those of the settings."""
        hparams = hparams or self.hparams
        read_index = openai.read_index if self.has_checksums else hugging_face.read_index
        index = read_index([self.path(name) for name in self.weights])
        if self.small:
            small = open_checkpoint(self.small)
            fault = cannot_be_padded(small.hparams, hparams)
            if fault:
                raise bad_file(self.path(self.settings_file), f"it is padded from {small.folder}, so {fault}")
            return PaddedWeights(index, Padding(small.hparams, hparams), settings_in_weights(small.config))
        return Weights(index, hparams, settings_in_weights(self.config))


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Read the settings of a complete folder. Raises UserError for one that is not honoured."""
    path = files.path(files.settings_file)
    config = read_config(path, files.raw_settings or read_object(path))
    return Checkpoint(**vars(files), config=config, hparams=sizes_of(config))


def has_equal_vocabulary(folder: str, other: str) -> bool:
    equal, *_ = filecmp.cmpfiles(folder, other, OPENAI_VOCABULARY, shallow=False)
    return equal == [*OPENAI_VOCABULARY]


def load_params(folder: str, hparams: dict, convert: Callable[[str, np.ndarray], Any] | None = None) -> dict:
    """Read the weights of a complete folder -> the parameters of gpt2.gpt2. convert: see read_all. Raises UserError."""
    return read_all(open_checkpoint(look(folder)).open_weights(hparams), convert)


def load_gpt2_params_from_tf_ckpt(tf_ckpt_path: str, hparams: dict) -> dict:
    """Read models/124M/model.ckpt, for example -> the parameters of gpt2.gpt2. Raises UserError."""
    return read_all(Weights(openai.read_index([f"{tf_ckpt_path}{end}" for end in TF_ENDS]), hparams))
