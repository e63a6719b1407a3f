"""Says what a download, or the reading of a pipe, is waiting for, once nothing has come for a while."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from tqdm import tqdm

SECONDS = 10
VERIFYING = "verifying"  # at the bar's end as long as nothing is waited for


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


def notice(line: str) -> contextlib.AbstractContextManager[None]:
    """Prints the line on standard error if what is done here takes long."""
    return after(SECONDS, partial(print, line, file=sys.stderr, flush=True))


class Waiting:
    """How long nothing has come. Who receives something sets since."""

    def __init__(self):
        self.since = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


@contextlib.contextmanager
def patience(host: str, bar: tqdm) -> Iterator[Waiting]:
    """The bar ends with what is waited for and how long already; where no bar is shown, a line on standard error says
    it once."""
    over, waiting = threading.Event(), Waiting()

    def watch():
        said = False
        while not over.wait(min(1, SECONDS)):
            if bar.postfix == VERIFYING or waiting.seconds < SECONDS:
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
