"""Compiling with numba. Compiled functions are kept in the user's cache, in a folder named by a hash of the sources."""

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def cache_home() -> Path:
    """Return the folder in which this user's programs keep files that they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculative-sampling"


@functools.cache
def has_numba() -> bool:
    """Return True if anything can be compiled here. Tells numba where to keep it, unless NUMBA_CACHE_DIR does."""
    try:
        import numba
    except ImportError:
        return False
    number = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parents[1].glob("engines/**/*.py")):
        number.update(path.read_bytes())
    numba.config.CACHE_DIR = numba.config.CACHE_DIR or str(cache_home() / f"kernels-{number.hexdigest()[:16]}")
    return not numba.config.DISABLE_JIT


def kept(make: Callable[[], Any]) -> Any:
    """Return make(), which asks numba to keep the functions that it compiles."""
    has_numba()
    return make()


@functools.cache
def compiled(function: Callable) -> Callable:
    """Compile a function of plain loops over arrays. It runs without Python's lock."""
    from numba import njit

    return kept(lambda: njit(nogil=True, cache=True, error_model="numpy")(function))


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """Print one line if anything is compiled in the body of the `with`."""
    from numba.core import event

    class Announcer(event.Listener):
        said = False

        def on_start(self, event):
            if not self.said:
                print(f"compiling {what}, once on this machine ...", file=sys.stderr, flush=True)
            self.said = True

        def on_end(self, event):
            pass

    with event.install_listener("numba:compile", Announcer()):
        yield
