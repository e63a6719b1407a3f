"""The parameters of a network: nested dicts and lists of arrays and packed weights, under the names of gpt2.py."""

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def convert_all(params: Any, convert: Callable, name: str = "") -> Any:
    """Return a nested dict of convert(name, tensor). The names are made of the keys: wte, attn/c_proj/w."""
    if isinstance(params, dict):
        return {key: convert_all(value, convert, f"{name}/{key}" if name else key) for key, value in params.items()}
    if isinstance(params, list):
        return [convert_all(block, convert) for block in params]
    return convert(name, params)


def leaves(params) -> Iterator:
    """Yield every array and packed weight in a nested dict of parameters."""
    if hasattr(params, "nbytes"):
        yield params
        return
    for part in params.values() if isinstance(params, dict) else params:
        yield from leaves(part)


def is_mapped(params) -> bool:
    """Return True if some weights lie in a file that is mapped."""
    for leaf in leaves(params):
        memory = getattr(leaf, "tiles", leaf)
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, memoryview) and isinstance(memory.obj, mmap.mmap):
            return True
    return False


def n_bytes(params) -> int:
    return sum(leaf.nbytes for leaf in leaves(params))
