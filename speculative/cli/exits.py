"""What a command line owes its user, whatever happens: a result, or one line that says why there is none."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from speculative.errors import UserError, first_line


def interruptible() -> None:
    """Ctrl-C ends the program at once, with a line; for the time of its imports, until run() sees to it."""
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))


def run(main: Callable, doc: str) -> None:
    """Calls main with the flags that were typed. Ends with status 0, 2 after an error or 130 after Ctrl-C."""
    import fire

    from .flags import usage, with_values

    def typed():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = unraisable
        sys.stdout, sys.stderr = sys.stdout or open(os.devnull, "w"), sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # an α that the terminal does not know is shown as \u03b1
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(f"{doc}\n{usage(main)}")
        else:
            fire.Fire(fire.decorators.SetParseFn(str)(main), command=with_values(sys.argv[1:]))
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to be interrupted

    try:
        guarded(typed)
    except MemoryError:
        fail("error: the memory is full: a smaller model needs less, and so does --dtype int8", 2)
    except RuntimeError as error:
        if type(error).__name__ != "JaxRuntimeError":  # whose class is known only where JAX was imported
            raise
        fail(f"error: JAX gave up: {first_line(error)}; it may need more memory, or a smaller model or --batch", 2)
    except OSError as error:  # of the standard output: every other file's is a UserError
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as Python would try again on its way out
        fail("" if isinstance(error, BrokenPipeError) else f"error: cannot write the output: {error.strerror}", 2)


def guarded(action: Callable, interrupted: str = "interrupted") -> None:
    """Calls action, of any command. A UserError ends it with its line and status 2, Ctrl-C with the other and 130."""
    try:
        action()
    except (KeyboardInterrupt, Exception) as error:
        if not is_interruption(error):
            if isinstance(error, UserError):
                fail(f"error: {error}", 2)
            raise
        if "jax" in sys.modules:  # it may be compiling in threads of its own, over which Python's way out crashes
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os.write(2, f"{interrupted}\n".encode())
            os._exit(130)
        fail(interrupted, 130)


def is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind it: code in C may turn a KeyboardInterrupt into a SystemError, and be its cause."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def unraisable(error):
    """An exception where none can be raised: a KeyboardInterrupt in numba's callbacks, say, must not be passed over."""
    if is_interruption(error.exc_value):
        os.write(2, b"interrupted\n")
        os._exit(130)
    sys.__unraisablehook__(error)


def fail(message, status):
    """Ends with a message of one line, whatever is in the names that it quotes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)
    print(line, end="\n" if line else "", file=sys.stderr)
    sys.exit(status)
