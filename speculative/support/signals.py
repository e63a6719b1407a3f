"""Ctrl-C and SIGTERM, which end a command at once while it begins, then as an exception, and at its end not at all."""

import contextlib
import functools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a program as Ctrl-C does."""


ENDINGS = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}
GRACE = 0.7  # seconds in which Python has to hear a signal; code in C, a compiler's for example, keeps it from that
LAST_WORDS: list[Callable] = []  # called before the program ends where Python did not hear the signal in time


def end(number: int) -> None:
    """Ends the process at once, with a line. Python's own way out may wait for threads that do not end."""
    word, status = ENDINGS[number]
    leave(word, status)


def leave(line: str, status: int) -> None:
    with contextlib.suppress(OSError):  # standard error is closed, or its disk is full
        os.write(2, f"{line}\n".encode())
    os._exit(status)


def listen() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, and SIGTERM Terminated."""
    heard.clear()
    for number in ENDINGS:
        signal.signal(number, hear)
    if os.name == "posix":
        watch_over()


def hear(number, frame):
    heard.append(number)
    last_heard[0] = time.monotonic()
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


heard = []  # since listen()
last_heard = [-math.inf]  # when, in whichever command of this process


def number_heard() -> int | None:
    """The last signal since listen() that Python heard."""
    return heard[-1] if heard else None


@functools.cache
def watch_over():
    """Ends the process where Python does not hear a signal in time, because its main thread is in code in C."""
    import fcntl

    ends = os.pipe()
    # Where a standard stream is closed, the pipe would take its number, and be read or written in its place.
    reader, writer = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 3) for one in ends)
    for one in ends:
        os.close(one)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch():
        while number := os.read(reader, 1)[0]:
            time.sleep(GRACE)
            is_heard = time.monotonic() - last_heard[0] < 2 * GRACE
            if number in ENDINGS and not is_heard and signal.getsignal(number) is hear:
                with contextlib.suppress(Exception):
                    for say in LAST_WORDS:
                        say()
                    sys.stdout.flush()
                end(number)

    threading.Thread(target=watch, daemon=True).start()


def interruption(error: BaseException | None) -> int | None:
    """The signal behind an exception, or None. Code in C may turn a KeyboardInterrupt into a SystemError, whose cause
    it then is."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error and (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def unraisable(error):
    """Hears of exceptions that Python cannot raise. A KeyboardInterrupt in numba's callbacks must not be lost."""
    number = interruption(error.exc_value)
    if number:
        end(number)
    sys.__unraisablehook__(error)


def ignore_signals():
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
