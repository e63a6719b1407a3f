"""Errors that a user sees as one line, their wording, and the guard that ends a command by one of them."""

import contextlib
import difflib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from textwrap import shorten

from speculative.support.signals import handle_signals, prepare_streams
from speculative.support.terminal import one_line, without_secrets

EXTRAS = {"scipy": "verify", "starlette": "serve", "uvicorn": "serve", "jax": "jax"}  # a library -> its extra
EXTRAS |= dict.fromkeys(("optax", "matplotlib"), "training")

NO_THREAD = "can't start new thread"  # Python says it if threads or memory are limited
MORE_THREADS = "raise the limit of processes (ulimit -u) or of memory (ulimit -v), or take fewer with --threads"


class UserError(Exception):
    """Something the user can put right. Its message is one line: what was wrong, and what would be right."""

    def __init__(self, message: str):
        super().__init__(one_line(without_secrets(message)))


@contextlib.contextmanager
def naming_options(prefix: str) -> Iterator:
    """Errors in the body of the `with` name an option with this prefix instead of --: "/" in a session, "" in Python. A
    command line in them stays as it is typed."""
    try:
        yield
    except UserError as error:
        command = r"(python (?:-m|main\.py) [^,;:]*)"
        message = re.sub(rf"{command}|--([A-Za-z_]+)", lambda match: match[1] or prefix + match[2], str(error))
        raise UserError(message) from None


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, its words up to the 200th character."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return shorten(line, 200, placeholder=" ...")


def did_you_mean(name: str, names: Collection[str]) -> str:
    """ "; did you mean K?", or "" if none of the names is like it."""
    alike = [other for other in names if other.lower() == name.lower()]
    if name:
        alike += [other for other in names if other.startswith(name)]
    alike += difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {alike[0]}?" if alike else ""


def install(extra: str) -> str:
    """Return the command that installs the libraries of an extra, in the versions of the tests."""
    return f'pip install -e ".[{extra}]" -c requirements.txt'


def explanation(error: Exception) -> str:
    """Return the line for a foreseen error, "" for another."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        library = str(error.name).partition(".")[0]
        how = install(EXTRAS[library]) if library in EXTRAS else f"pip install {library}"
        return f"{error}: {how}"
    if isinstance(error, MemoryError):
        return f"there is too little memory ({first_line(error)}): take smaller models, or raise the limit"
    if NO_THREAD in str(error):
        return f"the system starts no more threads ({first_line(error)}): {MORE_THREADS}"
    if isinstance(error, OSError):
        return f"{error.filename or 'cannot write the output'}: {error.strerror or error}"
    return ""


# ---- The end of a command --------------------------------------------------------------------------------------------


def guarded(action: Callable[..., object], *arguments: object, interrupted: str = "interrupted") -> None:
    """Call action(*arguments), the whole of a command. A foreseen error ends the process with one line and status 2.

    Ctrl-C ends it with the line `interrupted` and status 130, SIGTERM with status 143. An unforeseen exception shows
    its traceback, by which it can be repaired.
    """
    prepare_streams()
    try:
        handle_signals()
        action(*arguments)
        sys.stdout.flush()  # here, so that a full disk is explained
    except KeyboardInterrupt:
        sys.stdout.flush()
        print(interrupted, file=sys.stderr, flush=True)
        os._exit(130)  # at once: Python's own way out waits for threads, in which JAX may compile for a minute
    except Exception as error:
        message = explanation(error)
        if not message:
            raise
        if isinstance(error, OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes to standard output once more when it ends
        if isinstance(error, BrokenPipeError):  # nobody reads on
            sys.exit(128 + 13)  # as a shell says of a program that SIGPIPE ended
        print(f"error: {one_line(message)}", file=sys.stderr)
        sys.exit(2)
