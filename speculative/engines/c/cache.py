"""A text's KV cache, as the C engine reads it."""

import contextlib
import mmap

import numpy as np

from speculative.engines.c.library import library
from speculative.engines.c.packing import address, aligned

LARGE_PAGE = 2**22  # bytes from which on NumPy would ask for large pages


class Cache:
    """Keys as tiles of slots, and values as tiles of channels: see attention in engine.c."""

    def __init__(self, hparams: dict):
        L = library().lanes()
        n_head = hparams["n_head"]
        n_ctx = hparams["n_ctx"]
        d_head = hparams["n_embd"] // n_head
        heads = hparams["n_layer"], n_head
        self.keys = small_pages((*heads, -(-n_ctx // L), d_head, L))
        self.values = small_pages((*heads, -(-d_head // L), n_ctx, L))
        self.addresses = address(self.keys), address(self.values)

    def move(self, slots, to: int) -> None:  # [n]
        """Move the keys and values of these tokens to the places from `to` on."""
        L = library().lanes()
        new_slots = np.arange(to, to + len(slots))  # [n]
        tiles, lane = divmod(slots, L)  # [n] each
        new_tiles, new_lane = divmod(new_slots, L)  # [n] each
        keys = self.keys[:, :, tiles, :, lane]  # a copy
        self.keys[:, :, new_tiles, :, new_lane] = keys
        values = self.values[:, :, :, slots]  # a copy
        self.values[:, :, :, new_slots] = values


def small_pages(shape):  # -> float32 zeros [*shape]
    """Memory for a cache, of which only written pages are taken: in a large page one token, which has a place for each
    layer and head, would touch them all."""
    n_bytes = 4 * int(np.prod(shape))
    if n_bytes < LARGE_PAGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return aligned(shape)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)
