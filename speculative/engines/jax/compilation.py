"""The programs that JAX compiles: kept on the disk for the next run, and a line if that takes a while.

At the end: the processes that compute the same.
"""

import contextlib
import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

from speculative.support.errors import UserError, first_line
from speculative.support.files import cache_home

COMPILED = "/jax/compilation_cache/cache_misses"  # the event of a program that is compiled and written to the disk
events: Counter[str] = Counter()


def count(event: str, **details: object) -> None:
    """Count the events of JAX's work."""
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


# ---- Several processes -----------------------------------------------------------------------------------------------


@functools.cache
def start_processes() -> None:
    """Join the other processes once, if the environment names any, before JAX is asked for its devices.

    JAX_COORDINATOR_ADDRESS is host:port of the first process. JAX_NUM_PROCESSES and JAX_PROCESS_ID, or the variables of
    Slurm, Open MPI or Kubernetes, say how many there are and which one this is. All have to run the same
    command. Raises UserError.
    """
    if not os.environ.get("JAX_COORDINATOR_ADDRESS"):
        return
    try:
        n_processes, process_id = (
            int(os.environ[name]) if name in os.environ else None for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
        )
        # Else JAX would take SIGTERM for a notice that the machine is needed elsewhere, and go on.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(num_processes=n_processes, process_id=process_id)
    except (RuntimeError, ValueError) as error:
        check = "check JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        raise UserError(f"cannot join the other processes ({first_line(error)}): {check}") from error


def devices(n: int = 1, *wanted_by: str) -> list:
    """The first n devices. wanted_by: parts of a sentence. Raises UserError if there are fewer, or none."""
    try:
        present = jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter without a message, if a platform is not installed
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(f"jax finds no device of JAX_PLATFORMS={platforms} ({first_line(error)}): unset it") from error
    if len(present) < n:
        flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={n}"
        needs = f" needs {n} devices, and jax finds {len(present)}"
        raise UserError(*(wanted_by or ["JAX"]), needs, hint=f"{flag} makes {n} of a CPU")
    return present[:n]


def accelerator() -> Any:
    """Return JAX's first device if it computes elsewhere than on this CPU, in a memory of its own; else None."""
    try:
        device = devices(1)[0]
    except UserError:
        return None
    return None if device.platform == "cpu" else device
