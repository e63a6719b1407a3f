"""Finds, downloads, checks and loads GPT-2 checkpoints: models_dir/model_size -> encoder, hparams, params.

python utils.py download 1558M [--models_dir models] [--source openai|huggingface|URL]

A model is a folder that holds hparams.json, encoder.json, vocab.bpe and its weights, either as OpenAI's TensorFlow
checkpoint (checkpoint, model.ckpt.index, model.ckpt.data-00000-of-00001) or as Hugging Face's model.safetensors.
The first half of this file loads what the folder holds; the second half says where to get it, and speculative/fetch.py
gets it. None of them believes anything that comes from outside before it is checked.
"""

import argparse
import itertools
import json
import math
import os
import re
import struct
import sys
from functools import partial

import numpy as np

from encoder import get_encoder
from speculative.errors import UserError, first_line
from speculative.fetch import PATIENCE, FetchError, File, check_url, fetch_files, file_hash, file_size

# The bytes of each official model's weights, 4 a parameter.
WEIGHT_BYTES = {"124M": 497_759_232, "355M": 1_419_292_672, "774M": 3_096_120_320, "1558M": 6_230_444_800}
MODEL_SIZES = tuple(WEIGHT_BYTES)

# What TensorFlow reads, named by `checkpoint`. OpenAI's model.ckpt.meta is the graph, which nothing here needs.
TF_INDEX, TF_DATA = "model.ckpt.index", "model.ckpt.data-00000-of-00001"


# ---- Loading ---------------------------------------------------------------------------------------------------------


def load_encoder_hparams_and_params(model_size, models_dir, convert=None, source="openai"):
    """models_dir/model_size -> (encoder, hparams, params); an official size that is not there is downloaded first.

    params is the nested dict that gpt2.gpt2 takes, of float32 arrays; or of what convert(name, array) makes of each,
    for names such as "wte" and "h0/attn/c_attn/w": it is called as each tensor is read, so that two whole copies never
    exist. Raises UserError.
    """
    encoder, hparams = load_encoder_and_hparams(model_size, models_dir, source)
    return encoder, hparams, load_params(model_folder(model_size, models_dir), hparams, convert)


def load_encoder_and_hparams(model_size, models_dir, source="openai"):
    """The small files of a model, by which to tell whether it fits before the large ones are read; else as above."""
    folder = model_folder(model_size, models_dir)
    if model_size in MODEL_SIZES and missing_files(folder):
        download_gpt2_files(model_size, folder, source)
    elif not os.path.isdir(folder):
        raise UserError(unknown_model(model_size, models_dir))
    if missing := missing_files(folder):
        raise UserError(f"{folder} has no {missing[0]}: put it there, or name another model")
    hparams = load_hparams(os.path.join(folder, "hparams.json"))
    try:
        encoder = get_encoder(model_size, models_dir)
    except ValueError as error:  # it names the file first
        raise UserError(f"{error}; {remedy(str(error).split(': ')[0])}") from error
    if encoder.n_vocab != hparams["n_vocab"]:
        sizes = f"encoder.json has {encoder.n_vocab} tokens, but hparams.json says n_vocab {hparams['n_vocab']}"
        raise UserError(f"{folder}: {sizes}; {remedy(os.path.join(folder, 'hparams.json'))}")
    return encoder, hparams


def load_params(folder, hparams, convert=None):
    """The parameters of a model, in whichever form the folder holds them. Raises UserError."""
    safetensors = os.path.join(folder, "model.safetensors")
    try:
        if os.path.exists(safetensors):  # the quicker of the two, should both be there
            return load_gpt2_params_from_safetensors(safetensors, hparams, convert)
        tf_ckpt_path = os.path.join(folder, read_checkpoint_name(os.path.join(folder, "checkpoint")))
        return load_gpt2_params_from_tf_ckpt(tf_ckpt_path, hparams, convert)
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def model_folder(model_size, models_dir):
    """The folder of a model, whose name is a plain one, so that no spelling of it leads out of models_dir."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", model_size):
        raise UserError(f"model size {model_size!r} is not a plain folder name such as {', '.join(MODEL_SIZES)}")
    return os.path.join(models_dir, model_size)


def unknown_model(model_size, models_dir):
    """The line for a size that is neither official nor a folder."""
    entries = os.scandir(models_dir) if os.path.isdir(models_dir) else []
    folders = ", ".join(sorted(entry.name for entry in entries if entry.is_dir())) or "nothing"
    return f"unknown model size {model_size!r}: official are {', '.join(MODEL_SIZES)}; {models_dir} holds {folders}"


def missing_files(folder):
    """The files that a model still lacks; either form of its weights will do."""

    def lacking(*names):
        return [name for name in names if not os.path.isfile(os.path.join(folder, name))]

    weights = lacking("model.safetensors")
    if weights and len(tf := lacking("checkpoint", TF_INDEX, TF_DATA)) < 3:
        weights = tf
    return lacking("hparams.json", "encoder.json", "vocab.bpe") + weights


def load_hparams(path):
    """hparams.json -> {n_vocab, n_ctx, n_embd, n_head, n_layer}, each a sane int."""
    # Far above any GPT-2, yet low enough that no wrong number can ask for absurd amounts of memory.
    limits = {"n_vocab": 2**20, "n_ctx": 2**16, "n_embd": 2**15, "n_head": 2**10, "n_layer": 2**10}
    hparams = read_json(path)
    for name, limit in limits.items():
        value = hparams.get(name)
        if type(value) is not int or not 1 <= value <= limit:
            raise UserError(f"{path}: {name} is {value!r:.50}, not a whole number from 1 to {limit}; {remedy(path)}")
    if hparams["n_embd"] % hparams["n_head"]:
        widths = f"n_embd {hparams['n_embd']} does not divide into n_head {hparams['n_head']} heads"
        raise UserError(f"{path}: {widths}; {remedy(path)}")
    return {name: hparams[name] for name in limits}


def checkpoint_shapes(hparams):
    """hparams -> {tensor name: shape} of every parameter, under OpenAI's names without their "model/"."""
    n_embd = hparams["n_embd"]
    shapes = {"wte": (hparams["n_vocab"], n_embd), "wpe": (hparams["n_ctx"], n_embd)}
    for i in range(hparams["n_layer"]):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h{i}/{norm}/g": (n_embd,), f"h{i}/{norm}/b": (n_embd,)}
        for layer, n_in, n_out in (
            ("attn/c_attn", n_embd, 3 * n_embd),
            ("attn/c_proj", n_embd, n_embd),
            ("mlp/c_fc", n_embd, 4 * n_embd),
            ("mlp/c_proj", 4 * n_embd, n_embd),
        ):
            shapes |= {f"h{i}/{layer}/w": (n_in, n_out), f"h{i}/{layer}/b": (n_out,)}
    return shapes | {"ln_f/g": (n_embd,), "ln_f/b": (n_embd,)}


def parameter_count(hparams):
    """How many numbers the parameters are; as float32, each takes 4 bytes."""
    return sum(math.prod(shape) for shape in checkpoint_shapes(hparams).values())


def build_params(path, found, read, hparams, convert=None):
    """Compares what a checkpoint holds, found: {name: shape}, with hparams; then read(name) -> array fills params."""
    shapes = checkpoint_shapes(hparams)
    for name in sorted(shapes.keys() ^ found.keys()):
        fault = "holds" if name in found else "lacks"
        raise UserError(f"{path} {fault} tensor {name!r:.100}, which contradicts hparams.json; {remedy(path)}")
    for name, shape in shapes.items():
        # OpenAI's kernels are those of a convolution of width 1: they have one more axis, in front.
        if found[name] != shape and not (name.endswith("/w") and found[name] == (1, *shape)):
            sizes = f"tensor {name} is {list(found[name])!s:.100}, but hparams.json makes it {list(shape)}"
            raise UserError(f"{path}: {sizes}; {remedy(path)}")
    params = {"blocks": [{} for _ in range(hparams["n_layer"])]}
    for name, shape in shapes.items():
        array = read(name).reshape(shape)
        # NaN and infinity both show in minimum or maximum, which need no copy of the array, as np.isfinite would.
        if not (math.isfinite(array.min()) and math.isfinite(array.max())):
            raise UserError(f"{path}: tensor {name} holds NaN or infinity; {remedy(path)}")
        put(params, name, convert(name, array) if convert else array)
    return params


def put(params, name, value):
    """Hangs a tensor into the nested dict: "h0/attn/c_attn/w" becomes params["blocks"][0]["attn"]["c_attn"]["w"]."""
    *path, last = name.split("/")
    if path and (match := re.fullmatch(r"h(\d+)", path[0])):
        params, path = params["blocks"][int(match[1])], path[1:]
    for key in path:
        params = params.setdefault(key, {})
    params[last] = value


def load_gpt2_params_from_tf_ckpt(tf_ckpt_path, hparams, convert=None):
    """OpenAI's TensorFlow checkpoint -> params. TensorFlow checks the CRC32C of each tensor as it reads it."""
    index, data = f"{tf_ckpt_path}.index", f"{tf_ckpt_path}.data-00000-of-00001"
    size, expected = file_size(data), 4 * parameter_count(hparams)
    if size < expected:
        raise UserError(
            f"{data} is cut short: {size:,} bytes, where hparams.json makes it {expected:,}; {remedy(data)}"
        )
    tf = import_tensorflow()
    try:
        reader = tf.train.load_checkpoint(tf_ckpt_path)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except Exception as error:  # its kind depends on where the damage is
        raise UserError(f"{index} is damaged ({first_line(error)}); {remedy(index)}") from error

    def read(name):
        if dtypes[f"model/{name}"] != tf.float32:
            raise UserError(f"{index}: tensor {name} is {dtypes[f'model/{name}'].name}, not float32; {remedy(index)}")
        try:
            return reader.get_tensor(f"model/{name}")
        except Exception as error:
            raise UserError(f"{data}: tensor {name} is damaged ({first_line(error)}); {remedy(data)}") from error

    # Outside of model/ a training run keeps its own numbers, the optimizer's for example.
    found = {name.removeprefix("model/"): tuple(shape) for name, shape in shapes.items() if name.startswith("model/")}
    return build_params(data, found, read, hparams, convert)


def read_checkpoint_name(path):
    """What a `checkpoint` file names: "model.ckpt" or another plain name, never a path, which could lead elsewhere."""
    with open(path, "rb") as f:
        text = f.read(10_000).decode("utf-8", "replace")
    match = re.search(r'^model_checkpoint_path: "([^"\n]*)"', text, re.MULTILINE)
    if not match or not re.fullmatch(r"\w[\w.-]*", match[1]):
        raise UserError(f"{path} does not name a checkpoint in its own folder; {remedy(path)}")
    return match[1]


def import_tensorflow():
    """tensorflow, without the page of log lines that its C++ side writes past sys.stderr when it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow
    except ImportError as error:
        remedies = "pip install tensorflow, or python utils.py download SIZE --source huggingface"
        raise UserError(f"reading a TensorFlow checkpoint needs tensorflow: {remedies}") from error
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return tensorflow


# A safetensors file is the length of its header (8 bytes), the header (JSON) and the bytes of all tensors. A bfloat16,
# which NumPy does not know, is the upper half of a float32: it is read as an integer and moved up.
SAFETENSORS_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
MAX_JSON_BYTES = 2**24


def load_gpt2_params_from_safetensors(path, hparams, convert=None):
    """Hugging Face's model.safetensors, in float32, float16 or bfloat16 -> the same params, in float32."""
    header = read_safetensors_header(path)
    theirs = {}  # {OpenAI's name: Hugging Face's}
    for name in header:
        ours = openai_name(name)
        if ours in theirs:
            raise UserError(f"{path} holds tensor {ours!r:.100} twice; {remedy(path)}")
        if ours:
            theirs[ours] = name

    def read(name):
        return read_safetensors_tensor(path, theirs[name], header[theirs[name]])

    found = {name: header[theirs[name]][1] for name in theirs}
    if "lm_head/w" in found:  # GPT-2's output matrix is wte itself, of which some writers leave a copy in
        if "wte" in found and not np.array_equal(read("lm_head/w"), read("wte")):
            raise UserError(f"{path}: lm_head.weight differs from wte.weight, so this is no GPT-2; {remedy(path)}")
        del found["lm_head/w"]
    return build_params(path, found, read, hparams, convert)


def openai_name(name):
    """ "transformer.h.0.ln_1.weight" -> "h0/ln_1/g"; None for the causal mask, which some files hold as a tensor."""
    name = name.removeprefix("transformer.")
    if re.fullmatch(r"h\.\d+\.attn\.(masked_)?bias", name):
        return None
    name = re.sub(r"^h\.(\d+)\.", r"h\1.", name)
    name = re.sub(r"^(wte|wpe)\.weight$", r"\1", name)
    name = re.sub(r"(ln_\w)\.weight$", r"\1.g", name)
    return re.sub(r"\.weight$", ".w", re.sub(r"\.bias$", ".b", name)).replace(".", "/")


def read_safetensors_header(path):
    """-> {name: (dtype, shape, first byte in the file)}.

    Every number is held against the size of the file, so that no header can make us read outside of it, take one
    tensor's bytes for another's, or ask for memory that no bytes stand for.
    """
    file_bytes = file_size(path)
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0] if file_bytes >= 8 else 0
        if not 2 <= length <= min(file_bytes - 8, MAX_JSON_BYTES):
            fault = f"a header of {length:,} bytes in a file of {file_bytes:,}"
            raise UserError(f"{path} is no safetensors file ({fault}); {remedy(path)}")
        header = parse_json(path, f.read(length))
    header.pop("__metadata__", None)
    tensors, spans = {}, []
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            sane = all(type(number) is int and 0 <= number < 2**63 for number in (*shape, begin, end)) and begin <= end
            if dtype in SAFETENSORS_DTYPES:
                sane = sane and end - begin == math.prod(shape) * SAFETENSORS_DTYPES[dtype].itemsize
        except (TypeError, KeyError, ValueError):
            sane = False
        if not sane:
            raise UserError(f"{path}: tensor {name!r:.100} has an impossible dtype, shape or place; {remedy(path)}")
        if 8 + length + end > file_bytes:
            fault = f"tensor {name!r:.100} ends at byte {8 + length + end:,} of {file_bytes:,}"
            raise UserError(f"{path} is cut short: {fault}; {remedy(path)}")
        tensors[name] = (dtype, shape, 8 + length + begin)
        spans.append((begin, end, name))
    for (_, end, first), (begin, _, second) in itertools.pairwise(sorted(spans)):
        if begin < end:
            raise UserError(f"{path}: tensors {first!r:.100} and {second!r:.100} overlap; {remedy(path)}")
    return tensors


def read_safetensors_tensor(path, name, entry):
    """One tensor of a checked header, as float32."""
    dtype, shape, begin = entry
    if dtype not in SAFETENSORS_DTYPES:
        raise UserError(
            f"{path}: tensor {name} is {dtype!r:.50}, none of {', '.join(SAFETENSORS_DTYPES)}; {remedy(path)}"
        )
    array = np.fromfile(path, SAFETENSORS_DTYPES[dtype], math.prod(shape), offset=begin)
    if dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False).reshape(shape)


def read_json(path):
    """A small JSON file -> dict."""
    try:
        with open(path, "rb") as f:
            return parse_json(path, f.read(MAX_JSON_BYTES))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def parse_json(path, text):
    """UTF-8 bytes -> dict. A name that stands twice is an error: readers differ in which one they take."""

    def unique(pairs):
        if len(names := dict(pairs)) < len(pairs):
            raise ValueError("a name stands twice")
        return names

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
        if not isinstance(value, dict):
            raise ValueError("not an object in braces")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not the JSON it should be ({first_line(error)}); {remedy(path)}") from error
    return value


def remedy(path):
    """What to do about a bad file: an official one can be downloaded again, another must come from where it did."""
    official = os.path.basename(os.path.dirname(os.path.abspath(path))) in MODEL_SIZES
    return f"delete {path} and run again" if official else f"replace {path} by a good copy"


# ---- Downloading ---------------------------------------------------------------------------------------------------

OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/models"
HUGGING_FACE = "https://huggingface.co/openai-community"
HUGGING_FACE_NAMES = {"124M": "gpt2", "355M": "gpt2-medium", "774M": "gpt2-large", "1558M": "gpt2-xl"}

# Where no hash is known, there is still the length, whatever hash the server announces, and the checks on loading.
SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "124M/model.ckpt.index": "71916f763f9746f9b2a06b12d91996cf1084ae008d0424543d39391c5f2dc687",
    "124M/model.ckpt.data-00000-of-00001": "2060c885360cc0cf41d7a6dbc4d24b5127aae20260c8b5ae521b5a6578407118",
}


def download_gpt2_files(model_size, model_dir, source="openai", patience=PATIENCE):
    """Downloads what model_dir lacks of an official model, small files first; what it has already is left alone.

    source is "openai", "huggingface", or the URL of a mirror that has OpenAI's files under URL/model_size. After
    whatever interrupts it, running it again goes on where it stopped. Raises UserError.
    """
    sizes = {TF_DATA: WEIGHT_BYTES.get(model_size, 0)}
    try:
        files = [
            File(name, url, sizes.get(name, 0), partial(find_fault, name=name, model_size=model_size))
            for name, url in source_urls(model_size, source).items()
        ]
        fetch_files(files, model_dir, patience, title=model_size)
    except FetchError as error:
        raise UserError(str(error)) from error


def source_urls(model_size, source):
    """{file name: URL}. The files that tell at once whether the source has the model come first."""
    if model_size not in MODEL_SIZES:
        raise UserError(f"unknown model size {model_size!r}: official are {', '.join(MODEL_SIZES)}")
    if source == "huggingface":
        repository = f"{HUGGING_FACE}/{HUGGING_FACE_NAMES[model_size]}/resolve/main"
        vocabulary = f"{HUGGING_FACE}/gpt2/resolve/main"  # the same for every size, and byte for byte OpenAI's
        return {
            "hparams.json": f"{repository}/config.json",  # hparams under other names: find_fault translates them
            "encoder.json": f"{vocabulary}/vocab.json",
            "vocab.bpe": f"{vocabulary}/merges.txt",
            "model.safetensors": f"{repository}/model.safetensors",
        }
    if source != "openai" and "://" not in source:
        raise UserError(f"source {source!r} is none of openai, huggingface and a URL")
    base = check_url(OPENAI if source == "openai" else source.rstrip("/"))
    names = ("hparams.json", "checkpoint", "encoder.json", "vocab.bpe", TF_INDEX, TF_DATA)
    return {name: f"{base}/{model_size}/{name}" for name in names}


def find_fault(path, name, model_size):
    """What is wrong with what has arrived in path as the file of this name, or None."""
    known = SHA256.get(name) or SHA256.get(f"{model_size}/{name}")
    if known and file_hash(path, "sha256") != known:
        return "its sha256 is not that of the official file"
    try:
        if name == "model.safetensors":
            read_safetensors_header(path)
        if name == "checkpoint":
            read_checkpoint_name(path)
        if name == "hparams.json":
            translate_config(path)
            if 4 * parameter_count(load_hparams(path)) != WEIGHT_BYTES[model_size]:
                return f"these are not the hparams of {model_size}"
    except UserError as error:
        return str(error).partition("; ")[0]  # what follows is what to do, which is nothing for the user here
    return None


def translate_config(path):
    """Turns Hugging Face's config.json, if it is one, into hparams."""
    config = read_json(path)
    if "n_positions" in config:
        names = {"n_vocab": "vocab_size", "n_ctx": "n_positions", "n_embd": "n_embd", "n_head": "n_head"}
        hparams = {ours: config.get(theirs) for ours, theirs in (names | {"n_layer": "n_layer"}).items()}
        with open(path, "w", encoding="utf-8") as f:
            json.dump(hparams, f)


# ---- The command line ------------------------------------------------------------------------------------------------


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{message}; see python utils.py --help")


def main(argv=None):
    """Runs one command; returns the exit status."""
    parser = OneLineParser(prog="python utils.py", description="Downloads an official GPT-2.", allow_abbrev=False)
    parser.add_argument("command", choices=["download"])
    parser.add_argument("model_size", choices=MODEL_SIZES)
    parser.add_argument("--models_dir", default="models", help="the folder that gets a folder for each model")
    parser.add_argument("--source", default="openai", help="openai, huggingface, or the URL of a mirror of OpenAI's")
    try:
        args = parser.parse_args(argv)
        folder = model_folder(args.model_size, args.models_dir)
        download_gpt2_files(args.model_size, folder, args.source)
        print(f"{args.model_size} is in {folder}")
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run again to go on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
