"""Progress: a bar at a terminal, lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from tqdm import tqdm

SECONDS = 10
AT_ONCE = 2  # seconds: what is done sooner needs no line


@contextlib.contextmanager
def after(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Calls action, in a thread of its own, if the body of the `with` takes longer."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def notice(line: str, seconds: float = SECONDS) -> contextlib.AbstractContextManager[None]:
    """Prints the line on standard error if the body of the `with` takes longer."""
    return after(seconds, partial(print, line, file=sys.stderr, flush=True))


@contextlib.contextmanager
def lines(what: str, at_once: float = AT_ONCE) -> Iterator[None]:
    """Stands in for a bar where standard error is no terminal: it prints a line once this has taken at_once seconds,
    and another when it is done."""
    if sys.stderr.isatty():
        yield
        return
    start = time.monotonic()
    say = partial(print, file=sys.stderr, flush=True)
    with after(at_once, partial(say, f"{what} ...")):
        yield
    seconds = time.monotonic() - start
    if seconds > at_once:
        say(f"{what}: done in {seconds:.0f} s")


@contextlib.contextmanager
def working(what: str, total: float | None, unit: str, **options) -> Iterator[tqdm]:
    """A bar that counts units as it is told to, or lines."""
    with lines(what), tqdm(desc=what, total=total, unit=unit, leave=False, disable=None, **options) as bar:
        yield bar
