"""The parameters of a network: nested dicts and lists of arrays and packed weights, under the names of gpt2.py."""

import mmap
from collections.abc import Iterator

import numpy as np


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
