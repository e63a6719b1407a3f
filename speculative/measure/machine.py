"""The machine of a run, and the speed at which it reads its memory."""

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from speculative.engines.library import n_cores


def machine(engine: str = "numpy") -> dict:
    """The machine of the run; with engine "jax", its devices too."""
    return {
        "engine": engine,
        "platform": platform.platform(),
        "processor": processor(),
        "cpus": n_cores(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        **(accelerator() if engine == "jax" else {}),
    }


def accelerator() -> dict:
    import jax

    devices = jax.devices()
    names = {"device_platform": devices[0].platform, "device_kind": devices[0].device_kind, "devices": len(devices)}
    return names | {"jax": jax.__version__}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def read_bandwidth(
    n_bytes: int = 2**31,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Bytes a second that this machine reads from memory: the best of `repeats` sums over n_bytes, in all threads."""
    memory = np.ones(n_bytes // 8, np.int64)  # should be far more than any cache holds
    seconds = []
    for _ in range(repeats):
        start = clock()
        read(memory, os.cpu_count() or 1)
        seconds.append(clock() - start)
    return memory.nbytes / min(seconds)


def read(memory: np.ndarray, threads: int) -> int:  # [n] int64 -> their sum
    """Reads memory once, with nothing else to do: the limit that a forward pass is held against."""
    parts = np.array_split(memory, 32 * threads)  # small enough that no thread waits long for another at the end
    with ThreadPoolExecutor(threads) as pool:
        return int(sum(pool.map(np.sum, parts)))
