"""Compiling with numba, whose results are kept on the disk where that can be written to, and else made anew."""

import contextlib
import functools
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from plumbing.errors import UserError


def kept(make: Callable[[], Any]) -> Any:
    """What make() gives, which asks numba to keep what it compiles: njit(cache=True), or an import with some of it.

    Raises UserError where no folder can be written to at all.
    """
    import numba

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
def say_nothing_is_kept(why: str) -> None:
    print(f"numba cannot keep what it compiles ({why}), so every run compiles; NUMBA_CACHE_DIR helps", file=sys.stderr)


@functools.cache
def say_it_is_damaged(why: str) -> None:
    print(f"what numba has kept is damaged ({why}), so it is compiled again", file=sys.stderr)
