"""A process made ready for a command: its standard streams, its signals, and locks in one that forks."""

import ctypes
import io
import os
import signal
import sys
from typing import Protocol, TypeVar


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def end_at_cut_file(number: int) -> None:
    """End the process with a line: the system sends SIGBUS to a thread that reads a mapped file beyond its end.

    A handler in Python would only be called after the read, which never returns."""
    os.write(2, b"error: a file was cut while it was read: no other program may write to a model's files or to packs\n")
    os._exit(2)


def prepare_streams() -> None:
    """Open the standard streams that were closed, and let them print characters that the terminal does not know, such
    as α, as \\u03b1."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not a notebook's, which prints all characters
            stream.reconfigure(errors="backslashreplace")


def handle_signals() -> None:
    """Let SIGTERM end the process, SIGBUS with a line, and Ctrl-C by an exception, which takes files back."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if hasattr(signal, "SIGBUS"):
        ctypes.CDLL(None).signal(signal.SIGBUS, end_at_cut_file)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# ---- Forks -----------------------------------------------------------------------------------------------------------


class Lock(Protocol):
    def acquire(self) -> bool: ...
    def release(self) -> None: ...


L = TypeVar("L", bound=Lock)


def taken_at_forks(lock: L) -> L:
    """Take the lock before each fork, and give it back in both processes, as the module logging does: else a child
    would wait for ever for a lock that another thread of its parent held. Return the lock."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_child=lock.release, after_in_parent=lock.release)
    return lock
