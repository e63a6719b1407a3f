"""A model's folder -> its encoder, hparams and params. An official model, or one of the hub, is downloaded first.

A folder holds settings, tokens and weights, in OpenAI's form or in Hugging Face's. A file that does not fit is refused
in a line that names it.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from textwrap import shorten
from typing import Any

import numpy as np

from speculative.blog.encoder import Encoder, get_encoder
from speculative.checkpoints import hugging_face, openai
from speculative.checkpoints.config import absorb, load_hparams, read_config, read_object
from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.official import HUGGING_FACE, MODEL_SIZES, TF_ENDS, TF_PREFIX
from speculative.checkpoints.tensors import bad_file, build_params
from speculative.checkpoints.tokenizer import read_encoder
from speculative.options import is_path
from speculative.options import model as checked
from speculative.support.errors import UserError

# Each in the order in which they are looked for.
SETTINGS = (["config.json"], ["hparams.json"])
VOCABULARIES = (["encoder.json", "vocab.bpe"], ["tokenizer.json"], ["vocab.json", "merges.txt"])
OPTIONAL = ["tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "generation_config.json"]
SAFETENSORS = "model.safetensors"
SHARDS = "model.safetensors.index.json"  # names the files that belong together
SHARD = r"model-[0-9]{5}-of-[0-9]{5}\.safetensors"
# The files of the hub that are read here.
SMALL_NAMES = [name for form in (*SETTINGS, *VOCABULARIES, OPTIONAL) for name in form]
WEIGHT_NAMES = [SAFETENSORS, SHARDS, "model-*-of-*.safetensors"]

# Weights that are not read from a file of such a name, and what makes model.safetensors of them. {0}: the folder or the
# model of the hub; {1}: the folder. (heads.safetensors is ours, and model.ckpt.index is read.)
SAVED = "save_pretrained({1!r}, safe_serialization=True)"
RUN = "with transformers, once: AutoModelForCausalLM, and then AutoTokenizer, .from_pretrained({0!r}"
OTHER_FORMS = {
    r"^adapter_model": f"with peft, once: merge_and_unload().{SAVED}",
    r"^(gpt2_.*|model_[0-9]*|state_.*)\.bin$": "of llm.c, and cannot be read here: its export_hf.py saves what can",
    r"^(?!training_args|optimizer|scheduler|rng_state).*\.bin$": f"{RUN}).{SAVED}",
    r"\.h5$": f"{RUN}, from_tf=True).{SAVED}; version 4 can",
    rf"^(?!heads\.|{SHARD})[^/]*\.safetensors$": "if it is the whole model, rename it to model.safetensors",
    r"(?<!^model\.ckpt)\.(index|meta|data-.*)$": 'name it in a file checkpoint, as model_checkpoint_path: "model-1000"',
    r"^checkpoint-[0-9]+$": "a folder of its own, as a training run keeps them: give its path",
    r"^(zero_to_fp32\.py|global_step[0-9]+)$": "of DeepSpeed: run its zero_to_fp32.py, which joins the weights",
    r"\.(pt|pth|ckpt|gguf|onnx|ot|msgpack|npz|pkl|pb|tflite)$": "save it as transformers does, as model.safetensors",
}

# Vocabularies that are not GPT-2's.
OTHER_VOCABULARIES = {
    "vocab.txt": "WordPiece, as of BERT",
    "spiece.model": "SentencePiece, as of T5",
    "tokenizer.model": "SentencePiece, as of Llama",
    "sentencepiece.bpe.model": "SentencePiece, as of XLM-R",
}

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
    read_index = openai.read_index if names[0].endswith(".index") else hugging_face.read_index
    index = read_index([os.path.join(folder, name) for name in names])
    config = read_config(os.path.join(folder, small_files(folder)[0]))
    return build_params(index, hparams, absorb(config, convert), progress)


def complete_folder(model_size: str, models_dir: str, source: str = "openai", weights: bool = True) -> str:
    """Return the model's folder, after a download of missing files. weights=False: only of the small ones.

    Nothing is downloaded if the folder holds weights of the user's. source, for an official model: "openai",
    "huggingface", or the URL of a mirror that has OpenAI's files at URL/model_size. Raises UserError.
    """
    model_size = checked_name(model_size)
    folder = model_folder(model_size, models_dir)
    if os.path.isfile(folder):
        raise UserError(f"{folder} is a file: give the folder that holds it, with the settings and tokens beside it")
    if source == "huggingface" and model_size in MODEL_SIZES and not os.path.isdir(folder):
        return complete_folder(HUGGING_FACE[model_size], models_dir, weights=weights)
    is_official = model_size in MODEL_SIZES
    weights = weights or not (is_official or is_of_hub(model_size))  # others are not downloaded: they have to be whole
    if missing_files(folder, weights):
        names = names_in(local_folder(model_size, models_dir))
        is_mine = other_weights(names) or any(re.fullmatch(SHARD, name) for name in names)
        is_mine = is_mine or openai.latest_checkpoint(folder) not in ("", TF_PREFIX)
        if is_official and not is_mine:
            download_gpt2_files(model_size, folder, source, weights)
        elif is_of_hub(model_size) and not names:
            folder = ask_hub("snapshot_download", model_size, allow_patterns=SMALL_NAMES + WEIGHT_NAMES * weights)
    if missing := missing_files(folder, weights):
        raise UserError(f"{folder} lacks {', '.join(missing)}; {advice(model_size, models_dir, missing)}")
    return folder


def advice(model_size: str, models_dir: str, missing: Sequence[str]) -> str:
    """Return what would help if these files of a model are missing."""
    folder = local_folder(model_size, models_dir)
    names = names_in(folder)
    named = openai.latest_checkpoint(folder)
    if named and missing[-1].startswith(named):
        return "its file checkpoint names them"
    if not names and not is_of_hub(model_size):
        return f"unknown model size {model_size!r}: official models are {', '.join(MODEL_SIZES)}"
    if missing[-1] == weight_files(folder)[-1]:
        for name, how in other_weights({*(names or ask_hub("list_repo_files", model_size))} - {*missing}):
            return f"it has {name}: {how.format(folder if names else model_size, folder)}"
    if missing[0] in VOCABULARIES[0]:
        for name, kind in OTHER_VOCABULARIES.items():
            if name in names:
                return f"it has {name}: the tokens are {kind}, and only GPT-2's byte-level BPE can be read"
    if missing == [*filter(re.compile(SHARD).fullmatch, missing)]:
        return "copy them from the original model, or save it again"
    return "copy them from the original model, or Hugging Face's config.json, tokenizer.json and model.safetensors"


def names_in(folder: str) -> list[str]:
    """Return the names of a folder's files, [] if it does not exist."""
    return os.listdir(folder) if os.path.isdir(folder) else []


def checked_name(model_size: str) -> str:
    """Return a model's name without a slash at its end, or its path. Raises UserError if it is neither."""
    try:
        return checked(model_size)
    except ValueError as must_be:
        raise UserError(f"model size {model_size!r:.200} should be {must_be}") from None


def local_folder(model_size: str, models_dir: str) -> str:
    """Return models_dir/model_size, or model_size itself if it is a path. Raises UserError if it is neither."""
    name = checked_name(model_size)
    return name if is_path(name) else os.path.join(os.path.expanduser(models_dir), name)


def model_folder(model_size: str, models_dir: str) -> str:
    """Return the folder of a model, which may not be there yet: its local folder, or one in the cache of Hugging Face's
    library. Raises UserError if model_size is not a name; only a path leads out of these."""
    folder = local_folder(model_size, models_dir)
    if is_of_hub(model_size) and not os.path.isdir(folder):
        with contextlib.suppress(UserError):  # it is not in the cache
            return ask_hub("snapshot_download", model_size, local_files_only=True)
    return folder


def is_of_hub(model_size: str) -> bool:
    """Return True for OWNER/NAME, OWNER/NAME@REVISION and the names that need no owner."""
    name = model_size.partition("@")[0]
    return not is_path(model_size) and ("/" in name or name in WITHOUT_OWNER)


def ask_hub(function: str, model_size: str, **how) -> Any:
    """Call a function of huggingface_hub for a model. Raises UserError with its message in one line.

    It takes care of HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, and begins an interrupted file again.
    """
    import huggingface_hub

    name, _, revision = model_size.partition("@")
    try:
        return getattr(huggingface_hub, function)(name, revision=revision or None, **how)
    except Exception as error:  # its kinds are those of several libraries
        raise UserError(f"{model_size}: {shorten(str(error), 400, placeholder=' …')}") from error


def missing_files(folder: str, weights: bool = True) -> list[str]:
    """Return the files that the folder lacks, [] if it is complete. weights=False: of the small ones."""
    names = small_files(folder) + (weight_files(folder) if weights else [])
    return [name for name in names if not os.path.isfile(os.path.join(folder, name))]


def small_files(folder: str) -> list[str]:
    """Return the names of the files that hold the settings, which come first, and the tokens."""
    return present(folder, SETTINGS, -1) + present(folder, VOCABULARIES)


def weight_files(folder: str) -> list[str]:
    """Return the names of the files that hold the weights. Raises UserError if shards of several saves are mixed."""
    if os.path.isfile(os.path.join(folder, SAFETENSORS)):
        return [SAFETENSORS]
    if os.path.isfile(os.path.join(folder, SHARDS)):
        return shards_of_index(os.path.join(folder, SHARDS))
    named = openai.latest_checkpoint(folder)
    in_tf = [f"{named or TF_PREFIX}{end}" for end in TF_ENDS]
    return present(folder, (shards_by_name(folder) or [SAFETENSORS], in_tf), -1 if named else 0)


def shards_of_index(path: str) -> list[str]:
    """Return the names of the shards in model.safetensors.index.json: others are of another save. Raises UserError."""
    shards = read_object(path).get("weight_map")
    names = shards.values() if isinstance(shards, dict) else ()
    if not names or not all(isinstance(name, str) and re.fullmatch(r"\w[\w.-]*\.safetensors", name) for name in names):
        raise bad_file(path, "its weight_map should name a .safetensors file of this folder for each tensor")
    return sorted(set(names))


def shards_by_name(folder: str) -> list[str]:
    """Return the names of all shards of which the folder has some: each says how many there are. Raises UserError."""
    counts = sorted({name[-17:-12] for name in names_in(folder) if re.fullmatch(SHARD, name)})
    if len(counts) > 1:
        fault = (
            f"shards of {' and of '.join(str(int(n)) for n in counts)} parts, and no {SHARDS} to say which belong here"
        )
        raise UserError(f"{folder} has {fault}: delete those of the other save")
    return [f"model-{i:05}-of-{n}.safetensors" for n in counts for i in range(1, int(n) + 1)]


def other_weights(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the (name, what to do with it) of files that hold weights in another form, the likeliest first."""
    return [(name, how) for form, how in OTHER_FORMS.items() for name in sorted(names) if re.search(form, name)]


def present(folder: str, forms: Sequence[list[str]], otherwise: int = 0) -> list[str]:
    """Return the first form of which the folder has a file, or forms[otherwise]."""
    there = (form for form in forms if any(os.path.isfile(os.path.join(folder, name)) for name in form))
    return next(there, forms[otherwise])
