"""Ranges of a large file's bytes, read into memory that is used again: new memory takes longer to get than to fill."""

import ctypes
import os
import weakref
from typing import BinaryIO

import numpy as np

LEAST, MOST = 2**20, 2**26  # bytes of what is read into such memory: a matrix, but not wte, which there is but once


class Ranges:
    """A file that one thread reads, while others may use what was read."""

    def __init__(self, file: BinaryIO):
        """file: open, without a buffer."""
        self.file = file
        self.free = []  # memory that nobody refers to

    def read(self, begin: int, n_bytes: int) -> np.ndarray:  # -> uint8 [n_bytes]
        """Raises ValueError where the file ends before."""
        if begin + n_bytes > os.fstat(self.file.fileno()).st_size:
            raise ValueError("the file ends within it")
        content = self.memory(n_bytes)  # uint8 [n_bytes]
        self.file.seek(begin)
        n_read = 0
        while n_read < n_bytes:
            n_more = self.file.readinto(content[n_read:])
            if not n_more:  # it has become shorter
                raise ValueError("the file ends within it")
            n_read += n_more
        return content

    def memory(self, n_bytes: int) -> np.ndarray:  # -> uint8 [n_bytes]
        """Memory that has come back, or new memory."""
        if not LEAST <= n_bytes <= MOST:
            return np.empty(n_bytes, np.uint8)
        for i, memory in enumerate(self.free):
            if len(memory) >= n_bytes:
                return self.lend(self.free.pop(i), n_bytes)
        return self.lend(np.empty(n_bytes, np.uint8), n_bytes)

    def lend(self, memory: np.ndarray, n_bytes: int) -> np.ndarray:  # uint8 [at least n_bytes] -> uint8 [n_bytes]
        """Lends memory as an array. It comes back once nothing refers to that, nor to a view of it: they all refer to
        `lent`, with which what Python calls at its end goes. What somebody keeps never comes back."""
        lent = (ctypes.c_uint8 * n_bytes).from_buffer(memory)
        weakref.finalize(lent, take_back, weakref.ref(self), memory)
        return np.frombuffer(lent, np.uint8)


def take_back(ranges: weakref.ref, memory: np.ndarray) -> None:
    """Called in whichever thread lets go of the memory last."""
    if ranges():
        ranges().free.append(memory)
