"""A model's folder -> its encoder, hparams and params. An official model, or one of the hub, is downloaded first.

A folder holds settings, tokens and weights. A file that does not fit is refused in a line that names it.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from speculative.blog.encoder import Encoder, get_encoder
from speculative.checkpoints import folders, hugging_face, openai
from speculative.checkpoints.config import absorb, load_hparams, read_config
from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.folders import is_of_hub, missing_files, small_files, weight_files
from speculative.checkpoints.official import HUGGING_FACE, MODEL_SIZES, TF_INDEX
from speculative.checkpoints.tensors import bad_file, build_params
from speculative.checkpoints.tokenizer import read_encoder
from speculative.support.errors import UserError


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

    convert(name, array) is called with names such as "h0/attn/c_attn/w" as each is read, and what it returns takes the
    array's place. progress(n_bytes) is called after each. Raises UserError.
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
    folder = folders.model_folder(model_size, models_dir)
    if source == "huggingface" and model_size in MODEL_SIZES and not os.path.isdir(folder):
        return complete_folder(HUGGING_FACE[model_size], models_dir, weights=weights)
    is_official = model_size in MODEL_SIZES
    weights = weights or not (is_official or is_of_hub(model_size))  # these cannot come later
    if missing_files(folder, weights):
        if is_official:
            download_gpt2_files(model_size, folder, source, weights)
        elif is_of_hub(model_size):
            folder = folders.download_from_hub(model_size, weights)
    if missing := missing_files(folder, weights):
        official = f"unknown model size {model_size!r}: official models are {', '.join(MODEL_SIZES)}"
        raise UserError(f"{folder} lacks {', '.join(missing)}; {official}")
    return folder
