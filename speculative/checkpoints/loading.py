"""A model's complete folder -> its encoder, hparams and params.

A file that does not fit is refused in a line that names it.
"""

import filecmp
from collections.abc import Callable

from speculative.blog.encoder import Encoder, get_encoder
from speculative.checkpoints.config import absorb, load_hparams, read_config, say_what_is_not_applied
from speculative.checkpoints.disk import bad_file
from speculative.checkpoints.folder import look
from speculative.checkpoints.forms import OPENAI_VOCABULARY
from speculative.checkpoints.padded import load_padded
from speculative.checkpoints.tensors import build_params
from speculative.checkpoints.tokenizer import read_encoder


def load_encoder_and_hparams(folder: str, other: tuple[str, Encoder] | None = None) -> tuple[Encoder, dict]:
    """Load everything but the weights: enough to know whether a model fits, before gigabytes are downloaded.

    other: another folder and its encoder, which is this one's too if the files are equal. Raises UserError.
    """
    files = look(folder)
    settings = files.path(files.settings)
    hparams = load_hparams(settings)
    say_what_is_not_applied(folder)
    if files.vocabulary != OPENAI_VOCABULARY:
        return read_encoder(folder, hparams["n_vocab"]), hparams
    encoder = other[1] if other and has_equal_vocabulary(folder, other[0]) else read_openai_encoder(folder)
    if encoder.n_vocab != hparams["n_vocab"]:
        raise bad_file(settings, f"n_vocab is {hparams['n_vocab']}, but encoder.json has {encoder.n_vocab} tokens")
    return encoder, hparams


def has_equal_vocabulary(folder: str, other: str) -> bool:
    equal, *_ = filecmp.cmpfiles(folder, other, OPENAI_VOCABULARY, shallow=False)
    return equal == [*OPENAI_VOCABULARY]


def read_openai_encoder(folder: str) -> Encoder:
    try:
        return get_encoder(folder, "")
    except ValueError as error:  # "PATH: FAULT"
        raise bad_file(*str(error).split(": ", 1)) from None


def load_params(folder: str, hparams: dict, convert: Callable = lambda name, array: array) -> dict:
    """Read the weights of a complete folder, in whichever form it holds them -> what gpt2.gpt2 takes.

    convert is called for each tensor: see build_params. Raises UserError.
    """
    files = look(folder)
    index = files.read_index([files.path(name) for name in files.weights])
    if not files.padded_from:
        config = read_config(files.path(files.settings))
        return build_params(index, hparams, absorb(config, convert))
    return load_padded(index, look(files.padded_from), hparams, convert)
