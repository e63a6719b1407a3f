"""Hugging Face's checkpoints: model.safetensors, or the parts that model.safetensors.index.json names.

A safetensors file begins with the length of its header (8 bytes) and the header, JSON: for each tensor its type, its
shape and its place in what follows.

Source: https://github.com/huggingface/safetensors, section "Format".
"""

import json
import os
import re
from operator import index
from pathlib import Path

from speculative.checkpoints.tensors import Tensor, bad_file, build_params, mapped, read
from speculative.support.errors import first_line

SAFETENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def load_gpt2_params_from_safetensors(path: str, hparams: dict, *convert_and_progress) -> dict:
    """Read model.safetensors, or the index of its parts -> the parameters of gpt2.gpt2, as build_params makes them."""
    return build_params(read_index(path), hparams, *convert_and_progress)


def read_index(path: str) -> dict[str, Tensor]:
    """Return {OpenAI's name: Tensor}. Raises UserError."""
    path = str(path)
    paths = [path]
    if path.endswith(INDEX):
        paths = [os.path.join(os.path.dirname(path), name) for name in part_names(path)]
    tensors = {}
    for part in paths:
        for name, tensor in read_file(part)[0].items():
            # Some files also hold the causal mask of each block.
            if not re.search(r"\.attn\.(masked_)?bias$", name):
                tensors[openai_name(name)] = tensor
    # Some hold wte once more as lm_head, GPT-2's output matrix.
    lm_head = tensors.pop("lm_head/w", None)
    if lm_head and "wte" in tensors and (read(lm_head, "lm_head") != read(tensors["wte"], "wte")).any():
        raise bad_file(path, "lm_head.weight is not wte.weight, so this is not a GPT-2")
    return tensors


def read_file(path: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return ({name: Tensor}, metadata) of one safetensors file. Raises UserError."""
    file = mapped(path)
    start = 8 + int.from_bytes(file[:8], "little")
    try:
        header = json.loads(file[8:start])
        metadata = header.pop("__metadata__", {})
        tensors = {}
        end = 0
        for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, after = about["data_offsets"]
            dtype = TYPES.get(about["dtype"], about["dtype"])
            tensors[name] = Tensor(path, file, dtype, tuple(map(index, about["shape"])), start + begin)
            if begin != end or (dtype in TYPES.values() and after - begin != tensors[name].n_bytes):
                raise ValueError(f"tensor {name!r:.100} is not in its place")
            end = after
        if start + end != len(file):
            raise ValueError(f"it has {len(file):,} bytes, not {start + end:,}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise bad_file(path, f"damaged, or not a safetensors file ({first_line(error)})") from None
    return tensors, metadata


def part_names(path: str) -> list[str]:
    """Return the files that model.safetensors.index.json names, which are beside it. Raises UserError."""
    try:
        names = sorted({*json.loads(Path(path).read_text(encoding="utf-8"))["weight_map"].values()})
        strange = [name for name in names if not re.fullmatch(r"model[\w.-]{0,200}\.safetensors", name)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise bad_file(path, f"damaged ({first_line(error)})") from None
    if strange or not names:
        raise bad_file(path, f"should name files such as model-00001-of-00002.safetensors, not {strange[:1]!r:.100}")
    return names


def openai_name(name: str) -> str:
    """ "transformer.h.0.ln_1.weight" -> "h0/ln_1/g"."""
    name = re.sub(r"^h\.(\d+)", r"h\1", name.removeprefix("transformer."))
    name = re.sub(r"^(wte|wpe)\.weight$", r"\1", re.sub(r"(ln_\w)\.weight$", r"\1.g", name))
    return re.sub(r"weight$", "w", re.sub(r"bias$", "b", name)).replace(".", "/")
