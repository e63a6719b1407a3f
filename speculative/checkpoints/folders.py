"""The folder of a model, and its files: settings, tokens and weights, in OpenAI's form or in Hugging Face's."""

import os
import re
from collections.abc import Sequence

from speculative.checkpoints.hugging_face import INDEX, SAFETENSORS, part_names
from speculative.checkpoints.official import HUGGING_FACE, TF_DATA, TF_INDEX
from speculative.support.errors import UserError

# Each in the order in which they are looked for.
SETTINGS = (["hparams.json"], ["config.json"])
VOCABULARIES = (["encoder.json", "vocab.bpe"], ["tokenizer.json"], ["vocab.json", "merges.txt"])
OPTIONAL = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
SMALL_NAMES = [name for form in (*SETTINGS, *VOCABULARIES, OPTIONAL, [INDEX]) for name in form]

PART = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"  # of a name: without slashes, without two dots in a row
NAME = re.compile(rf"{PART}(/{PART})?(@{PART})?")
WITHOUT_OWNER = (*HUGGING_FACE.values(), "distilgpt2")  # names that the hub knows without their owner


def model_folder(model_size: str, models_dir: str) -> str:
    """Return the folder of a model, which may not be there yet. Raises UserError if model_size is not a name.

    It is a path that begins with . / or ~, or models_dir/model_size, or a folder in the cache of Hugging Face's
    library. Only a path leads out of these.
    """
    if model_size.startswith((".", "/", "~")):
        return os.path.expanduser(model_size)
    if not NAME.fullmatch(model_size):
        kinds = "124M, a folder of models_dir, a path that begins with . / or ~, or OWNER/NAME of the hub"
        raise UserError(f"model size {model_size!r:.200} should be {kinds}")
    folder = os.path.join(models_dir, model_size)
    if is_of_hub(model_size) and not os.path.isdir(folder):
        try:
            return snapshot(model_size, local_files_only=True)
        except UserError:  # it is not in the cache
            return folder
    return folder


def is_of_hub(model_size: str) -> bool:
    """Return True for OWNER/NAME, OWNER/NAME@REVISION and the names that need no owner."""
    is_path = model_size.startswith((".", "/", "~"))
    return not is_path and ("/" in model_size or model_size.partition("@")[0] in WITHOUT_OWNER)


def snapshot(model_size: str, **how) -> str:
    """Call huggingface_hub.snapshot_download, which returns a folder. Raises UserError with its message in one line.

    It takes care of HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, and begins an interrupted file again.
    """
    from huggingface_hub import snapshot_download

    name, _, revision = model_size.partition("@")
    try:
        return snapshot_download(name, revision=revision or None, **how)
    except Exception as error:  # its kinds are those of several libraries
        raise UserError(f"{model_size}: {' '.join(str(error).split()):.400}") from error


def missing_files(folder: str) -> list[str]:
    """Return the files that the folder lacks, [] if it is complete. Raises UserError."""
    names = [*small_files(folder), *weight_files(folder)]
    return [name for name in names if not os.path.isfile(os.path.join(folder, name))]


def small_files(folder: str) -> list[str]:
    """Return the names of the files that hold the settings, which come first, and the tokens."""
    optional = [name for name in OPTIONAL if os.path.isfile(os.path.join(folder, name))]
    return [*best(folder, SETTINGS), *best(folder, VOCABULARIES), *optional]


def weight_files(folder: str) -> list[str]:
    """Return the names of the files that hold the weights. The first is the one by which they are read."""
    index = os.path.join(folder, INDEX)
    parts = part_names(index) if os.path.isfile(index) else []
    return best(folder, ([SAFETENSORS], [INDEX, *parts], [TF_INDEX, TF_DATA]))


def best(folder: str, forms: Sequence[list[str]]) -> list[str]:
    """Return the form that the folder has whole, or else that of which it has most."""

    def there(names):
        n = sum(os.path.isfile(os.path.join(folder, name)) for name in names)
        return n == len(names), n

    return max(forms, key=there)
