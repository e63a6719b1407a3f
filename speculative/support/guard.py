"""The guard that every command runs in: its streams, its signals, and the line and the status by which it ends."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

from speculative.support.errors import explanation
from speculative.support.terminal import one_line


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
    prepare_streams()
    try:
        handle_signals()
        action()
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
        fail(message)


def prepare_streams() -> None:
    """Open the standard streams that were closed, and let them print characters that the terminal does not know, such
    as α, as \\u03b1."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def handle_signals() -> None:
    """Let SIGTERM end the process, SIGBUS with a line, and Ctrl-C by an exception, which takes files back."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if hasattr(signal, "SIGBUS"):
        ctypes.CDLL(None).signal(signal.SIGBUS, end_at_cut_file)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def fail(message: str) -> None:
    """End the process with one line on standard error and status 2."""
    print(f"error: {one_line(message)}", file=sys.stderr)
    sys.exit(2)
