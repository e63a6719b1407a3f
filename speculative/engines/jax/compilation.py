"""What JAX compiles: kept on the disk for the next run, and told if it takes a while."""

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

import jax

from speculative.support.files import cache_home

COMPILED = "/jax/compilation_cache/cache_misses"  # of a program that is compiled, and written to the disk
events: Counter[str] = Counter()


def count(event: str, **details: object) -> None:
    """Count what JAX tells of its work."""
    events[event] += 1


jax.monitoring.register_event_listener(count)


def keep_compiled() -> None:
    """Keep every compiled program on disk for the next run: in JAX_COMPILATION_CACHE_DIR, or the user's cache."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", users_folder())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def users_folder() -> str | None:
    """Return the folder of this user's compiled programs; None if there is no home, or it is another user's."""
    try:
        folder = cache_home().with_name("speculative-sampling-jax")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return str(folder) if os.access(folder, os.W_OK | os.X_OK) else None


@contextlib.contextmanager
def compiling(what: str, quiet: bool) -> Iterator[None]:
    """Print how long something took to compile, if it was not on the disk."""
    began = time.perf_counter()
    n_before = events[COMPILED]
    yield
    if events[COMPILED] > n_before and not quiet:
        seconds = time.perf_counter() - began
        print(f"compiled {what} in {seconds:.1f} s, which the next run of this length need not", file=sys.stderr)
