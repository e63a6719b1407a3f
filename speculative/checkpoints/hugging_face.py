"""Hugging Face's checkpoints: model.safetensors, or its parts.

A safetensors file begins with the length of its header (8 bytes) and the header, JSON: for each tensor its type, its
shape and its place in the bytes that follow.

Source: https://github.com/huggingface/safetensors, section "Format".
"""

import json
import re
import sys
from collections.abc import Sequence

import numpy as np

from speculative.checkpoints.disk import MappedFile, bad_file, mapped
from speculative.checkpoints.weights import Index, Tensor, array_of
from speculative.support.errors import first_line
from speculative.support.terminal import one_line

# A head that a training run puts beside GPT-2's output matrix: it reads the last block's output, and changes no logits.
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
    """Return {OpenAI's name: Tensor} of the files of one model, without those on which no logits depend, of which a
    line names the heads of a training run. Raises UserError."""
    tensors: Index = {}
    heads = set()
    for path in paths:
        in_file, _ = read_file(path)
        for stored, tensor in in_file.items():
            name = openai_name(stored)
            if name in tensors:
                other = tensors[name].file.path
                raise bad_file(path, f"tensor {one_line(name)!r:.100} is there twice, or in {other} too")
            if re.match(HEADS, name):
                heads.add(name.partition("/")[0])
            elif not re.search(MASKS, name):
                tensors[name] = tensor
    if heads:
        named = one_line(", ".join(sorted(heads)))
        print(f"{paths[0]}: left out, since the text does not depend on it: {named}", file=sys.stderr)
    if "lm_head/w" in tensors:
        leave_out_output_matrix(tensors)
    return tensors


def leave_out_output_matrix(tensors: Index) -> None:
    """Leave out lm_head, GPT-2's output matrix: some files hold wte once more under that name, or under that name
    alone. Raises UserError if it is another matrix."""
    lm_head = tensors.pop("lm_head/w")
    wte = tensors.setdefault("wte", lm_head)
    if not np.array_equal(array_of(lm_head, "lm_head"), array_of(wte, "wte")):
        raise bad_file(lm_head.file.path, "lm_head.weight is not wte.weight, so this is not a GPT-2")


def read_file(path: str) -> tuple[Index, dict]:
    """Read the header of one safetensors file, which their library checks -> its tensors by their names there, and its
    metadata. Raises UserError if it is damaged."""
    file = mapped(path)
    check_header(file)
    # The header is read here once more, as the library does not tell where tensors are, and they stay mapped.
    start = 8 + int.from_bytes(file.content[:8], "little")  # the first byte of the tensors
    header = json.loads(file.content[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, about in header.items():
        stored = about["dtype"]
        begin, _ = about["data_offsets"]
        tensors[name] = Tensor(file, TYPES.get(stored, stored), tuple(about["shape"]), start + begin)
    return tensors, metadata


def check_header(file: MappedFile) -> None:
    """Raise UserError if the header of a safetensors file is damaged."""
    from safetensors import SafetensorError, deserialize, safe_open

    try:
        if isinstance(file.content, bytes):  # a disk that cannot map files: the library would map it as well
            deserialize(file.content)
        else:
            with safe_open(file.path, "numpy"):
                pass
    except SafetensorError as error:
        raise bad_file(file.path, f"damaged, or not a safetensors file ({first_line(error)})") from None


def openai_name(name: str) -> str:
    """ "transformer.h.0.ln_1.weight" -> "h0/ln_1/g"."""
    for theirs, ours in RENAMED:
        name = re.sub(theirs, ours, name)
    return name
