"""The names of models and of their files.

OpenAI's four models; the files of any model; and the name that is typed, which means a folder of models_dir, a path, or
a model of the hub.
"""

import os
import re
import unicodedata
from itertools import chain
from pathlib import PureWindowsPath

from speculative.support.errors import WrongValue

# ---- OpenAI's models: their sizes, files and hashes, and where they are published ------------------------------------

SAME = {"n_vocab": 50257, "n_ctx": 1024}
HPARAMS = {
    "124M": SAME | {"n_embd": 768, "n_head": 12, "n_layer": 12},
    "355M": SAME | {"n_embd": 1024, "n_head": 16, "n_layer": 24},
    "774M": SAME | {"n_embd": 1280, "n_head": 20, "n_layer": 36},
    "1558M": SAME | {"n_embd": 1600, "n_head": 25, "n_layer": 48},
}
MODEL_SIZES = tuple(HPARAMS)

OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/models"
HUGGING_FACE = {"124M": "gpt2", "355M": "gpt2-medium", "774M": "gpt2-large", "1558M": "gpt2-xl"}
# The hub knows these with and without their owner: {name without: name with}.
RENAMED = {name: f"openai-community/{name}" for name in HUGGING_FACE.values()}
RENAMED["distilgpt2"] = "distilbert/distilgpt2"

SMALL_FILES = ("encoder.json", "vocab.bpe", "hparams.json")  # first those with a hash: an error page is noticed
# OpenAI also publishes `checkpoint`, which names these two, and model.ckpt.meta, the graph: neither is downloaded.
TF_PREFIX = "model.ckpt"
TF_ENDS = (".index", ".data-00000-of-00001")
TF_INDEX, TF_DATA = (f"{TF_PREFIX}{end}" for end in TF_ENDS)

# No hash of the other files was published. The first two are the same for every size.
SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "124M/hparams.json": "d9d56e4121c427164e0c55c6f03c08e1daf9002b9b672825112d19097b680318",
    "124M/model.ckpt.index": "71916f763f9746f9b2a06b12d91996cf1084ae008d0424543d39391c5f2dc687",
    "124M/model.ckpt.data-00000-of-00001": "2060c885360cc0cf41d7a6dbc4d24b5127aae20260c8b5ae521b5a6578407118",
}

# ---- The files of any model: of several forms the first that a folder has is read -----------------------------------

OPENAI_VOCABULARY = ("encoder.json", "vocab.bpe")
HUGGING_FACE_VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
# The forms of tokens beside a file of settings: first those of the program that wrote it.
VOCABULARIES = {
    "config.json": (*HUGGING_FACE_VOCABULARIES, OPENAI_VOCABULARY),
    "hparams.json": (OPENAI_VOCABULARY, *HUGGING_FACE_VOCABULARIES),
}
OPTIONAL = ("tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "generation_config.json")
SAFETENSORS = "model.safetensors"
SHARDS = "model.safetensors.index.json"  # names the files that belong together
USUAL_WEIGHTS = ([SAFETENSORS], [TF_INDEX, TF_DATA])

# The files of the hub that are read here.
SMALL_NAMES = [*VOCABULARIES, *OPTIONAL, *chain.from_iterable(VOCABULARIES["hparams.json"])]
WEIGHT_NAMES = [SAFETENSORS, SHARDS, "model-*-of-*.safetensors"]

# ---- The name that is typed ------------------------------------------------------------------------------------------

WORD = r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"  # without slashes, without two dots in a row
ON_HUB = re.compile(f"{WORD}(/{WORD})?(@{WORD}(/{WORD})*)?")  # OWNER/NAME@REVISION
MUST_BE = "124M, a folder of models_dir, a path that begins with . / or ~, or OWNER/NAME of the hub"


def checked_path(value: object) -> str:
    if not str(value):
        raise WrongValue("the name of a file or folder")
    return os.path.expanduser(str(value))


def is_path(model_size: str) -> bool:
    """Return True for a path: by its beginning, by a drive or a backslash, or since there is such a path."""
    if model_size.startswith((".", "/", "~")) or "\\" in model_size or PureWindowsPath(model_size).drive:
        return True
    return "/" in model_size and os.path.exists(model_size)


def checked_model_name(value: object) -> str:
    """A folder of models_dir, a path, or a model of the Hugging Face hub: OWNER/NAME[@REVISION]."""
    if is_path(str(value)):
        return checked_path(value)
    name = str(value).removesuffix("/")  # a shell completes a folder with /
    if not ON_HUB.fullmatch(name) and not is_folder_name(name):
        raise WrongValue(MUST_BE)
    return name


def is_folder_name(name: str) -> bool:
    """Return True for a name of any characters that can be seen, or with folders in it; never one that leads out."""
    parts = name.split("/")
    controls = [char for char in name if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    return len(parts) <= 2 and not controls and not {"", ".", ".."}.intersection(parts)


def local_folder(name: str, models_dir: str) -> str:
    """Return models_dir/name, or name itself if it is a path."""
    return name if is_path(name) else os.path.join(os.path.expanduser(models_dir), name)


def packs_folder(models_dir: str) -> str:
    """Return the folder of the packs that --pack writes."""
    return os.path.join(models_dir, "packed")


def is_of_hub(name: str, models_dir: str) -> bool:
    """Return True for OWNER/NAME, OWNER/NAME@REVISION and the names that need no owner, without a local folder."""
    repository = name.partition("@")[0]
    is_name = "/" in repository or repository in RENAMED
    if is_path(name) or not is_name or not ON_HUB.fullmatch(name):
        return False
    return not os.path.isdir(local_folder(name, models_dir))
