"""Hugging Face's checkpoints: model.safetensors, or its parts.

A safetensors file begins with the length of its header (8 bytes) and the header, JSON: for each tensor its type, its
shape and its place in the bytes that follow. The tensors fill these bytes without a gap.

Source: https://github.com/huggingface/safetensors, section "Format".
"""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from speculative.checkpoints.disk import MappedFile, bad_file, mapped
from speculative.checkpoints.tensors import N_BYTES, Tensor, array_of
from speculative.support.errors import first_line
from speculative.support.terminal import one_line

# What a training run puts beside GPT-2's output matrix: it reads the last block's output, and changes no logits.
HEADS = r"(?!lm_head/)(\w*heads?\d?|score|classifier|qa_outputs)/"
MASKS = r"/attn/(masked_)?b$"  # the causal mask of each block, h.0.attn.bias, which some files also hold
TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_index(paths: Sequence[str]) -> dict[str, Tensor]:
    """Return {OpenAI's name: Tensor} of the files of one model. Raises UserError."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        for stored, tensor in read_file(path).tensors.items():
            name = openai_name(stored)
            if name in tensors:
                other = tensors[name].path
                raise bad_file(path, f"tensor {one_line(name)!r:.100} is there twice, or in {other} too")
            tensors[name] = tensor
    return without_output_matrix(without_heads(tensors, paths[0]))


def without_heads(tensors: dict[str, Tensor], path: str) -> dict[str, Tensor]:
    """Leave out what no logits depend on, with a line about the heads of a training run."""
    heads = set()
    others = {}
    for name, tensor in tensors.items():
        if re.match(HEADS, name):
            heads.add(name.partition("/")[0])
        elif not re.search(MASKS, name):
            others[name] = tensor
    if heads:
        named = one_line(", ".join(sorted(heads)))
        print(f"{path}: left out, since the text does not depend on it: {named}", file=sys.stderr)
    return others


def without_output_matrix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out lm_head, GPT-2's output matrix: some files hold wte once more under that name, or under that name
    alone. Raises UserError if it is another matrix."""
    lm_head = tensors.pop("lm_head/w", None)
    if lm_head is None:
        return tensors
    wte = tensors.setdefault("wte", lm_head)
    is_equal = lm_head.shape == wte.shape and np.array_equal(array_of(lm_head, "lm_head"), array_of(wte, "wte"))
    if not is_equal:
        raise bad_file(lm_head.path, "lm_head.weight is not wte.weight, so this is not a GPT-2")
    return tensors


class SafetensorsFile(NamedTuple):
    tensors: dict[str, Tensor]  # by their names in the file
    metadata: dict[str, str]


def read_file(path: str) -> SafetensorsFile:
    """Read the header of one safetensors file. Raises UserError if it is damaged."""
    file = mapped(path)
    start = 8 + int.from_bytes(file.content[:8], "little")
    try:
        header = json.loads(file.content[8:start])
        metadata = dict(header.pop("__metadata__", {}))
        tensors = {name: tensor_of(file, start, about) for name, about in header.items()}
        check_places([about["data_offsets"] for about in header.values()], len(file.content) - start)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise bad_file(path, f"damaged, or not a safetensors file ({first_line(error)})") from None
    return SafetensorsFile(tensors, metadata)


def tensor_of(file: MappedFile, start: int, about: dict[str, Any]) -> Tensor:
    """Return a tensor as the header describes it. start: the byte after the header. Raises ValueError."""
    begin, end = map(natural, about["data_offsets"])
    shape = tuple(map(natural, about["shape"]))
    stored = str(about["dtype"])
    dtype = TYPES.get(stored, stored)
    tensor = Tensor(file, dtype, shape, start + begin)
    n_bytes = end - begin
    if dtype in N_BYTES and tensor.n_bytes != n_bytes:
        raise ValueError(f"a shape {shape} of {dtype} in {n_bytes} bytes")
    return tensor


def natural(n: Any) -> int:
    if type(n) is not int or n < 0:
        raise ValueError(f"{n!r:.50} in place of a number of bytes or a width")
    return n


def check_places(places: list[Any], n_bytes: int) -> None:
    """Raise ValueError if the tensors do not fill the n_bytes after the header."""
    filled = 0
    for begin, end in sorted(places):
        if begin != filled:
            raise ValueError(f"a tensor begins at byte {begin}, and another ends at {filled}")
        filled = end
    if filled != n_bytes:
        raise ValueError(f"its tensors take {filled} bytes, and it has {n_bytes}")


def openai_name(name: str) -> str:
    """ "transformer.h.0.ln_1.weight" -> "h0/ln_1/g". PyTorch's wrappers of a model put their names in front."""
    name = re.sub(r"^((module|_orig_mod|transformer)\.)+", "", name)
    name = re.sub(r"^h\.(\d+)", r"h\1", name)
    name = re.sub(r"(ln_\w)\.weight$", r"\1.g", name)
    name = re.sub(r"^(wte|wpe)\.weight$", r"\1", name)
    name = re.sub(r"bias$", "b", name)
    return re.sub(r"\bweight$", "w", name).replace(".", "/")
