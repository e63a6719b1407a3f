"""Ctrl-C while a command imports its libraries: one line and status 130. A command imports this first.

A signal handler ends the process, as libraries turn the exception KeyboardInterrupt into others.
"""

import os
import signal


def end(*about: object) -> None:
    """End the process at once: nothing has begun."""
    os.write(2, b"interrupted\n")
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a shell
    signal.signal(signal.SIGINT, end)  # until `guarded` takes over
