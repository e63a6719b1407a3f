"""A look at a model's folder: which of its files hold the settings, the tokens and the weights, and which are missing.

A folder holds them in OpenAI's form or in Hugging Face's.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from speculative.checkpoints import hugging_face, openai
from speculative.checkpoints.config import read_object
from speculative.checkpoints.disk import bad_file
from speculative.checkpoints.forms import OPENAI_VOCABULARY, SAFETENSORS, SHARDS, VOCABULARIES
from speculative.checkpoints.official import TF_ENDS, TF_PREFIX


class Checkpoint(NamedTuple):
    """The files of a model's folder that are read, or that should be there."""

    folder: str
    names: set[str]  # of all that is in the folder
    settings: str
    vocabulary: Sequence[str]
    weights: Sequence[str]
    read_index: Callable  # the paths of these -> the Index of their tensors
    padded_from: str | None  # the folder of a smaller model, which has the weights: see padded.py
    content: dict  # of the settings; {} if they are missing

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def missing(self, weights: bool = True) -> dict:
        """Return the files that the folder lacks, by what they hold. weights=False: without those of the weights."""
        needed = {"settings": [self.settings], "tokens": self.vocabulary, "weights": self.weights if weights else []}
        missing = {}
        for what, names in needed.items():
            absent = [name for name in names if not os.path.isfile(self.path(name))]
            if absent:
                missing[what] = absent
        return missing


def look(folder: str) -> Checkpoint:
    """Look once at a folder, which may not exist. Raises UserError."""
    names = names_in(folder)
    settings = "config.json" if "config.json" in names else "hparams.json"
    path = os.path.join(folder, settings)
    content = read_object(path) if settings in names and os.path.isfile(path) else {}
    small = small_folder(folder, content)
    weights = weights_of(folder)
    if small:
        weights = [os.path.join(small, name) for name in weights_of(small)]
    read_index = openai.read_index if weights[0].endswith(".index") else hugging_face.read_index
    return Checkpoint(folder, names, settings, vocabulary_of(names, settings), weights, read_index, small, content)


def names_in(folder: str) -> set[str]:
    return {*os.listdir(folder)} if os.path.isdir(folder) else set()


def small_folder(folder: str, content: dict) -> str | None:
    """Return the folder beside this one that the settings name as padded_from, or None."""
    name = content.get("padded_from")
    return os.path.join(os.path.dirname(os.path.abspath(folder)), name) if is_name(name) else None


def is_name(name: object) -> bool:
    """Return True for the name of a file or folder that leads nowhere else."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name) is not None


def vocabulary_of(names: set[str], settings: str) -> Sequence[str]:
    """Return the names of the files that hold the tokens, or should: those of the program that wrote the settings."""
    forms = [*VOCABULARIES]
    if settings == "config.json":  # Hugging Face's come before OpenAI's
        forms = [*VOCABULARIES[1:], OPENAI_VOCABULARY]
    return next((form for form in forms if names.intersection(form)), OPENAI_VOCABULARY)


def weights_of(folder: str) -> list[str]:
    """Return the names of the files that hold the weights, or should. Raises UserError."""
    names = names_in(folder)
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
