"""The speed at which this machine reads its memory: the limit of autoregressive decoding."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def read_bandwidth(n_bytes: int = 2**31, repeats: int = 5) -> float:
    """Bytes a second that this machine reads from memory: the best of `repeats` sums over n_bytes, in all threads."""
    memory = np.ones(n_bytes // 8, np.int64)  # should be far more than any cache holds
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        read(memory, os.cpu_count() or 1)
        seconds.append(time.perf_counter() - start)
    return memory.nbytes / min(seconds)


def read(memory: np.ndarray, threads: int) -> int:  # [n] int64 -> their sum
    """Read memory once, in parts small enough that no thread waits long for another at the end."""
    parts = np.array_split(memory, 32 * threads)
    with ThreadPoolExecutor(threads) as pool:
        return int(sum(pool.map(np.sum, parts)))
