"""A model's folder -> its encoder, hparams and params. An official model, or one of the hub, is downloaded first.

A folder holds settings, tokens and weights, as OpenAI or Hugging Face's libraries save them. No file is trusted: one
that does not fit is refused in a line that names it. checksums.json, where there is one, says how large each file was
when it came, and its sha256.
"""

import os
from collections.abc import Callable, Collection

from encoder import Encoder, get_encoder
from speculative.checkpoints.config import absorb, load_hparams, read_config
from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.folders import config_path, missing_files, model_folder, small_files, weight_files
from speculative.checkpoints.openai import choose_open_fn, load_gpt2_params_from_tf_ckpt
from speculative.checkpoints.tensors import bad_file
from speculative.checkpoints.tokenizer import read_encoder
from speculative.checkpoints.weights import load_gpt2_params_from_safetensors
from speculative.support import checksums
from speculative.support.official import MODEL_SIZES, SMALL_FILES, TF_INDEX


def load_encoder_and_hparams(model_size: str, models_dir: str, source: str = "openai") -> tuple[Encoder, dict]:
    """Loads everything but the weights. That is enough to know whether a model fits, before gigabytes are downloaded.

    Raises UserError.
    """
    folder = complete_folder(model_size, models_dir, source, SMALL_FILES)
    names = small_files(folder)
    checksums.check(folder, names, bad_file)
    hparams = load_hparams(config_path(folder))
    if "encoder.json" not in names:
        return read_encoder(folder, hparams["n_vocab"]), hparams
    try:
        encoder = get_encoder(os.path.basename(folder), os.path.dirname(folder))
    except ValueError as error:  # "PATH: FAULT"
        raise bad_file(*str(error).split(": ", 1)) from error
    if encoder.n_vocab != hparams["n_vocab"]:
        fault = f"n_vocab is {hparams['n_vocab']}, but encoder.json has {encoder.n_vocab} tokens"
        raise bad_file(os.path.join(folder, "hparams.json"), fault)
    return encoder, hparams


def load_params(
    folder: str, hparams: dict, convert: Callable | None = None, progress: Callable[[int], object] | None = None
) -> dict:
    """The nested dict of float32 arrays that gpt2.gpt2 takes, in whichever form the folder holds them.

    convert(name, array) is called with names such as "h0/attn/c_attn/w" as each is read, and what it returns takes the
    array's place: two whole copies never exist. progress(n) is called after n more bytes. Raises UserError.
    """
    names = weight_files(folder)
    checksums.check_whole(folder)
    checksums.check(folder, names, bad_file)
    convert = absorb(read_config(config_path(folder)), convert)
    with checksums.compared(folder, names, bad_file):
        if TF_INDEX not in names:
            return load_gpt2_params_from_safetensors(os.path.join(folder, names[0]), hparams, convert, progress)
        return load_gpt2_params_from_tf_ckpt(os.path.join(folder, "model.ckpt"), hparams, convert, progress)


def complete_folder(model_size: str, models_dir: str, source: str = "openai", names: Collection = ()) -> str:
    """The model's folder. Files that it lacks are downloaded: all of them, or only `names`. Raises UserError."""
    folder = model_folder(model_size, models_dir)
    if missing_files(folder):
        if model_size in MODEL_SIZES and source != "huggingface":
            choose_open_fn()  # or what is downloaded could not be read
        download_gpt2_files(model_size, folder, source, names)
    return folder
