"""The files of a model: settings, tokens and weights, in OpenAI's form or in Hugging Face's."""

import os
import re
from collections.abc import Sequence

from speculative.checkpoints.hub import cached_folder, is_of_hub
from speculative.checkpoints.hugging_face import INDEX, SAFETENSORS, part_names
from speculative.checkpoints.official import TF_DATA, TF_INDEX
from speculative.support.errors import UserError

# Each in the order in which they are looked for.
SETTINGS = (["hparams.json"], ["config.json"])
VOCABULARIES = (["encoder.json", "vocab.bpe"], ["tokenizer.json"], ["vocab.json", "merges.txt"])
OPTIONAL = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]

PART = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"  # of a name: without slashes, without two dots in a row
NAME = re.compile(rf"{PART}(/{PART})?(@{PART})?")


def model_folder(model_size: str, models_dir: str) -> str:
    """Return the folder of a model, which may not be there yet. Raises UserError if model_size is not a name.

    It is a path that begins with . / or ~, or models_dir/model_size, or a folder in the cache of Hugging Face's
    libraries. Only a path leads out of these.
    """
    if model_size.startswith((".", "/", "~")):
        return os.path.expanduser(model_size)
    if not NAME.fullmatch(model_size):
        kinds = "124M, a folder of models_dir, a path that begins with . / or ~, or OWNER/NAME of the hub"
        raise UserError(f"model size {model_size!r:.200} should be {kinds}")
    folder = os.path.join(models_dir, model_size)
    if is_of_hub(model_size) and not os.path.isdir(folder):
        return cached_folder(model_size) or folder
    return folder


def missing_files(folder: str) -> list[str]:
    """Return the files that the folder lacks, [] if it is complete. Raises UserError."""
    names = [*small_files(folder), *weight_files(folder)]
    return [name for name in names if not os.path.isfile(os.path.join(folder, name))]


def best(folder: str, forms: Sequence[list[str]]) -> list[str]:
    """Return the form that the folder has whole, or else that of which it has most."""

    def there(names):
        n = sum(os.path.isfile(os.path.join(folder, name)) for name in names)
        return n == len(names), n

    return max(forms, key=there)


def small_files(folder: str) -> list[str]:
    """Return the names of the files that hold the settings, which come first, and the tokens."""
    optional = [name for name in OPTIONAL if os.path.isfile(os.path.join(folder, name))]
    return [*best(folder, SETTINGS), *best(folder, VOCABULARIES), *optional]


def weight_files(folder: str) -> list[str]:
    """Return the names of the files that hold the weights. The first is the one by which they are read."""
    index = os.path.join(folder, INDEX)
    parts = part_names(index) if os.path.isfile(index) else []
    return best(folder, ([SAFETENSORS], [INDEX, *parts], [TF_INDEX, TF_DATA]))
