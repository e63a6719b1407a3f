"""Downloads and loads GPT-2: models_dir/model_size -> encoder, hparams, params.

python utils.py download 1558M [--models_dir models] [--source openai|huggingface|URL]
python utils.py check 1558M [--models_dir models]

A model is a folder of models_dir with settings, tokens and weights, as OpenAI or Hugging Face's libraries save them.
Its name may also be a path, or OWNER/NAME of the Hugging Face hub. No file is trusted: one that does not fit is refused
in a line that names it. checksums.json, where there is one, says what the files were when they came.
"""

if __name__ == "__main__":
    from plumbing import exits

    exits.begin()  # and what follows is slow

import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from checkpoints.config import absorb, load_hparams, read_config
from checkpoints.folders import config_path, is_weights, missing_files, model_folder, small_files, weight_files
from checkpoints.tensors import bad_file, build_params
from checkpoints.tokenizer import read_encoder
from checkpoints.weights import load_gpt2_params_from_safetensors, open_safetensors
from encoder import Encoder, get_encoder
from plumbing import checksums, official
from plumbing.errors import UserError, first_line
from plumbing.hub import files_of, hub_name
from plumbing.official import MODEL_SIZES, SAFETENSORS, SMALL_FILES, TF_DATA, TF_INDEX
from plumbing.patience import PATIENT, Limits


def load_encoder_hparams_and_params(
    model_size: str, models_dir: str, convert: Callable | None = None, source: str = "openai"
) -> tuple[Encoder, dict, dict]:
    """models_dir/model_size -> (encoder, hparams, params); an official model that is not there is downloaded first.

    params is the nested dict of float32 arrays that gpt2.gpt2 takes; or of what convert(name, array) returns for each,
    called with names such as "h0/attn/c_attn/w" as each is read: two whole copies never exist. Raises UserError.
    """
    encoder, hparams = load_encoder_and_hparams(model_size, models_dir, source)
    return encoder, hparams, load_params(complete_folder(model_size, models_dir, source), hparams, convert)


def load_encoder_and_hparams(model_size: str, models_dir: str, source: str = "openai") -> tuple[Encoder, dict]:
    """The same without the weights: enough to know whether a model fits, before gigabytes are downloaded and read."""
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
    """The parameters of a model, in whichever form the folder holds them. progress(n) is called after n more bytes.

    Raises UserError.
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
    """The model's folder, after a download of what it lacks: all of it, or `names` alone. Raises UserError."""
    folder = model_folder(model_size, models_dir)
    if missing_files(folder):
        download_gpt2_files(model_size, folder, source, names)
    return folder


def load_gpt2_params_from_tf_ckpt(
    tf_ckpt_path: str, hparams: dict, convert: Callable | None = None, progress: Callable | None = None
) -> dict:
    """OpenAI's TensorFlow checkpoint -> params. TensorFlow checks the CRC32C of each tensor as it reads it."""
    tf = import_tensorflow()
    try:
        reader = tf.train.load_checkpoint(tf_ckpt_path)
        variables = reader.get_variable_to_shape_map()
    except Exception as error:  # its kind depends on where the damage is
        raise bad_file(f"{tf_ckpt_path}.index", f"damaged ({first_line(error)})") from error
    # Outside of model/ a training run keeps its own numbers, the optimizer's for example.
    prefix = "model/"
    shapes = {name.removeprefix(prefix): tuple(shape) for name, shape in variables.items() if name.startswith(prefix)}
    data = f"{tf_ckpt_path}.data-00000-of-00001"
    return build_params(data, shapes, lambda name: reader.get_tensor(f"model/{name}"), hparams, convert, progress)


def import_tensorflow():
    """tensorflow, without the log lines that its C++ side writes past sys.stderr while it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow
    except ImportError as error:
        raise UserError("OpenAI's checkpoints need tensorflow: install it, or use --source huggingface") from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    return tensorflow


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


def check_model(model_size: str, models_dir: str) -> None:
    """Reads a whole model, and prints for each file whether it is what was noted. Raises UserError if one is not."""
    folder = model_folder(model_size, models_dir)
    missing = missing_files(folder)
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}")
    names = dict.fromkeys([*small_files(folder), *weight_files(folder), SAFETENSORS, TF_INDEX, TF_DATA])
    damaged = checksums.show(folder, [*names], official.hashes(model_size))
    if damaged:
        raise bad_file(os.path.join(folder, damaged[0]), "damaged")
    _, hparams = load_encoder_and_hparams(model_size, models_dir)
    load_params(folder, hparams, lambda name, array: None)
    print(f"every tensor of {folder} has its shape, and finite numbers")


def main(argv: list[str] | None = None) -> None:
    """Runs one command. Ends with status 2 after an error, and with 130 after Ctrl-C."""
    from plumbing.arguments import Parser
    from plumbing.exits import guarded

    def run():
        parser = Parser("Downloads or checks a GPT-2: python utils.py download|check MODEL_SIZE")
        parser.add_argument("command", choices=["download", "check"])
        parser.add_argument("model_size", help=f"{', '.join(MODEL_SIZES)}, OWNER/NAME of the hub; to be checked, any")
        parser.add_argument("--models_dir", default="models", help="the folder in which each model has a folder")
        parser.add_argument("--source", default="openai", help="openai, huggingface, or a mirror's URL")
        args = parser.parse_args(argv)
        if args.command == "check":
            return check_model(args.model_size, args.models_dir)
        folder = model_folder(args.model_size, args.models_dir)
        download_gpt2_files(args.model_size, folder, args.source)
        print(f"{args.model_size} is in {folder}")

    guarded(run, "interrupted; run again to go on from here")


if __name__ == "__main__":
    main()
