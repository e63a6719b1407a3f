"""Downloads and loads GPT-2: models_dir/model_size -> encoder, hparams, params.

python utils.py download 1558M [--models_dir models] [--source openai|huggingface|URL]
python utils.py check 1558M [--models_dir models]

A model is a folder with hparams.json, encoder.json, vocab.bpe and the weights, either as OpenAI's TensorFlow checkpoint
or as Hugging Face's model.safetensors. No file is trusted: one that does not fit is refused in a line that names it.
checksums.json, where there is one, says what the files were when they came.
"""

if __name__ == "__main__":
    from plumbing import exits

    exits.begin()  # and what follows is slow

import json
import math
import os
import re
from collections.abc import Callable, Collection
from functools import partial

import numpy as np

from encoder import Encoder, get_encoder
from plumbing import checksums, official
from plumbing.errors import UserError, first_line
from plumbing.official import MODEL_SIZES, SAFETENSORS, SMALL_FILES, TF_DATA, TF_INDEX

MOST_HEADER = 2**23  # bytes of a safetensors header, which is a hundred times the official ones'


def bad_file(path, fault):
    """The UserError for a file that is not what it should be."""
    downloaded = os.path.basename(os.path.dirname(os.path.abspath(path))) in MODEL_SIZES
    remedy = f"delete {path} and run again" if downloaded else f"replace {path} by a good copy"
    return UserError(f"{path}: {fault}; {remedy}")


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
    """The same without the weights: enough to tell whether a model fits before gigabytes are downloaded and read."""
    folder = complete_folder(model_size, models_dir, source, SMALL_FILES)
    checksums.check(folder, SMALL_FILES, bad_file)
    hparams = load_hparams(os.path.join(folder, "hparams.json"))
    try:
        encoder = get_encoder(model_size, models_dir)
    except ValueError as error:  # "PATH: FAULT"
        raise bad_file(*str(error).split(": ", 1)) from error
    if encoder.n_vocab != hparams["n_vocab"]:
        fault = f"n_vocab is {hparams['n_vocab']}, but encoder.json has {encoder.n_vocab} tokens"
        raise bad_file(os.path.join(folder, "hparams.json"), fault)
    return encoder, hparams


def load_params(folder: str, hparams: dict, convert: Callable | None = None) -> dict:
    """The parameters of a model, in whichever form the folder holds them. Raises UserError."""
    of_safetensors = os.path.isfile(os.path.join(folder, SAFETENSORS))  # the quicker of the two, should both be there
    names = [SAFETENSORS] if of_safetensors else [TF_INDEX, TF_DATA]
    checksums.check_whole(folder)
    checksums.check(folder, names, bad_file)
    with checksums.compared(folder, names, bad_file):
        if of_safetensors:
            return load_gpt2_params_from_safetensors(os.path.join(folder, *names), hparams, convert)
        return load_gpt2_params_from_tf_ckpt(os.path.join(folder, "model.ckpt"), hparams, convert)


def model_folder(model_size: str, models_dir: str) -> str:
    """models_dir/model_size, if model_size is a plain name, which cannot lead out of models_dir."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", model_size):
        raise UserError(f"model size {model_size!r} is not a plain folder name such as {', '.join(MODEL_SIZES)}")
    return os.path.join(models_dir, model_size)


def complete_folder(model_size: str, models_dir: str, source: str = "openai", names: Collection = ()) -> str:
    """The model's folder, where what it lacks is downloaded; or of that only `names`. Raises UserError."""
    folder = model_folder(model_size, models_dir)
    if missing_files(folder):
        download_gpt2_files(model_size, folder, source, names)
    return folder


def missing_files(folder: str) -> list[str]:
    """What the folder lacks, for the form of the weights of which it lacks less."""
    forms = ([*SMALL_FILES, TF_INDEX, TF_DATA], [*SMALL_FILES, SAFETENSORS])
    return min(([name for name in form if not os.path.isfile(os.path.join(folder, name))] for form in forms), key=len)


def load_hparams(path: str) -> dict:
    """hparams.json, or Hugging Face's config.json -> {n_vocab, n_ctx, n_embd, n_head, n_layer}, each a sane int."""
    try:
        with open(path, encoding="utf-8") as f:
            hparams = dict(json.load(f))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise bad_file(path, f"cannot be read as JSON ({first_line(error)})") from error
    hparams = {"n_vocab": hparams.get("vocab_size"), "n_ctx": hparams.get("n_positions")} | hparams
    # Far above any GPT-2, yet low enough that no wrong number can ask for absurd amounts of memory.
    limits = {"n_vocab": 2**20, "n_ctx": 2**16, "n_embd": 2**15, "n_head": 2**10, "n_layer": 2**10}
    for name, limit in limits.items():
        value = hparams.get(name)
        if type(value) is not int or not 1 <= value <= limit:
            raise bad_file(path, f"{name} is {value!r:.50}, not a whole number from 1 to {limit}")
    if hparams["n_embd"] % hparams["n_head"]:
        raise bad_file(path, f"n_embd {hparams['n_embd']} does not divide into n_head {hparams['n_head']} heads")
    return {name: hparams[name] for name in limits}


def checkpoint_shapes(hparams: dict) -> dict[str, tuple[int, ...]]:
    """hparams -> {tensor name: shape} of every parameter, under OpenAI's names without their "model/"."""
    n = hparams["n_embd"]
    block = {"ln_1/g": (n,), "ln_1/b": (n,), "ln_2/g": (n,), "ln_2/b": (n,)}
    layers = [("attn/c_attn", n, 3 * n), ("attn/c_proj", n, n), ("mlp/c_fc", n, 4 * n), ("mlp/c_proj", 4 * n, n)]
    for layer, n_in, n_out in layers:
        block |= {f"{layer}/w": (n_in, n_out), f"{layer}/b": (n_out,)}
    blocks = {f"h{i}/{name}": shape for i in range(hparams["n_layer"]) for name, shape in block.items()}
    return {"wte": (hparams["n_vocab"], n), "wpe": (hparams["n_ctx"], n), **blocks, "ln_f/g": (n,), "ln_f/b": (n,)}


def parameter_count(hparams: dict) -> int:
    """How many numbers the parameters are; as float32, each takes 4 bytes."""
    return sum(math.prod(shape) for shape in checkpoint_shapes(hparams).values())


def build_params(path, found, read, hparams, convert=None):
    """params from the checkpoint in path. found: {name: shape}, which hparams must agree with; read: name -> array."""
    shapes = checkpoint_shapes(hparams)
    for name in sorted(shapes.keys() ^ found.keys()):
        raise bad_file(path, f"{'has' if name in found else 'lacks'} tensor {name!r:.100}, contrary to hparams.json")
    params = {}
    for name, shape in shapes.items():
        # OpenAI's kernels are those of a convolution of width 1: they have one more axis, in front.
        if found[name] not in (shape, (1, *shape)):
            raise bad_file(path, f"tensor {name} is {found[name]!s:.100}, but hparams.json makes it {shape}")
        try:
            array = read(name).reshape(shape)
        except MemoryError:
            raise
        except Exception as error:  # its kind depends on the library and on the damage
            raise bad_file(path, f"tensor {name} cannot be used ({first_line(error)})") from error
        if array.dtype != np.float32:
            raise bad_file(path, f"tensor {name} is {array.dtype}, not float32")
        # NaN and infinity both show in minimum or maximum, which need no copy of the array, as np.isfinite would.
        if not (math.isfinite(array.min()) and math.isfinite(array.max())):
            raise bad_file(path, f"tensor {name} holds NaN or infinity")
        *keys, last = name.split("/")
        node = params
        for key in keys:
            node = node.setdefault(key, {})
        node[last] = convert(name, array) if convert else array
    return params | {"blocks": [params.pop(f"h{i}") for i in range(hparams["n_layer"])]}


def load_gpt2_params_from_tf_ckpt(tf_ckpt_path: str, hparams: dict, convert: Callable | None = None) -> dict:
    """OpenAI's TensorFlow checkpoint -> params. TensorFlow checks the CRC32C of each tensor as it reads it."""
    tf = import_tensorflow()
    try:
        reader = tf.train.load_checkpoint(tf_ckpt_path)
        shapes = reader.get_variable_to_shape_map()
    except Exception as error:  # its kind depends on where the damage is
        raise bad_file(f"{tf_ckpt_path}.index", f"damaged ({first_line(error)})") from error
    # Outside of model/ a training run keeps its own numbers, the optimizer's for example.
    found = {name.removeprefix("model/"): tuple(shape) for name, shape in shapes.items() if name.startswith("model/")}
    data = f"{tf_ckpt_path}.data-00000-of-00001"
    return build_params(data, found, lambda name: reader.get_tensor(f"model/{name}"), hparams, convert)


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


def load_gpt2_params_from_safetensors(path: str, hparams: dict, convert: Callable | None = None) -> dict:
    """Hugging Face's model.safetensors, in float32, float16 or bfloat16 -> the same params, in float32."""
    import ml_dtypes

    with open_safetensors(path) as f:
        # Some files also hold the causal mask of each block, and as lm_head a copy of wte, GPT-2's output matrix.
        names = [name for name in f.offset_keys() if not re.search(r"\.attn\.(masked_)?bias$", name)]
        theirs = {openai_name(name): name for name in names}
        if len(theirs) < len(names):
            raise bad_file(path, "has a tensor twice, with and without the prefix transformer.")
        lm_head = theirs.pop("lm_head/w", None)

        def read(name):
            array = f.get_tensor(theirs[name])
            if name == "wte" and lm_head and not np.array_equal(array, f.get_tensor(lm_head)):
                raise ValueError("lm_head.weight is not the same, so this is not a GPT-2")
            return array.astype(np.float32) if array.dtype in (np.float16, ml_dtypes.bfloat16) else array

        found = {name: tuple(f.get_slice(theirs[name]).get_shape()) for name in theirs}
        return build_params(path, found, read, hparams, convert)


def open_safetensors(path):
    """safe_open(path). It refuses a file that is cut short, or whose tensors overlap, leave gaps or are malformed."""
    from safetensors import SafetensorError, safe_open

    try:
        with open(path, "rb") as f:
            if (n_bytes := int.from_bytes(f.read(8), "little")) > MOST_HEADER:  # whose parsing would take a gigabyte
                raise SafetensorError(f"its header has {n_bytes:,} bytes, more than {MOST_HEADER:,}")
        return safe_open(path, "numpy", backend="pread")  # mmap would keep all that was read in memory
    except (OSError, SafetensorError) as error:
        raise bad_file(path, f"damaged, or not a safetensors file ({first_line(error)!r})") from error


def openai_name(name):
    """ "transformer.h.0.ln_1.weight" -> "h0/ln_1/g"."""
    name = re.sub(r"^h\.(\d+)", r"h\1", name.removeprefix("transformer."))
    name = re.sub(r"^(wte|wpe)\.weight$", r"\1", re.sub(r"(ln_\w)\.weight$", r"\1.g", name))
    return re.sub(r"weight$", "w", re.sub(r"bias$", "b", name)).replace(".", "/")


def download_gpt2_files(model_size: str, model_dir: str, source: str = "openai", names: Collection = ()) -> None:
    """Downloads what model_dir lacks of an official model, or of its files `names`; after an interruption, the rest.

    source is "openai", "huggingface", or the URL of a mirror with OpenAI's files at URL/model_size. Raises UserError.
    """
    from plumbing.fetch import File, check_url, fetch_files

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
    fetch_files(files, model_dir)


def check_file(name, model_size, path):
    """Raises UserError if what was downloaded to path cannot be the file of that name."""
    if name == SAFETENSORS:
        open_safetensors(path)
    if name == "hparams.json" and load_hparams(path) != official.HPARAMS[model_size]:
        raise UserError(f"these are not the hparams of {model_size}")


def check_model(model_size: str, models_dir: str) -> None:
    """Reads all of a model, and prints for each file whether it is what was noted. Raises UserError if one is not."""
    folder = model_folder(model_size, models_dir)
    if missing := missing_files(folder):
        raise UserError(f"{folder} lacks {', '.join(missing)}")
    names = [*SMALL_FILES, SAFETENSORS, TF_INDEX, TF_DATA]
    if damaged := checksums.show(folder, names, official.hashes(model_size)):
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
        parser.add_argument("model_size", help=f"{', '.join(MODEL_SIZES)}; to be checked, any folder of models_dir")
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
