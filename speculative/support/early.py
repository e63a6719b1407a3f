"""Ctrl-C while a command imports its libraries: one line and status 130. A command imports this first.

A signal handler ends the process, as libraries turn the exception KeyboardInterrupt into others. The import of signal
takes some milliseconds, in which the exception is shown as a line.
"""

import os
import sys


def end(*about: object) -> None:
    """End the process at once: nothing has begun."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def show(kind, *error) -> None:
    """Show an exception that nothing has caught."""
    if kind is KeyboardInterrupt:
        end()
    sys.__excepthook__(kind, *error)


sys.excepthook = show

import signal  # noqa: E402

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a shell
    signal.signal(signal.SIGINT, end)  # until `guarded` takes over
