"""A model's complete folder -> its encoder, hparams and params.

A file that does not fit is refused in a line that names it.
"""

import filecmp
from collections.abc import Callable

from speculative.blog.encoder import Encoder, get_encoder
from speculative.checkpoints import openai
from speculative.checkpoints.config import load_hparams, say_what_is_not_applied
from speculative.checkpoints.disk import bad_file
from speculative.checkpoints.folder import Checkpoint, look
from speculative.checkpoints.forms import OPENAI_VOCABULARY
from speculative.checkpoints.official import TF_ENDS
from speculative.checkpoints.tokenizer import read_encoder
from speculative.checkpoints.weights import StoredWeights, open_weights, read_all


def load_encoder_and_hparams(folder: str) -> tuple[Encoder, dict]:
    """Load everything but the weights from a folder. Raises UserError."""
    return read_encoder_and_hparams(look(folder))


def read_encoder_and_hparams(
    files: Checkpoint, other: tuple[Checkpoint, Encoder] | None = None
) -> tuple[Encoder, dict]:
    """Read the small files: enough to know whether a model fits, before gigabytes are downloaded.

    other: another model's files and its encoder, which is this one's too if the vocabularies are equal. Raises
    UserError.
    """
    settings = files.path(files.settings)
    hparams = load_hparams(settings, files.content)
    say_what_is_not_applied(files.folder)
    if files.vocabulary != OPENAI_VOCABULARY:
        return read_encoder(files.folder, hparams["n_vocab"]), hparams
    if other and has_equal_vocabulary(files.folder, other[0].folder):
        encoder = other[1]
    else:
        encoder = read_openai_encoder(files.folder)
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
    """Read the weights of a complete folder, in whichever form it holds them -> what gpt2.gpt2 takes, of
    convert(name, array) for each tensor. Raises UserError."""
    return read_all(open_weights(look(folder), hparams), convert)


def load_gpt2_params_from_tf_ckpt(tf_ckpt_path: str, hparams: dict) -> dict:
    """Read models/124M/model.ckpt, for example -> the parameters of gpt2.gpt2. Raises UserError."""
    index = openai.read_index([f"{tf_ckpt_path}{end}" for end in TF_ENDS])
    return read_all(StoredWeights(index, hparams))
