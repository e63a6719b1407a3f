"""The formulas of the papers, and the measurements that go into them."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def read_bandwidth(n_bytes: int = 2**31, repeats: int = 5, threads: int | None = None) -> float:
    """Bytes a second that this machine reads from memory: the best of `repeats` sums over n_bytes, in all threads."""
    threads = threads or len(os.sched_getaffinity(0))
    parts = np.ones((threads, n_bytes // 4 // threads), np.float32)  # far more than any cache holds
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            seconds.append(time.perf_counter() - start)
    return parts.nbytes / min(seconds)
