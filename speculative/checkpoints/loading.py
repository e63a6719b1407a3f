"""A model's folder -> its encoder, hparams and params. An official model, or one of the hub, is downloaded first.

A folder holds settings, tokens and weights, in OpenAI's form or in Hugging Face's. A file that does not fit is refused
in a line that names it.
"""

import contextlib
import glob
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from speculative.blog.encoder import Encoder, get_encoder
from speculative.checkpoints import hugging_face, openai
from speculative.checkpoints.config import absorb, load_hparams, read_config
from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.official import HUGGING_FACE, MODEL_SIZES, TF_DATA, TF_INDEX
from speculative.checkpoints.tensors import bad_file, build_params
from speculative.checkpoints.tokenizer import read_encoder
from speculative.support.errors import UserError

# Each in the order in which they are looked for.
SETTINGS = (["hparams.json"], ["config.json"])
VOCABULARIES = (["encoder.json", "vocab.bpe"], ["tokenizer.json"], ["vocab.json", "merges.txt"])
OPTIONAL = ["tokenizer_config.json", "added_tokens.json"]
SAFETENSORS = "model.safetensors"
# The files of the hub that are read here.
SMALL_NAMES = [name for form in (*SETTINGS, *VOCABULARIES, OPTIONAL) for name in form]
WEIGHT_NAMES = [SAFETENSORS, "model-*-of-*.safetensors"]

WORD = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"  # of a name: without slashes, without two dots in a row
NAME = re.compile(rf"{WORD}(/{WORD})?(@{WORD})?")
WITHOUT_OWNER = (*HUGGING_FACE.values(), "distilgpt2")  # names that the hub knows without their owner


def load_encoder_and_hparams(model_size: str, models_dir: str, source: str = "openai") -> tuple[Encoder, dict]:
    """Load everything but the weights: enough to know whether a model fits, before gigabytes are downloaded.

    Raises UserError.
    """
    folder = complete_folder(model_size, models_dir, source, weights=False)
    settings, *vocabulary = small_files(folder)
    hparams = load_hparams(os.path.join(folder, settings))
    if "encoder.json" not in vocabulary:
        return read_encoder(folder, hparams["n_vocab"]), hparams
    try:
        encoder = get_encoder(os.path.basename(folder), os.path.dirname(folder))
    except ValueError as error:  # "PATH: FAULT"
        raise UserError(str(error)) from None
    if encoder.n_vocab != hparams["n_vocab"]:
        fault = f"n_vocab is {hparams['n_vocab']}, but encoder.json has {encoder.n_vocab} tokens"
        raise bad_file(os.path.join(folder, settings), fault)
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
    names = weight_files(folder)
    read_index = openai.read_index if TF_INDEX in names else hugging_face.read_index
    index = read_index([os.path.join(folder, name) for name in names])
    config = read_config(os.path.join(folder, small_files(folder)[0]))
    return build_params(index, hparams, absorb(config, convert), progress)


def complete_folder(model_size: str, models_dir: str, source: str = "openai", weights: bool = True) -> str:
    """Return the model's folder, after a download of missing files. weights=False: only of the small ones.

    source, for an official model: "openai", "huggingface", or the URL of a mirror that has OpenAI's files at
    URL/model_size. Raises UserError.
    """
    folder = model_folder(model_size, models_dir)
    if source == "huggingface" and model_size in MODEL_SIZES and not os.path.isdir(folder):
        return complete_folder(HUGGING_FACE[model_size], models_dir, weights=weights)
    is_official = model_size in MODEL_SIZES
    weights = weights or not (is_official or is_of_hub(model_size))  # others are not downloaded: they have to be whole
    if missing_files(folder, weights):
        if is_official:
            download_gpt2_files(model_size, folder, source, weights)
        elif is_of_hub(model_size):
            folder = snapshot(model_size, allow_patterns=SMALL_NAMES + WEIGHT_NAMES * weights)
    if missing := missing_files(folder, weights):
        official = f"unknown model size {model_size!r}: official models are {', '.join(MODEL_SIZES)}"
        raise UserError(f"{folder} lacks {', '.join(missing)}; {official}")
    return folder


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
        with contextlib.suppress(UserError):  # it is not in the cache
            return snapshot(model_size, local_files_only=True)
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


def missing_files(folder: str, weights: bool = True) -> list[str]:
    """Return the files that the folder lacks, [] if it is complete. weights=False: of the small ones."""
    names = small_files(folder) + (weight_files(folder) if weights else [])
    return [name for name in names if not os.path.isfile(os.path.join(folder, name))]


def small_files(folder: str) -> list[str]:
    """Return the names of the files that hold the settings, which come first, and the tokens."""
    return present(folder, SETTINGS) + present(folder, VOCABULARIES)


def weight_files(folder: str) -> list[str]:
    """Return the names of the files that hold the weights. Each part says in its name how many parts there are."""
    parts = glob.glob("model-*-of-[0-9][0-9][0-9][0-9][0-9].safetensors", root_dir=folder)
    n = max((int(part[-17:-12]) for part in parts), default=1)
    parts = [f"model-{i:05}-of-{n:05}.safetensors" for i in range(1, n + 1)]
    return present(folder, ([SAFETENSORS], parts, [TF_INDEX, TF_DATA]))


def present(folder: str, forms: Sequence[list[str]]) -> list[str]:
    """Return the first form of which the folder has a file, or the first of all."""
    return next((form for form in forms if any(os.path.isfile(os.path.join(folder, name)) for name in form)), forms[0])
