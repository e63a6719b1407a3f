"""Downloads and loads GPT-2: models_dir/model_size -> encoder, hparams, params. The blog's functions.

python utils.py download 124M [--models_dir models] [--source openai|huggingface|URL] [--refresh]

The code that reads the files is in speculative/checkpoints. main.py calls it through speculative/run/load.py.
"""

from argparse import ArgumentParser

from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.folder import find_files, load_gpt2_params_from_tf_ckpt, open_checkpoint
from speculative.checkpoints.weights import read_all
from speculative.support.errors import guarded

__all__ = ["download_gpt2_files", "load_encoder_hparams_and_params", "load_gpt2_params_from_tf_ckpt"]


def load_encoder_hparams_and_params(model_size, models_dir):
    """Loads models_dir/model_size, and downloads it before if it is not there. Raises UserError.

    hparams: {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12}, for example.
    params: the nested dict of float32 arrays that gpt2.gpt2 takes.
    """
    # the small files first: a setting that is refused needs no download of weights
    small = open_checkpoint(find_files(model_size, models_dir, weights=False))
    encoder = small.load_encoder()
    params = read_all(open_checkpoint(find_files(model_size, models_dir)).open_weights(small.hparams))
    return encoder, small.hparams, params


def main():
    parser = ArgumentParser(description="Download a GPT-2.")
    parser.add_argument("command", choices=["download"])
    parser.add_argument("model_size", help="124M, 355M, 774M, 1558M, or OWNER/NAME of the Hugging Face hub")
    parser.add_argument("--models_dir", default="models", help="the folder in which each model has a folder")
    parser.add_argument("--source", default="openai", help="openai, huggingface, or the URL of a mirror")
    refresh = "ask the hub for a newer version of a model that was downloaded before"
    parser.add_argument("--refresh", action="store_true", help=refresh)
    o = parser.parse_args()
    print(f"{o.model_size} is in {find_files(o.model_size, o.models_dir, o.source, refresh=o.refresh).folder}")


if __name__ == "__main__":
    with guarded(interrupted="interrupted; run again to go on from here"):
        main()
