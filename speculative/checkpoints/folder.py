"""A look at a model's folder: which of its files hold the settings, the tokens and the weights, and which are missing.

A folder holds them in OpenAI's form or in Hugging Face's.
"""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from speculative.checkpoints import openai
from speculative.checkpoints.config import read_object
from speculative.checkpoints.disk import bad_file
from speculative.checkpoints.forms import OPENAI_VOCABULARY, SAFETENSORS, SETTINGS, SHARDS, VOCABULARIES
from speculative.checkpoints.official import TF_ENDS, TF_PREFIX
from speculative.checkpoints.padded import small_folder


class Checkpoint(NamedTuple):
    """The files of a model's folder that are read, or that should be there."""

    folder: str
    names: set[str]  # of all that is in the folder
    settings: str
    vocabulary: Sequence[str]
    weights: Sequence[str]

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def missing(self, weights: bool = True) -> dict[str, list[str]]:
        """Return the files that the folder lacks, by what they hold. weights=False: without those of the weights."""
        missing = {"settings": self.absent([self.settings]), "tokens": self.absent(self.vocabulary)}
        if weights:
            missing["weights"] = self.absent(self.weights)
        return {what: names for what, names in missing.items() if names}

    def absent(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not os.path.isfile(self.path(name))]


def look(folder: str) -> Checkpoint:
    """Look once at a folder, which may not exist."""
    names = names_in(folder)
    settings = next((name for name in SETTINGS if name in names), SETTINGS[-1])
    weights = weights_of(folder, names)
    small = padded_from(os.path.join(folder, settings))
    if small:
        weights = [os.path.join(small, name) for name in weights_of(small, names_in(small))]
    return Checkpoint(folder, names, settings, vocabulary_of(names, settings), weights)


def names_in(folder: str) -> set[str]:
    return {*os.listdir(folder)} if os.path.isdir(folder) else set()


def is_padded(folder: str) -> bool:
    """Return True for a model whose weights are computed as they are read, from those of a smaller one."""
    files = look(folder)
    return padded_from(files.path(files.settings)) is not None


def padded_from(settings: str) -> str | None:
    """Return the folder of the model that has the weights, if the settings say that it is another one. Raises
    UserError."""
    return small_folder(os.path.dirname(settings), read_object(settings)) if os.path.isfile(settings) else None


def vocabulary_of(names: set[str], settings: str) -> Sequence[str]:
    """Return the names of the files that hold the tokens, or should: those of the program that wrote the settings."""
    forms = [*VOCABULARIES]
    if settings == "config.json":  # Hugging Face's come before OpenAI's
        forms = [*VOCABULARIES[1:], OPENAI_VOCABULARY]
    return next((form for form in forms if names.intersection(form)), OPENAI_VOCABULARY)


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
    if not names or not all(map(is_shard, names)):
        raise bad_file(path, "its weight_map should name a .safetensors file of this folder for each tensor")
    return sorted(set(names))


def is_shard(name: object) -> bool:
    return isinstance(name, str) and bool(re.fullmatch(r"\w[\w.-]*\.safetensors", name))
