"""Downloads and loads GPT-2: models_dir/model_size -> encoder, hparams, params.

python utils.py download 1558M [--models_dir models] [--source openai|huggingface|URL]
python utils.py check 1558M [--models_dir models]

These are the blog's functions. How each file is downloaded, checked and read stands in checkpoints/.
"""

if __name__ == "__main__":
    from speculative.support import exits

    exits.begin()  # and what follows is slow

import os

from encoder import Encoder
from speculative.checkpoints import packs
from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.folders import missing_files, model_folder, own_folder, small_files, weight_files
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.checkpoints.openai import load_gpt2_params_from_tf_ckpt
from speculative.checkpoints.tensors import bad_file
from speculative.support import checksums, official
from speculative.support.errors import UserError
from speculative.support.official import MODEL_SIZES, SAFETENSORS, TF_DATA, TF_INDEX

__all__ = ["download_gpt2_files", "load_encoder_hparams_and_params", "load_gpt2_params_from_tf_ckpt", "main"]


def load_encoder_hparams_and_params(model_size: str, models_dir: str) -> tuple[Encoder, dict, dict]:
    """Loads models_dir/model_size; an official model that is not there is downloaded first. Raises UserError.

    hparams: {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12}, for example.
    params: the nested dict of float32 arrays that gpt2.gpt2 takes.
    """
    encoder, hparams = load_encoder_and_hparams(model_size, models_dir)
    model_dir = complete_folder(model_size, models_dir)  # the weights, once the settings are known to be honoured
    params = load_params(model_dir, hparams)
    return encoder, hparams, params


def check_model(model_size: str, models_dir: str) -> None:
    """Reads a whole model and prints whether each file agrees with its note. Raises UserError if one does not."""
    folder = model_folder(model_size, models_dir)
    missing = missing_files(folder)
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}")
    names = dict.fromkeys([*small_files(folder), *weight_files(folder), SAFETENSORS, TF_INDEX, TF_DATA])
    damaged = [os.path.join(folder, name) for name in checksums.show(folder, [*names], official.hashes(model_size))]
    damaged += packs.show(own_folder(model_size, models_dir), folder)
    if damaged:
        raise bad_file(damaged[0], "damaged")
    _, hparams = load_encoder_and_hparams(model_size, models_dir)
    load_params(folder, hparams, lambda name, array: None)
    print(f"every tensor of {folder} has its shape, and finite numbers")


def main(argv: list[str] | None = None) -> None:
    """Runs one command. Ends with status 2 after an error, and with 130 after Ctrl-C."""
    from argparse import ArgumentParser as Parser

    from speculative.support.exits import guarded

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
