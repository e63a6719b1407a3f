"""What a command line owes its user, whatever happens: a result, or one line that says why there is none."""

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from plumbing.errors import UserError, first_line


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a program as Ctrl-C does."""


ENDINGS = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}
LEAST = 600 * 2**20  # bytes of addresses that a run of the smallest models needs, on two cores
GRACE = 0.7  # seconds in which Python has to hear a signal; code in C, a compiler's for example, keeps it from that
LAST_WORDS: list[Callable] = []  # called before the program ends where Python did not hear the signal in time


def check_limit() -> None:
    """Ends the program in a line where `ulimit -v` leaves less than its imports take: with less, one of the libraries
    that they load ends it with a stack trace, or tries again for ever and hears no signal."""
    with contextlib.suppress(ImportError):  # Windows
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY and limit < LEAST:
            found = (
                f"`ulimit -v` gives {limit / 1e9:.2f} GB of addresses, and NumPy and numba take {LEAST / 1e9:.2f} GB"
            )
            fail(f"error: {found} to start with: set it higher", 2)


def begin() -> None:
    """To be called before a command's slow imports; after them, guarded() sees to how it ends.

    Until then Ctrl-C and SIGTERM end the program at once, with a line; a package that is missing is a line as well.
    """
    check_limit()
    for number in ENDINGS:
        signal.signal(number, lambda number, _: end(number))
    sys.excepthook = uncaught


def begin_package() -> None:
    """begin(), in a package of which Python runs a module by its name: python -m PACKAGE.MODULE."""
    if sys.argv[:1] == ["-m"]:  # as Python leaves it until it has found that module
        begin()


def uncaught(kind, error, trace):
    """An exception that ends the program. Where it says what to do, it is shown as a line."""
    if isinstance(error, UserError):
        fail(f"error: {error}", 2)
    if isinstance(error, ModuleNotFoundError):
        fail(f"error: {first_line(error)}: pip install -r requirements.txt", 2)
    sys.__excepthook__(kind, error, trace)


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
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


heard = []


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
            if number in ENDINGS and not heard and signal.getsignal(number) is hear:
                with contextlib.suppress(Exception):
                    for say in LAST_WORDS:
                        say()
                    sys.stdout.flush()
                end(number)

    threading.Thread(target=watch, daemon=True).start()


def guarded(action: Callable, interrupted: str = "interrupted") -> None:
    """Calls action, of any command. An error that explained() knows ends it with a line and status 2, Ctrl-C with the
    line `interrupted` and 130, and SIGTERM with 143."""
    listen()
    sys.unraisablehook = unraisable
    sys.stdout, sys.stderr = sys.stdout or open(os.devnull, "w"), sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # an α that the terminal does not know is shown as \u03b1
    try:
        try:
            action()
        finally:
            sys.stdout.flush()  # here, so that a full disk is explained below
        ignore_signals()  # nothing is left to be interrupted
    except (KeyboardInterrupt, Exception) as error:
        # Code in C may pass over the KeyboardInterrupt, and fail over what it did not do then.
        if not (number := interruption(error) or (heard and heard[-1])):
            if (line := explained(error)) is None:
                raise
            fail(line, 2)
        word, status = ENDINGS[number]
        line = interrupted.replace("interrupted", word)
        if "jax" in sys.modules:  # it may be compiling in threads of its own, over which Python's way out crashes
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            leave(line, status)
        fail(line, status)


def explained(error: Exception) -> str | None:
    """The line that says what was wrong; "" where nobody is left to read it, None where no line would help. Silences a
    standard output that cannot be written to."""
    if isinstance(error, UserError):
        return f"error: {error}"
    if isinstance(error, MemoryError):
        return "error: the memory is full: a smaller model needs less, and so does --dtype int8 where there is one"
    if type(error).__name__ == "JaxRuntimeError":  # whose class is known only where JAX was imported
        return f"error: JAX gave up: {first_line(error)}; it may need more memory, or a smaller model or --batch"
    if not isinstance(error, OSError):
        return None
    if error.strerror is None:  # a library's that cannot be loaded
        return f"error: {first_line(error)}: it is damaged, or `ulimit` leaves too little memory"
    if error.filename is not None:
        return f"error: {error.filename}: {error.strerror}"
    # Else it is the standard output's, to which Python would try to write again on its way out.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return "" if isinstance(error, BrokenPipeError) else f"error: cannot write the output: {error.strerror}"


def interruption(error: BaseException | None) -> int | None:
    """The signal behind an exception, or None. Code in C may turn a KeyboardInterrupt into a SystemError, whose cause
    it then is."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error and (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def unraisable(error):
    """An exception where none can be raised: a KeyboardInterrupt in numba's callbacks, say, must not be passed over."""
    if number := interruption(error.exc_value):
        end(number)
    sys.__unraisablehook__(error)


def ignore_signals():
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)


def fail(message, status):
    """Ends with a message of one line, whatever is in the names that it quotes."""
    ignore_signals()
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)
    try:
        if sys.stderr:  # else it is closed
            print(line, end="\n" if line else "", file=sys.stderr)
    except OSError:  # standard error cannot be written to: its disk is full, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(status)
