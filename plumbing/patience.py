"""What is shown while something takes long: at a terminal a bar, elsewhere lines; and what a download waits for."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tqdm import tqdm

SECONDS = 10
AT_ONCE = 2  # seconds: what is done sooner needs no line
VERIFYING = "verifying"  # at the bar's end as long as nothing is waited for


class Limits(NamedTuple):
    """How patient a download is: seconds, but for the retries."""

    connect: float = 10  # until a server answers
    read: float = 30  # until the next bytes of a file arrive
    waiting: float = 120  # in a row in which nothing comes, pauses among them
    retries: int = 7  # after failures in a row, once there is a part of the file
    retries_at_start: int = 2  # the same before that
    pause: float = 0.5  # after the second failure; it doubles with each further one
    longest_pause: float = 60  # however many there were
    jitter: float = 0.5  # added to a pause at random, at most
    silent: float = SECONDS  # until it is said that nothing comes
    sleep: Callable[[float], object] = time.sleep

    def pauses(self) -> dict[str, float]:
        """As urllib3.Retry takes them."""
        return {"backoff_factor": self.pause, "backoff_max": self.longest_pause, "backoff_jitter": self.jitter}


PATIENT = Limits()


@contextlib.contextmanager
def after(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Calls action, in a thread of its own, if what is done here takes longer."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def notice(line: str, seconds: float = SECONDS) -> contextlib.AbstractContextManager[None]:
    """Prints the line on standard error if what is done here takes longer."""
    return after(seconds, partial(print, line, file=sys.stderr, flush=True))


class Waiting:
    """How long nothing has come. Whoever receives something sets `since`."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.since = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def left(self) -> float:
        """Seconds until limits.waiting is reached."""
        return self.limits.waiting - self.seconds


@contextlib.contextmanager
def lines(what: str, at_once: float = AT_ONCE) -> Iterator[None]:
    """Where standard error is no terminal, and so shows no bar: a line on it once this has taken at_once seconds, and
    another when it is done."""
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


@contextlib.contextmanager
def patience(host: str, bar: tqdm, limits: Limits) -> Iterator[Waiting]:
    """Says what is waited for and how long already, once nothing has come for a while: at the end of the bar, or where
    none is shown in one line on standard error."""
    over = threading.Event()
    waiting = Waiting(limits)

    def watch():
        said = False
        while not over.wait(min(1, limits.silent)):
            if bar.postfix == VERIFYING or waiting.seconds < limits.silent:
                continue
            reason = (bar.postfix or "no answer").partition(";")[0]
            line = f"{reason}; waiting for {host} for {waiting.seconds:.0f} s, Ctrl-C ends it"
            if not bar.disable:
                bar.set_postfix_str(line)
            elif not said:
                print(line, file=sys.stderr, flush=True)
            said = True

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield waiting
    finally:
        over.set()
        watcher.join()
