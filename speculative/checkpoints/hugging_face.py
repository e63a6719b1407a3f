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

from speculative.checkpoints.tensors import Tensor, bad_file, mapped, read
from speculative.support.errors import first_line
from speculative.support.terminal import one_line

# What a training run puts beside GPT-2's output matrix: it reads the last block's output, and changes no logits.
HEADS = r"(?!lm_head/)(\w*heads?\d?|score|classifier|qa_outputs)/"
TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_index(paths: Sequence[str]) -> dict[str, Tensor]:
    """Return {OpenAI's name: Tensor} of the files of one model. Raises UserError."""
    found: dict[str, Tensor] = {}
    for path in paths:
        for stored, tensor in read_file(path)[0].items():
            name = openai_name(stored)
            if name in found:
                raise bad_file(path, f"tensor {one_line(name)!r:.100} is there twice, or in {found[name].path} too")
            found[name] = tensor
    heads = sorted({name.partition("/")[0] for name in found if re.match(HEADS, name)})
    if heads:
        named = one_line(", ".join(heads))
        print(f"{paths[0]}: left out, since the text does not depend on it: {named}", file=sys.stderr)
    # Some files also hold the causal mask of each block, h.0.attn.bias.
    tensors = {name: found[name] for name in found if not re.search(rf"^{HEADS}|/attn/(masked_)?b$", name)}
    # Some hold wte once more as lm_head, GPT-2's output matrix, or under that name alone.
    lm_head = tensors.pop("lm_head/w", None)
    wte = tensors.setdefault("wte", lm_head) if lm_head else None
    if lm_head and not (lm_head.shape == wte.shape and np.array_equal(read(lm_head, "lm_head"), read(wte, "wte"))):
        raise bad_file(lm_head.path, "lm_head.weight is not wte.weight, so this is not a GPT-2")
    return tensors


def read_file(path: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return ({name: Tensor}, metadata) of one safetensors file. Raises UserError. Their library checks the header."""
    from safetensors import SafetensorError, safe_open

    file = mapped(path)
    try:
        with safe_open(path, "numpy") as checked:
            metadata = checked.metadata() or {}
    except SafetensorError as error:
        raise bad_file(path, f"damaged, or not a safetensors file ({first_line(error)})") from None
    start = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        dtype = TYPES.get(about["dtype"], about["dtype"])
        tensors[name] = Tensor(path, file, dtype, tuple(about["shape"]), start + about["data_offsets"][0])
    return tensors, metadata


def openai_name(name: str) -> str:
    """ "transformer.h.0.ln_1.weight" -> "h0/ln_1/g". PyTorch's wrappers of a model put their names in front."""
    name = re.sub(r"^h\.(\d+)", r"h\1", re.sub(r"^((module|_orig_mod|transformer)\.)+", "", name))
    name = re.sub(r"^(wte|wpe)\.weight$", r"\1", re.sub(r"(ln_\w)\.weight$", r"\1.g", name))
    return re.sub(r"weight$", "w", re.sub(r"bias$", "b", name)).replace(".", "/")
