"""What a forward pass runs on: the compiled one where numba is installed, else gpt2.py; its threads; and compiling."""

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from types import ModuleType

from plumbing.errors import UserError
from speculative.engines import cpu
from speculative.engines.plain import PlainPass, n_bytes
from speculative.engines.vocabulary import SharedPass

THREAD_BYTES = 2**23  # of weights for each thread at least: one that reads fewer costs more than it saves


def compiled_pass() -> ModuleType | None:
    """The module of that name, or None where numba is not installed."""
    return import_compiled_pass() if cpu.has_numba() else None


@functools.cache
def import_compiled_pass() -> ModuleType:
    import numba

    forgive_the_cache()
    try:
        from speculative.engines import compiled_pass
    except RuntimeError:  # neither the source's folder nor the user's cache can be written
        say_nothing_is_kept("no folder for it can be written to")
        try:
            import_compiled_pass.folder = tempfile.TemporaryDirectory()  # until the program ends
        except OSError as error:
            raise UserError("numba needs a folder to write to: NUMBA_CACHE_DIR or TMPDIR names one") from error
        numba.config.CACHE_DIR = import_compiled_pass.folder.name
        from speculative.engines import compiled_pass
    return compiled_pass


def forgive_the_cache() -> None:
    """numba ends with an OSError where it cannot write what it has compiled, and with any error where what it reads
    again is damaged, by a power cut for example. Now it does without, and compiles again."""
    from numba.core.caching import Cache

    save = Cache.save_overload
    load = Cache.load_overload

    def load_overload(self, sig, target_context):
        try:
            return load(self, sig, target_context)
        except MemoryError:
            raise
        except Exception as error:  # its kind depends on the damage
            say_it_is_damaged(type(error).__name__)
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig, data):
        try:
            save(self, sig, data)
        except OSError as error:
            say_nothing_is_kept(error.strerror)

    Cache.save_overload = save_overload
    Cache.load_overload = load_overload


@functools.cache
def say_numpy_multiplies() -> None:
    print(
        "numba is not installed, or switched off, so NumPy multiplies: K+1 rows cost several times what one costs, and "
        "greedy texts may differ by rounding. pip install numba helps",
        file=sys.stderr,
    )


@functools.cache
def say_nothing_is_kept(why: str) -> None:
    print(f"numba cannot keep what it compiles ({why}), so every run compiles; NUMBA_CACHE_DIR helps", file=sys.stderr)


@functools.cache
def say_it_is_damaged(why: str) -> None:
    print(f"what numba has kept is damaged ({why}), so it is compiled again", file=sys.stderr)


def new_pass(params: dict, hparams: dict) -> Callable:
    """A forward pass with a cache of its own: compiled, or gpt2.py where numba is not installed; with the target's ids,
    where hparams say how the draft's are shared."""
    if "shared" in hparams:
        return SharedPass(own_pass(params, hparams), hparams["shared"])
    return own_pass(params, hparams)


def own_pass(params, hparams):
    compiled = compiled_pass()
    if not compiled:
        return PlainPass(params, hparams)
    useful = 1 + n_bytes(params) // THREAD_BYTES
    with announced():
        return compiled.CompiledPass(
            params, hparams, lambda: compiled.choose_team(min(n_threads or most_threads(), useful))
        )


def warm_up() -> None:
    """Compiles the forward pass, or loads it from the disk, so that no timed part has to."""
    compiled = compiled_pass()
    if not compiled:
        return say_numpy_multiplies()
    with announced():
        compiled.compile_all()


@contextlib.contextmanager
def announced():
    """Says so where anything is compiled. That happens once on a machine: numba keeps the result beside the source or
    in the user's cache."""
    from numba.core import event

    class Announcer(event.Listener):
        said = False

        def on_start(self, event):
            if not self.said:
                print("compiling the forward pass, once on this machine ...", file=sys.stderr, flush=True)
            self.said = True

        def on_end(self, event):
            pass

    with event.install_listener("numba:compile", Announcer()):
        yield


n_threads = None  # of the next forward pass; None: one for each core


def most_threads() -> int:
    """How many threads can be asked for: one for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(n: int | None = None) -> None:
    """Makes the forward pass and NumPy's BLAS use n threads each, or one for each core. Raises UserError."""
    import threadpoolctl

    global n_threads
    n = n or most_threads()
    if not 1 <= n <= most_threads():
        raise UserError(f"{n} threads: this machine has cores for 1 to {most_threads()}")
    n_threads = n
    threadpoolctl.threadpool_limits(n)
