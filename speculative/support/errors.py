"""Errors that a user sees as one line, and the guard that every command runs in."""

import contextlib
import ctypes
import difflib
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator

from speculative.support.terminal import one_line, without_secrets

EXTRAS = {"scipy": "verify", "starlette": "serve", "uvicorn": "serve", "jax": "jax"}  # a library -> its extra
EXTRAS |= dict.fromkeys(("optax", "matplotlib", "safetensors"), "training")


class UserError(Exception):
    """Something the user can put right. Its message is one line: what was wrong, and what would be right."""

    def __init__(self, message: str):
        super().__init__(one_line(without_secrets(message)))


@contextlib.contextmanager
def naming_options(prefix: str) -> Iterator[None]:
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
    return line if len(line) <= 200 else f"{line[:200].rpartition(' ')[0] or line[:200]} ..."


def did_you_mean(name: str, known: Collection[str]) -> str:
    """ "; did you mean K?", or "" if no known name is like it."""
    near = [one for one in known if one.lower() == name.lower()]
    near += [one for one in known if name and one.startswith(name)]
    near += difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def install(extra: str) -> str:
    """Return the command that installs the libraries of an extra, in the versions of the tests."""
    return f'pip install -e ".[{extra}]" -c requirements.txt'


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def end_at_cut_file(number: int) -> None:
    """End the process with a line: the system sends SIGBUS to a thread that reads a mapped file beyond its end.

    A handler in Python would only be called after the read, which never returns."""
    os.write(2, b"error: a file was cut while it was read: no other program may write to a model's files or to packs\n")
    os._exit(2)


def guarded(action: Callable[[], object], interrupted: str = "interrupted") -> None:
    """Call action(), the whole of a command. A foreseen error ends the process with one line and status 2.

    Ctrl-C ends it with the line `interrupted` and status 130, SIGTERM with status 143. An unforeseen exception shows
    its traceback, by which it can be repaired.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if hasattr(signal, "SIGBUS"):
        ctypes.CDLL(None).signal(signal.SIGBUS, end_at_cut_file)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # an α that the terminal does not know is printed as \u03b1
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # from here on an exception, which takes files back
            signal.signal(signal.SIGINT, signal.default_int_handler)
        action()
        sys.stdout.flush()  # here, so that a full disk is explained
    except KeyboardInterrupt:
        sys.stdout.flush()
        print(interrupted, file=sys.stderr, flush=True)
        os._exit(130)  # at once: Python's own way out waits for threads, in which JAX may compile for a minute
    except UserError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        fail(f"{error}: {install(EXTRAS[library]) if library in EXTRAS else f'pip install {library}'}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't start new thread" not in str(error):
            raise
        fail(f"there is too little memory ({first_line(error)}): take smaller models, or raise the limit")
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes to standard output once more when it ends
        if isinstance(error, BrokenPipeError):  # nobody reads on
            sys.exit(128 + 13)  # as a shell says of a program that SIGPIPE ended
        fail(f"{error.filename or 'cannot write the output'}: {error.strerror or error}")


def fail(message: str) -> None:
    """End the process with one line on standard error and status 2."""
    print(f"error: {one_line(message)}", file=sys.stderr)
    sys.exit(2)
