"""The number of cores that this process may use."""

import os


def most_threads() -> int:
    """Return the largest useful number of threads: one for each core."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
