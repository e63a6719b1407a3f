"""Which files make a model, where each comes from, and how each is checked when it has come."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

from checkpoints.config import load_hparams
from checkpoints.folders import is_weights, missing_files
from checkpoints.weights import open_safetensors
from plumbing import official
from plumbing.errors import UserError
from plumbing.hub import files_of, hub_name
from plumbing.official import MODEL_SIZES
from plumbing.patience import PATIENT, Limits


def download_gpt2_files(
    model_size: str, model_dir: str, source: str = "openai", names: Collection = (), limits: Limits = PATIENT
) -> None:
    """Downloads what model_dir lacks of an official model, or of one of the Hugging Face hub; after an interruption,
    the rest. names: where given, these files alone; of the hub's models, all but the weights.

    source: for an official model "openai", "huggingface", or the URL of a mirror that has OpenAI's files at
    URL/model_size. Raises UserError.
    """
    from plumbing.fetch import File, check_url, fetch_files

    hub = hub_name(model_size)
    if hub and Path(model_dir).parts[-2:] == tuple(str(hub).split("/")):
        files = files_of(hub, model_dir, check_weights)
        return fetch_files([file for file in files if not (names and is_weights(file.name))], model_dir, limits)
    if model_size.startswith((".", "/", "~")):
        raise UserError(f"{model_dir} lacks {', '.join(missing_files(model_dir))}")
    if model_size not in MODEL_SIZES:
        lacks = f"{model_dir} lacks {', '.join(missing_files(model_dir))}"
        raise UserError(f"unknown model size {model_size!r}: {lacks}; official are {', '.join(MODEL_SIZES)}")
    if source != "huggingface":
        check_url(official.OPENAI if source == "openai" else source)
    known = official.known(model_size)
    files = [
        File(name, url, check=partial(check_file, name, model_size), **known.get(name, {}))
        for name, url in official.addresses(model_size, source).items()
        if name in (names or [name])
    ]
    fetch_files(files, model_dir, limits)


def check_file(name, model_size, path):
    """Raises UserError if what was downloaded to path cannot be the file of that name."""
    check_weights(name, path)
    if name == "hparams.json" and load_hparams(path) != official.HPARAMS[model_size]:
        raise UserError(f"these are not the hparams of {model_size}")


def check_weights(name, path):
    if name.endswith(".safetensors"):
        open_safetensors(path)
