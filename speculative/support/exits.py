"""The end of every command: a result, or one line that says why there is none.

Signals are answered from begin() on. Before that, in the few hundredths of a second in which Python itself starts, the
answer is Python's own.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable

from speculative.support.errors import UserError, first_line, shortened
from speculative.support.extras import advice
from speculative.support.limits import too_low
from speculative.support.signals import (
    ENDINGS,
    end,
    ignore_signals,
    interruption,
    leave,
    listen,
    number_heard,
    unraisable,
)
from speculative.support.terminal import Shown, one_line

OF_LIBRARIES = ("JAX_", "XLA_", "NUMBA_", "TQDM_")  # settings in the environment, some of which end their import
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN)  # no more files, no more processes


def begin() -> None:
    """To be called before the slow imports of a command. After them, guarded() sees to how it ends.

    Until then Ctrl-C and SIGTERM end the program at once, with a line; what fails is a line as well.
    """
    limit = too_low()
    if limit:
        fail(f"error: {limit}", 2)
    for number in ENDINGS:
        signal.signal(number, lambda number, _: end(number))
    sys.excepthook = lambda kind, error, trace: fail(*explained(error))


def begin_package() -> None:
    """begin(), for the __init__ of a package whose modules are commands: python -m PACKAGE.MODULE."""
    if sys.argv[:1] == ["-m"]:  # as it stands until Python has found the module; else the package is just imported
        begin()


def guarded(action: Callable, interrupted: str = "interrupted") -> None:
    """Calls the action of a command. An exception ends it with the line and the status that explained() gives, Ctrl-C
    with the line `interrupted` and 130, and SIGTERM with 143."""
    try:
        try:
            listen()
            perform(action)
            ignore_signals()  # nothing is left to be interrupted
        except (KeyboardInterrupt, Exception) as error:
            ignore_signals()
            conclude(error, interrupted)
    except KeyboardInterrupt as again:  # before the first was seen to
        end(interruption(again))


def perform(action):
    sys.unraisablehook = unraisable
    sys.stdout = protected(sys.stdout)
    sys.stderr = protected(sys.stderr)
    try:
        action()
    finally:
        sys.stdout.flush()  # here, so that a full disk is explained


def protected(stream):
    """A standard stream that takes any text, also where it is closed."""
    stream = stream or open(os.devnull, "w")  # noqa: SIM115
    stream.reconfigure(errors="backslashreplace")  # an α that the terminal does not know is shown as \u03b1
    return stream if isinstance(stream, Shown) else Shown(stream)


def conclude(error: BaseException, interrupted: str) -> None:
    """Ends the program over an exception."""
    # Code in C may swallow the KeyboardInterrupt, and then fail over what it left undone.
    number = interruption(error) or number_heard()
    if number:
        word, status = ENDINGS[number]
        line = interrupted.replace("interrupted", word)
    else:
        line, status = explained(error)
    # JAX may be compiling in threads of its own: Python's way out crashes over them, or waits for other processes that
    # wait for this one.
    if "jax" in sys.modules and (number or "JAX_COORDINATOR_ADDRESS" in os.environ):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        leave(one_line(line), status)
    fail(line, status)


def explained(error: BaseException) -> tuple[str, int]:
    """(the line that says what was wrong, the exit status). The status is 2 for foreseen errors, 1 for others.

    The line is "" where nobody is left to read it. Silences a standard output that cannot be written to.
    """
    if isinstance(error, UserError):
        return f"error: {error}", 2
    if isinstance(error, ModuleNotFoundError):
        return f"error: {first_line(error)}: {advice(error.name)}", 2
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "error: the memory is full: a smaller model needs less, and so does --dtype int8 where there is one", 2
    # By its name, as JAX may not be imported. Gloo, which links processes, raises errors of other classes.
    if type(error).__name__ == "JaxRuntimeError" or "Gloo" in str(error):
        return f"error: JAX gave up: {first_line(error)}; it may need more memory, or a smaller model or --batch", 2
    if str(error) == "can't start new thread" or getattr(error, "errno", None) in EXHAUSTED:
        return f"error: {getattr(error, 'strerror', error)}: `ulimit -a` shows what this process may have", 2
    if isinstance(error, OSError):
        return explained_os_error(error), 2
    if sys.flags.dev_mode:
        sys.__excepthook__(type(error), error, error.__traceback__)
    quoted = [name for name, value in os.environ.items() if name.startswith(OF_LIBRARIES) and repr(value) in str(error)]
    hint = f" ({quoted[0]} may be the cause)" if quoted else ""
    kind = type(error).__name__
    return f"error: {kind}: {first_line(error)}{hint}; python -X dev in place of python shows where", 1


def explained_os_error(error: OSError) -> str:
    if error.strerror is None:  # a library's that cannot be loaded
        return f"error: {first_line(error)}: it is damaged, or `ulimit` leaves too little memory"
    if error.filename is not None:
        return f"error: {error.filename}: {error.strerror}"
    # Else it is about standard output, to which Python would try to write again on its way out.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # whoever read it has gone
        return ""
    return f"error: cannot write the output: {error.strerror}"


def fail(message: str, status: int) -> None:
    """Ends with a message of one line."""
    ignore_signals()
    try:
        if sys.stderr:  # else it is closed
            print(shortened(one_line(message)), end="\n" if message else "", file=sys.stderr)
    except OSError:  # standard error cannot be written to: its disk is full, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(status)
