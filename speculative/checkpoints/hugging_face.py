"""Hugging Face's checkpoints: model.safetensors, or its parts.

A safetensors file begins with the length of its header (8 bytes) and the header, JSON: for each tensor its type, its
shape and its place in the bytes that follow. The tensors fill these bytes without a gap.

Source: https://github.com/huggingface/safetensors, section "Format".
"""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from speculative.checkpoints.disk import MappedFile, bad_file, mapped
from speculative.checkpoints.tensors import N_BYTES, Index, Tensor, array_of
from speculative.support.errors import first_line
from speculative.support.terminal import one_line

# What a training run puts beside GPT-2's output matrix: it reads the last block's output, and changes no logits.
HEADS = r"(?!lm_head/)(\w*heads?\d?|score|classifier|qa_outputs)/"
MASKS = r"/attn/(masked_)?b$"  # the causal mask of each block, h.0.attn.bias, which some files also hold
TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
RENAMED = [
    (r"^((module|_orig_mod|transformer)\.)+", ""),  # PyTorch's wrappers of a model put their names in front
    (r"^h\.(\d+)", r"h\1"),
    (r"(ln_\w)\.weight$", r"\1.g"),
    (r"^(wte|wpe)\.weight$", r"\1"),
    (r"\bweight$", "w"),
    (r"bias$", "b"),
    (r"\.", "/"),
]


def read_index(paths: Sequence[str]) -> Index:
    """Return {OpenAI's name: Tensor} of the files of one model, without what no logits depend on, of which a line names
    the heads of a training run. Raises UserError."""
    tensors: Index = {}
    heads = set()
    for path in paths:
        in_file, _ = read_file(path)
        for stored, tensor in in_file.items():
            name = openai_name(stored)
            if name in tensors:
                other = tensors[name].path
                raise bad_file(path, f"tensor {one_line(name)!r:.100} is there twice, or in {other} too")
            if re.match(HEADS, name):
                heads.add(name.partition("/")[0])
            elif not re.search(MASKS, name):
                tensors[name] = tensor
    if heads:
        named = one_line(", ".join(sorted(heads)))
        print(f"{paths[0]}: left out, since the text does not depend on it: {named}", file=sys.stderr)
    leave_out_output_matrix(tensors)
    return tensors


def leave_out_output_matrix(tensors: Index) -> None:
    """Leave out lm_head, GPT-2's output matrix: some files hold wte once more under that name, or under that name
    alone. Raises UserError if it is another matrix."""
    if "lm_head/w" in tensors:
        lm_head = tensors.pop("lm_head/w")
        wte = tensors.setdefault("wte", lm_head)
        if not np.array_equal(array_of(lm_head, "lm_head"), array_of(wte, "wte")):
            raise bad_file(lm_head.path, "lm_head.weight is not wte.weight, so this is not a GPT-2")


def read_file(path: str) -> tuple[Index, dict]:
    """Read the header of one safetensors file -> its tensors by their names there, and its metadata. Raises UserError
    if it is damaged."""
    file = mapped(path)
    start = 8 + int.from_bytes(file.content[:8], "little")
    try:
        header = json.loads(file.content[8:start])
        if not isinstance(header, dict):
            raise ValueError("its header is not an object of tensors")
        metadata = header.pop("__metadata__", {})
        tensors = {name: tensor_of(file, start, name, about) for name, about in header.items()}
        check_places(header, len(file.content) - start)
    except (ValueError, RecursionError) as error:
        raise bad_file(path, f"damaged, or not a safetensors file ({first_line(error)})") from None
    return tensors, metadata if isinstance(metadata, dict) else {}


def tensor_of(file: MappedFile, start: int, name: str, about: Any) -> Tensor:
    """Return a tensor as the header describes it. start: the byte after the header. Raises ValueError."""
    if not is_tensor(about):
        raise ValueError(f"tensor {one_line(name)!r:.100} lacks a dtype, a shape, or the data_offsets of two bytes")
    stored = about["dtype"]
    shape = tuple(about["shape"])
    begin, end = about["data_offsets"]
    n_bytes = end - begin
    tensor = Tensor(file, TYPES.get(stored, stored), shape, start + begin)
    if tensor.dtype in N_BYTES and tensor.n_bytes != n_bytes:
        raise ValueError(f"a shape {shape} of {stored} in {n_bytes} bytes")
    return tensor


def is_tensor(about: Any) -> bool:
    """Return True for an object with a type, a shape and a place."""
    if not isinstance(about, dict) or not isinstance(about.get("dtype"), str):
        return False
    places = about.get("data_offsets")
    return are_numbers(about.get("shape")) and are_numbers(places) and len(places) == 2


def are_numbers(value: Any) -> bool:
    """Return True for a list of whole numbers from 0 on."""
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def check_places(header: dict, n_bytes: int) -> None:
    """Raise ValueError if the tensors, each from a byte to another, do not fill the n_bytes after the header."""
    places = sorted(about["data_offsets"] for about in header.values())
    begins = [begin for begin, _ in places]
    ends = [end for _, end in places]
    if [*begins, n_bytes] != [0, *ends]:
        raise ValueError(f"its tensors do not fill its {n_bytes} bytes without a gap")


def openai_name(name: str) -> str:
    """ "transformer.h.0.ln_1.weight" -> "h0/ln_1/g"."""
    for theirs, ours in RENAMED:
        name = re.sub(theirs, ours, name)
    return name
