"""Parts of a large file, read into memory that is used again: getting new memory takes longer than reading does."""

import os
import sys
import threading
from typing import BinaryIO

import numpy as np

WORTHWHILE = 2**20  # bytes, from which on memory is used again


class Parts:
    """For several threads, one after the other."""

    def __init__(self, file: BinaryIO):
        """file: open, without a buffer."""
        self.file = file
        self.buffers = []
        self.lock = threading.Lock()

    def read(self, begin: int, n_bytes: int) -> np.ndarray:  # -> uint8 [n_bytes]
        """Raises ValueError where the file ends before."""
        if begin + n_bytes > os.fstat(self.file.fileno()).st_size:
            raise ValueError("the file ends within it")
        with self.lock:
            memory = self.memory(n_bytes)
            self.file.seek(begin)
            n_read = 0
            while n_read < n_bytes:
                n_more = self.file.readinto(memory[n_read:])
                if not n_more:  # it has become shorter
                    raise ValueError("the file ends within it")
                n_read += n_more
        return memory

    def memory(self, n_bytes: int) -> np.ndarray:  # -> uint8 [n_bytes]
        """Memory that nobody refers to any more, or new memory."""
        if n_bytes < WORTHWHILE:
            return np.empty(n_bytes, np.uint8)
        for buffer in self.buffers:
            if len(buffer) >= n_bytes and sys.getrefcount(buffer) == UNUSED:
                return buffer[:n_bytes]
        self.buffers.append(np.empty(n_bytes, np.uint8))
        return self.buffers[-1][:]


def references_to_one_in_a_list() -> int:
    for buffer in [np.empty(1, np.uint8)]:
        return sys.getrefcount(buffer)


UNUSED = references_to_one_in_a_list()  # Pythons differ in whether they count a loop's own
