"""The law of the texts of a decoder, whatever it does: errors, endless loops and odd results become one line."""

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import numpy as np

from speculative.law.cases import Case
from speculative.law.paths import TooLarge, Walk, law_of
from speculative.law.traced import NoDistribution, TracedRandom, everywhere
from speculative.law.unknown import Again, Unfollowed
from speculative.support.errors import UserError, first_line

MOST_PATHS = 2_000  # of a case
MOST_SECONDS = 10  # that one path may take
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen")


class Raised(UserError):
    """An error that the function raised."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, and not a KeyboardInterrupt that the function raised."""


def raised(error: BaseException) -> Raised:
    """The error with the last line of the user's code in it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(HERE)]
    own = [frame for frame in frames if not any(part in frame.filename for part in LIBRARIES)] or frames
    at = error if isinstance(error, SyntaxError) and error.filename else own[-1] if own else None
    place = f"{os.path.basename(at.filename)}, line {at.lineno}: " if at else ""
    if isinstance(error, UserError):
        return Raised(f"{place}{error}")
    words = f": {first_line(getattr(error, 'msg', error))}" if str(error).strip() else ""
    return Raised(f"{place}{type(error).__name__}{words}")


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Raise the errors of somebody's code as Raised, except Ctrl-C and those that law_of or program know."""
    try:
        yield
    except (NoDistribution, TooLarge, Raised, Interrupted, Again):
        raise
    except BaseException as error:
        raise raised(error) from error


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
        stack.enter_context(everywhere())
        TracedRandom.walk = Walk()  # whose path begins now
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGALRM, signal.SIGINT):
                stack.callback(signal.signal, number, signal.signal(number, stop))
            stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 1, 1)
        yield


def law_of_texts(
    decode: Callable, case: Case, outcome_of: Callable | None = None, reseeds: bool = True, most: int = MOST_PATHS
) -> dict:
    """The law of the texts, or of outcome_of(text, walk). The text is () if a draw is impossible. Raises UserError.

    decode(draft, target, case, rng) -> the tokens after the prompt; somebody's code needs somebodys_code around it.
    """
    walk = Walk(reseeds)

    def watched(model, is_target):
        def rows(x, *args, **options):
            walk.idle()
            if is_target and not walk.window:
                walk.window = tuple(map(int, np.ravel(x)))
            return model(x, *args, **options)

        return rows

    draft, target = (watched(model, i) for i, model in enumerate(case.models()))

    def program(rng):
        try:
            with errors_as_lines():
                text = tuple(map(int, decode(draft, target, case, rng)))
        except NoDistribution:
            text = ()
        return outcome_of(text, walk) if outcome_of else text

    return law_of(program, walk, most)


def ids_of(result, n_vocab: int) -> list[int]:
    """The ids of whatever a function returned: a list, a generator, an array or a tensor. Raises Unfollowed."""
    if not hasattr(result, "__iter__"):
        raise Unfollowed(f"it returned {type(result).__name__}, not tokens")
    if not isinstance(result, np.ndarray):
        result = list(result)
    with contextlib.suppress(TypeError, ValueError):
        ids = np.array(result).ravel() if len(result) else np.zeros(0)  # [n]
        if (ids == ids.astype(int)).all() and (ids >= 0).all() and (ids < n_vocab).all():
            return ids.astype(int).tolist()
    raise Unfollowed(f"it returned {result!r:.60}, not ids below {n_vocab}")
