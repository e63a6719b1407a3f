"""Hugging Face's weights: model.safetensors, or the parts that model.safetensors.index.json names."""

import contextlib
import json
import os
import re
from collections.abc import Callable

import numpy as np

from speculative.checkpoints.ranges import Ranges
from speculative.checkpoints.tensors import bad_file, build_params
from speculative.support.errors import first_line
from speculative.support.files import read_small
from speculative.support.official import SAFETENSORS

INDEX = f"{SAFETENSORS}.index.json"
MOST_HEADER = 2**23  # bytes of a safetensors header, which is a hundred times the official ones'
MOST_PARTS = 1000


def load_gpt2_params_from_safetensors(
    path: str, hparams: dict, convert: Callable | None = None, progress: Callable | None = None
) -> dict:
    """Hugging Face's weights, in float32, float16 or bfloat16 -> the params of gpt2.gpt2, in float32.

    path: the file, or the index of its parts. convert, progress: as in tensors.build_params. Raises UserError.
    """
    import ml_dtypes

    with contextlib.ExitStack() as stack:
        paths = [path]
        if str(path).endswith(INDEX):
            paths = [os.path.join(os.path.dirname(path), name) for name in part_names(path)]
        theirs = {}  # {OpenAI's name: (the open file, Hugging Face's name)}
        for part in paths:
            f = Tensors(stack.enter_context(open_safetensors(part)), stack.enter_context(open(part, "rb", buffering=0)))
            # Some files also hold the causal mask of each block, and as lm_head a copy of wte, GPT-2's output matrix.
            names = [name for name in f.names if not re.search(r"\.attn\.(masked_)?bias$", name)]
            for name in names:
                if openai_name(name) in theirs:
                    raise bad_file(part, "has a tensor twice, with and without the prefix transformer.")
                theirs[openai_name(name)] = f, name
        lm_head = theirs.pop("lm_head/w", None)

        def get(tensor):
            f, name = tensor
            return f.get_tensor(name)

        def read(name):
            array = get(theirs[name])
            if name == "wte" and lm_head and not np.array_equal(array, get(lm_head)):
                raise ValueError("lm_head.weight is not the same, so this is not a GPT-2")
            return array.astype(np.float32) if array.dtype in (np.float16, ml_dtypes.bfloat16) else array

        found = {name: f.shape(tensor) for name, (f, tensor) in theirs.items()}
        return build_params(path, found, read, hparams, convert, progress)


class Tensors:
    """The tensors of a safetensors file that the library has found whole."""

    def __init__(self, found, file):
        """found: the result of safe_open. file: the same file, open."""
        self.found = found
        self.file = file
        self.names = found.offset_keys()
        n_header = int.from_bytes(file.read(8), "little")
        self.header = json.loads(file.read(n_header))
        self.begin = 8 + n_header
        self.ranges = Ranges(file)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.found.get_slice(name).get_shape())

    def get_tensor(self, name: str) -> np.ndarray:
        import ml_dtypes

        dtype = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}.get(self.header[name]["dtype"])
        begin, end = self.header[name]["data_offsets"]
        if dtype is None:
            return self.found.get_tensor(name)
        content = self.ranges.read(self.begin + begin, end - begin)  # uint8 [n_bytes]
        return content.view(dtype).reshape(self.shape(name))


def part_names(path: str) -> list[str]:
    """The files that model.safetensors.index.json names, which lie beside it. Raises UserError."""
    try:
        names = sorted({str(name) for name in json.loads(read_small(path))["weight_map"].values()})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise bad_file(path, f"cannot be read as an index ({first_line(error)})") from error
    for name in names:
        if not re.fullmatch(r"model[A-Za-z0-9_.-]{0,200}\.safetensors", name):
            raise bad_file(path, f"names {name!r:.100}, which is not a file such as model-00001-of-00002.safetensors")
    if not 1 <= len(names) <= MOST_PARTS:
        raise bad_file(path, f"names {len(names)} files, not 1 to {MOST_PARTS}")
    return names


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
