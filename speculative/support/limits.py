"""The limits of `ulimit` that are too low for the libraries that a command loads."""

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable

MEGABYTE = 2**20

# What a run takes beside its models where everything has to be compiled, and what each core adds to it, as BLAS
# libraries and packing have threads and buffers for each. Measured with 1 and 2 cores, the bundled pair included: 560
# and 657 MB of addresses, 310 and 407 of data. With less, one of the libraries ends the process with a stack trace, or
# tries again for ever and hears no signal.
LEAST = {"RLIMIT_AS": ("-v", "addresses", 440, 100), "RLIMIT_DATA": ("-d", "data", 230, 100)}
M_ARENA_MAX = -8  # of mallopt, in the C library of Linux


def too_low(new_thread: Callable = threading.Thread) -> str | None:
    """A line that says which limit is too low and how high it has to be; None if all are high enough."""
    for name, (flag, what, *_) in LEAST.items():
        limit = limit_of(name)
        if limit is not None and limit < least(name):
            given = f"`ulimit {flag}` gives {limit / 1e9:.2f} GB of {what}"
            return f"{given}, and NumPy and numba take {least(name) / 1e9:.2f} GB to start with: set it higher"
    if limit_of("RLIMIT_AS") is not None:
        save_addresses()
    return too_few_threads(new_thread)


def limit_of(name: str) -> int | None:
    """A limit of this process; None where there is none, or the system does not know it."""
    with contextlib.suppress(ImportError):  # Windows
        import resource

        limit = resource.getrlimit(getattr(resource, name))[0]
        return None if limit == resource.RLIM_INFINITY else limit
    return None


def least(name: str) -> int:
    """The bytes that a limit has to leave."""
    _, _, base, for_each_core = LEAST[name]
    return (base + for_each_core * most_threads()) * MEGABYTE


def most_threads() -> int:
    """The most threads that are of use: one for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def save_addresses() -> None:
    """Makes the threads share the memory that they allocate from: else the first allocation in each of them would
    reserve 64 MB of addresses, more than all that is needed."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def too_few_threads(new_thread: Callable) -> str | None:
    """Tries how many threads can be started. NumPy's BLAS would interrupt the program, as Ctrl-C does, where it cannot
    start its own."""
    over = threading.Event()
    started = []
    try:
        for _ in range(2 * most_threads() + 6):
            started.append(new_thread(target=over.wait))
            started[-1].start()
    except RuntimeError as error:
        return f"{error}: a run takes {2 * most_threads() + 6}, and `ulimit -a` shows what this process may have"
    finally:
        over.set()
        for thread in started:
            with contextlib.suppress(RuntimeError):  # the one that could not be started
                thread.join()
    return None
