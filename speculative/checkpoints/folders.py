"""The folder of a model, and its files: settings, tokens and weights, in OpenAI's form or in Hugging Face's."""

import glob
import os
import re
from collections.abc import Sequence

from speculative.checkpoints.official import HUGGING_FACE, TF_DATA, TF_INDEX
from speculative.support.errors import UserError

# Each in the order in which they are looked for.
SETTINGS = (["hparams.json"], ["config.json"])
VOCABULARIES = (["encoder.json", "vocab.bpe"], ["tokenizer.json"], ["vocab.json", "merges.txt"])
OPTIONAL = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
SAFETENSORS = "model.safetensors"
# The files of the hub that are read here.
SMALL_NAMES = [name for form in (*SETTINGS, *VOCABULARIES, OPTIONAL) for name in form]
WEIGHT_NAMES = [SAFETENSORS, "model-*-of-*.safetensors"]

WORD = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"  # of a name: without slashes, without two dots in a row
NAME = re.compile(rf"{WORD}(/{WORD})?(@{WORD})?")
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


def download_from_hub(model_size: str, weights: bool) -> str:
    """Download the files that are read here to the cache of Hugging Face's library -> the folder. Raises UserError."""
    return snapshot(model_size, allow_patterns=SMALL_NAMES + (WEIGHT_NAMES if weights else []))


def missing_files(folder: str, weights: bool = True) -> list[str]:
    """Return the files that the folder lacks, [] if it is complete. weights=False: of the small ones."""
    names = small_files(folder) + (weight_files(folder) if weights else [])
    return [name for name in names if not os.path.isfile(os.path.join(folder, name))]


def small_files(folder: str) -> list[str]:
    """Return the names of the files that hold the settings, which come first, and the tokens."""
    return best(folder, SETTINGS) + best(folder, VOCABULARIES)


def weight_files(folder: str) -> list[str]:
    """Return the names of the files that hold the weights. Each part says in its name how many parts there are."""
    parts = glob.glob("model-*-of-[0-9][0-9][0-9][0-9][0-9].safetensors", root_dir=folder)
    n = max((int(part[-17:-12]) for part in parts), default=1)
    parts = [f"model-{i:05}-of-{n:05}.safetensors" for i in range(1, n + 1)]
    return best(folder, ([SAFETENSORS], parts, [TF_INDEX, TF_DATA]))


def best(folder: str, forms: Sequence[list[str]]) -> list[str]:
    """Return the form that the folder has whole, or else that of which it has most."""

    def there(names):
        n = sum(os.path.isfile(os.path.join(folder, name)) for name in names)
        return n == len(names), n

    return max(forms, key=there)
