"""The law of the texts of a decoder, whatever it does: errors, endless loops and odd results become one line."""

import contextlib
import io
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import numpy as np

from speculative.law.cases import Case
from speculative.law.paths import TooLarge, Walk, law_of
from speculative.law.traced import LIBRARIES, NoDistribution, TracedRandom, everywhere
from speculative.law.unknown import Unfollowed
from speculative.rules import NOT_IDS
from speculative.rules import ids_of as whole_numbers
from speculative.support.errors import UserError, first_line

MOST_PATHS = 2_000  # of a case
MOST_SECONDS = 10  # that one path may take
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, and not a KeyboardInterrupt that the function raised."""


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Raise the errors of somebody's code as UserErrors with its last line; but not Ctrl-C, and those that law_of or
    law_of_texts know."""
    try:
        yield
    except (NoDistribution, TooLarge, Interrupted):
        raise
    except BaseException as error:
        outside = [f for f in traceback.extract_tb(error.__traceback__) if not any(p in f.filename for p in LIBRARIES)]
        own = [frame for frame in outside if not frame.filename.startswith(HERE)]
        place = f"{os.path.basename(own[-1].filename)}, line {own[-1].lineno}: " if own else ""
        name = "" if isinstance(error, UserError) else type(error).__name__
        words = first_line(error) if str(error).strip() else ""
        raise UserError(f"{place}{': '.join(filter(None, (name, words)))}") from error


@contextlib.contextmanager
def somebodys_code() -> Iterator[None]:
    """Follow what is called within: its random numbers are ours, what it prints is not shown, Ctrl-C ends it, and so
    does an alarm, in the main thread of a system that has them."""

    def stop(number, frame):
        if number == signal.SIGINT:
            raise Interrupted
        if time.monotonic() - TracedRandom.walk.began > MOST_SECONDS:  # each second again, if the code catches it
            raise Unfollowed(f"no progress: one text takes more than {MOST_SECONDS} s")

    with contextlib.ExitStack() as stack:
        for quiet in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            stack.enter_context(quiet(io.StringIO()))
        stack.enter_context(np.errstate(all="ignore"))
        stack.enter_context(everywhere())
        TracedRandom.walk = Walk()  # whose path begins now
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGALRM, signal.SIGINT):
                stack.callback(signal.signal, number, signal.signal(number, stop))
            stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 1, 1)
        yield


def law_of_texts(decode: Callable, case: Case, most: int = MOST_PATHS, reseeds: bool = True) -> dict:
    """The law of the texts, () if a draw is impossible. Raises UserError.

    decode(draft, target, case, rng) -> the tokens after the prompt; somebody's code needs somebodys_code around it.
    """

    def counted(model):
        def rows(*args, **options):
            TracedRandom.walk.count()
            return model(*args, **options)

        return rows

    draft, target = map(counted, case.models())

    def program(rng):
        try:
            with errors_as_lines():
                return tuple(map(int, decode(draft, target, case, rng)))
        except NoDistribution:
            return ()

    return law_of(program, most, reseeds)


def ids_of(result, n_vocab: int) -> list[int]:
    """The ids of whatever a function returned: a list, a generator, an array or a tensor. Raises Unfollowed."""
    if hasattr(result, "__iter__"):
        result = result if isinstance(result, np.ndarray) else [*result]
        with contextlib.suppress(*NOT_IDS):
            ids = whole_numbers(np.ravel(result))
            if all(0 <= token < n_vocab for token in ids):
                return ids
    raise Unfollowed(f"it returned {result!r:.60}, not ids below {n_vocab}")
