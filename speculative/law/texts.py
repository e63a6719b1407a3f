"""The law of the texts of a decoder, whatever it does: errors, endless loops and odd results become one line."""

import contextlib
import dis
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator

import numpy as np

from speculative.law.cases import Case
from speculative.law.paths import TooLarge, Walk, law_of
from speculative.law.traced import NoDistribution, everywhere
from speculative.law.unknown import Unfollowed
from speculative.support.errors import UserError, first_line

MOST_PATHS = 5_000  # of a case; larger ones are left out
MOST_SECONDS = 10  # that one path may take
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Raised(UserError):
    """An error that the function raised."""


def raised(error: BaseException) -> Raised:
    """The error with the last line of the user's code in it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(HERE)]
    libraries = ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen")
    own = [frame for frame in frames if not any(part in frame.filename for part in libraries)] or frames
    place = f"{os.path.basename(own[-1].filename)}, line {own[-1].lineno}: " if own else ""
    if isinstance(error, UserError):
        return Raised(f"{place}{error}")
    words = f": {first_line(error)}" if str(error).strip() else ""
    return Raised(f"{place}{type(error).__name__}{words}")


def is_ctrl_c(error: BaseException) -> bool:
    """Whether it is a KeyboardInterrupt that no line raises: then somebody pressed Ctrl-C."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    return last.tb_frame.f_code.co_code[last.tb_lasti] != dis.opmap["RAISE_VARARGS"]


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Raise the errors of somebody's code as Raised, except Ctrl-C, NoDistribution and TooLarge."""
    try:
        yield
    except (NoDistribution, TooLarge, Raised):
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise raised(error) from error


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Unfollowed in what takes longer, if this is the main thread of a system that has such alarms."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number, frame):
        raise Unfollowed(f"no progress: one text takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # each second again, if the code catches it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def law_of_texts(decode: Callable, case: Case, outcome_of: Callable | None = None, reseeds: bool = True) -> dict:
    """The law of the texts, or of outcome_of(text, walk). The text is () if a draw is impossible. Raises UserError.

    decode(draft, target, case, rng) -> the tokens after the prompt.
    """
    walk = Walk(reseeds)

    def watched(model, is_target):
        def rows(x, *args, **options):
            walk.idle()
            if is_target:
                walk.windows.append(tuple(map(int, np.ravel(x))))
            return model(x, *args, **options)

        return rows

    draft, target = (watched(model, i) for i, model in enumerate(case.models()))

    def program(rng):
        try:
            with errors_as_lines(), limited(MOST_SECONDS):
                text = tuple(map(int, decode(draft, target, case, rng)))
        except NoDistribution:
            text = ()
        return outcome_of(text, walk) if outcome_of else text

    with everywhere(walk, getattr(decode, "function", decode)):
        return law_of(program, walk, MOST_PATHS)


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
