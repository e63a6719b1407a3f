"""Compiling with numba. What our functions become is kept for each user, wherever a copy of this repository lies.

It lies in the user's cache, in a folder for these very sources and this version of numba; with NUMBA_CACHE_DIR where
that says. Where nothing can be written, every run compiles.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from speculative.support.errors import UserError, first_line

ROOT = Path(__file__).parents[2]
PACKAGES = ("speculative",)
SOURCES = (
    "speculative/support/compiling.py",
    "speculative/checkpoints/*.py",
    "speculative/engines/**/*.py",
)  # of all that is compiled
MONTH = 30 * 24 * 3600  # seconds after which what nobody has used is removed


def number_of_sources() -> str:
    """A number for all that is compiled, as it lies on the disk now."""
    number = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        number.update(path.read_bytes())
    return number.hexdigest()


RUNNING = number_of_sources()  # taken as soon as this program begins: it goes on with these when the files change


@functools.cache
def has_numba() -> bool:
    """True if anything can be compiled here."""
    try:
        import numba
    except ImportError:
        return False
    except ValueError as error:  # a setting of its own in the environment
        raise UserError(f"numba cannot be used ({first_line(error)}): check what NUMBA_... is set to") from error
    return not numba.config.DISABLE_JIT


def kept(make: Callable[[], Any]) -> Any:
    """The result of make(), which asks numba to keep what it compiles: njit(cache=True), or an import with some of it.

    Raises UserError where no folder can be written to at all.
    """
    import numba

    keep_for_the_user()
    forgive_the_cache()
    try:
        return make()
    except RuntimeError as error:  # neither the source's folder nor the user's cache can be written
        if "cannot cache function" not in str(error):
            raise
        say_nothing_is_kept("no folder for it can be written to")
        numba.config.CACHE_DIR = folder_until_the_end()
        return make()


@functools.cache
def compiled(function: Callable) -> Callable:
    """A function of plain loops over arrays, compiled: it runs without Python's lock."""
    from numba import njit

    return kept(lambda: njit(nogil=True, cache=True, error_model="numpy")(function))


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """Prints a line where anything is compiled: what it is."""
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


# ---- Where it is kept ------------------------------------------------------------------------------------------------


def cache_home() -> Path:
    """The folder in which this user's programs keep what they can make again. A relative one does not count, says the
    XDG Base Directory Specification: it would be another one in each folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "speculative-sampling"


@functools.cache
def version() -> str:
    """A number for the sources and for the compiler."""
    import llvmlite
    import numba

    return hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {RUNNING}".encode()).hexdigest()[:16]


@functools.cache
def folder_of_the_user() -> Path | None:
    """The folder, which is used now; None where it cannot be written to. Those of other versions that nobody has used
    for a month are removed."""
    folder = cache_home() / f"kernels-{version()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        tempfile.TemporaryFile(dir=folder).close()
        for other in folder.parent.glob("kernels-*"):
            if time.time() - other.lstat().st_mtime > MONTH:
                shutil.rmtree(other, ignore_errors=True)
    except (OSError, RuntimeError):  # the latter where there is no home
        return None
    return folder


@functools.cache
def keep_for_the_user() -> None:
    """Makes numba ask for this folder first, but after NUMBA_CACHE_DIR. By itself it keeps things beside the source."""
    from numba.core import caching

    class OfThisUser(caching._CacheLocator):
        def __init__(self, folder, line):
            self.folder = folder
            self.line = line

        def get_cache_path(self):
            return str(self.folder)

        def get_source_stamp(self):
            return version()

        def get_disambiguator(self):
            return str(self.line)

        @classmethod
        def from_function(cls, py_func, py_file):
            ours = (ROOT / package in Path(py_file).resolve().parents for package in PACKAGES)
            if not any(ours) or not folder_of_the_user():
                return None
            return cls(folder_of_the_user(), py_func.__code__.co_firstlineno)

    caching.CacheImpl._locator_classes.insert(1, OfThisUser)


@functools.cache
def folder_until_the_end() -> str:
    try:
        folder_until_the_end.folder = tempfile.TemporaryDirectory()
    except OSError as error:
        raise UserError("numba needs a folder to write to: NUMBA_CACHE_DIR or TMPDIR names one") from error
    return folder_until_the_end.folder.name


@functools.cache
def forgive_the_cache() -> None:
    """numba ends with an OSError where it cannot write what it has compiled, and with any error where what it reads
    again is damaged, by a power cut for example. Now it does without, and compiles again. Nor is anything kept once the
    sources have changed under a running program, as by an update."""
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
        if number_of_sources() != RUNNING:
            return  # a module that was imported since may be a newer one
        try:
            save(self, sig, data)
        except OSError as error:
            say_nothing_is_kept(error.strerror)

    Cache.save_overload = save_overload
    Cache.load_overload = load_overload


@functools.cache
def say_nothing_is_kept(why: str) -> None:
    print(f"numba cannot keep what it compiles ({why}), so every run compiles; NUMBA_CACHE_DIR helps", file=sys.stderr)


@functools.cache
def say_it_is_damaged(why: str) -> None:
    print(f"what numba has kept is damaged ({why}), so it is compiled again", file=sys.stderr)
