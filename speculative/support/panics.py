"""Panics of a library that is written in Rust: it prints lines, and raises an error that no `except Exception`
catches."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from threading import Lock

from speculative.support.errors import first_line
from speculative.support.process import taken_at_forks

redirecting = taken_at_forks(Lock())


@contextlib.contextmanager
def without_panic() -> Iterator[None]:
    """Raise ValueError in place of the exception by which the library ends a thread, without the lines that it prints
    of it. The body of the `with` calls the library."""
    with redirecting, quiet_if_it_fails():
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # a class that cannot be imported
                raise
            raise ValueError(f"the library tokenizers panics: {first_line(error)}") from None


@contextlib.contextmanager
def quiet_if_it_fails() -> Iterator[None]:
    """Hold back the lines that the body of the `with` writes to the system's standard error, and print them if the
    body succeeds: other threads write there too."""
    try:
        terminal = os.dup(2)
    except OSError:  # it was closed
        yield
        return
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
        held_back.seek(0)
        os.write(2, held_back.read())
