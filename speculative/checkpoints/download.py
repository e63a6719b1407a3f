"""The files that are downloaded for a model: where each comes from, and how it is checked."""

import re
from collections.abc import Collection
from functools import partial
from pathlib import Path

from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.folders import OPTIONAL, missing_files
from speculative.checkpoints.weights import INDEX, open_safetensors
from speculative.support import official
from speculative.support.errors import UserError
from speculative.support.hub import hub_name
from speculative.support.official import MODEL_SIZES, SAFETENSORS, TF_DATA, WEIGHT_BYTES

PART_OF_WEIGHTS = re.compile("model-[0-9]{5}-of-[0-9]{5}[.]safetensors")


def download_gpt2_files(model_size: str, model_dir: str, source: str = "openai", names: Collection = ()) -> None:
    """Downloads the files of an official model, or of one of the Hugging Face hub, that model_dir lacks.

    An interrupted download goes on where it was. source: for an official model "openai", "huggingface", or the URL of a
    mirror that has OpenAI's files at URL/model_size. names: if given, only these files; for a model of the hub, all but
    the weights. Raises UserError.
    """
    from speculative.support.fetch import fetch_files

    hub = hub_name(model_size)
    if hub and Path(model_dir).parts[-2:] == tuple(str(hub).split("/")):
        files = hub_files(hub, model_dir)
        files = [file for file in files if not (names and file.name.startswith("model"))]
    else:
        files = official_files(model_size, model_dir, source)
        files = [file for file in files if file.name in (names or [file.name])]
    fetch_files(files, model_dir)


def official_files(model_size, model_dir, source):
    """The fetch.Files of one of OpenAI's models. Raises UserError if there is no model of that name."""
    from speculative.support.fetch import File
    from speculative.support.http import check_url

    if model_size not in MODEL_SIZES:
        lacks = f"{model_dir} lacks {', '.join(missing_files(model_dir))}"
        if model_size.startswith((".", "/", "~")):
            raise UserError(lacks)
        raise UserError(f"unknown model size {model_size!r}: {lacks}; official are {', '.join(MODEL_SIZES)}")
    sizes = {TF_DATA: {"size": WEIGHT_BYTES[model_size]}}
    sizes[SAFETENSORS] = {"most": 2 * WEIGHT_BYTES[model_size]}  # it may hold masks too, and wte twice
    hashes = official.hashes(model_size)
    files = []
    for name, url in official.addresses(model_size, source).items():
        known = {"sha256": hashes.get(name, ""), **sizes.get(name, {})}
        files.append(File(name, check_url(url), check=partial(check_file, name, model_size), **known))
    return files


def hub_files(hub, model_dir):
    """The fetch.Files of a model of the hub, in the order in which they are read.

    Raises UserError if the hub has no such model, or the folder holds files of another one.
    """
    from speculative.support.listing import check_same, listing

    commit, listed = listing(hub, official.endpoint())
    files = [listed[name] for name in wanted(hub, listed)]
    for file in files:
        check_same(model_dir, hub, commit, file)
    return [file._replace(check=partial(check_weights, file.name)) for file in files]


def wanted(hub, listed):
    """The names of the files that are read here, of all that the hub lists. Raises UserError."""
    vocabulary = ["tokenizer.json"] if "tokenizer.json" in listed else ["vocab.json", "merges.txt"]
    weights = INDEX if INDEX in listed and SAFETENSORS not in listed else SAFETENSORS
    lacks = [name for name in ("config.json", *vocabulary, weights) if name not in listed]
    if lacks == [weights] and "pytorch_model.bin" in listed:
        raise UserError(f"{hub} has no {weights}, and reading its pytorch_model.bin could run a program that is in it")
    if lacks:
        raise UserError(f"{hub} is no GPT-2 as it is read here: it lacks {', '.join(lacks)}")
    optional = [name for name in OPTIONAL if name in listed]
    parts = sorted(name for name in listed if weights == INDEX and PART_OF_WEIGHTS.fullmatch(name))
    return [*optional, *vocabulary, "config.json", weights, *parts]


def check_file(name, model_size, path):
    """Raises UserError if the download in path cannot be the file of that name."""
    check_weights(name, path)
    if name == "hparams.json" and load_hparams(path) != official.HPARAMS[model_size]:
        raise UserError(f"these are not the hparams of {model_size}")


def check_weights(name, path):
    if name.endswith(".safetensors"):
        open_safetensors(path)
