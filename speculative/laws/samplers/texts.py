"""The law of the texts of a decoder, whatever it does: errors and endless loops become one line."""

import contextlib
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import numpy as np

from speculative.laws.generators import NoDistribution
from speculative.laws.paths import TooManyPaths, law_of
from speculative.laws.samplers.cases import Case
from speculative.laws.samplers.replaced import LIBRARIES, replaced
from speculative.laws.samplers.stand_ins import SaltedStandIns, StandIns, UnknownStandIns
from speculative.laws.uniform import NotFollowed
from speculative.laws.walks import WALK
from speculative.support.errors import UserError, first_line

MOST_PATHS = 2_000  # of a case
MOST_SECONDS = (10, 60)  # that one path may compute, and that it may take with all its waiting


@contextlib.contextmanager
def as_user_errors() -> Iterator[None]:
    """Raise the errors of somebody's code as UserErrors, and what ours cannot follow in it as NotFollowed.

    The errors that the callers know pass."""
    try:
        yield
    except (NoDistribution, TooManyPaths, KeyboardInterrupt):
        raise
    except UserError as error:
        raise NotFollowed(words_of(error)) from error
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM:  # as support.signals ends the process
            raise
        raise UserError(words_of(error, type(error).__name__)) from error


def words_of(error: BaseException, name: str = "") -> str:
    """Where somebody's code raised it, its name and its first line of words."""
    parts = (raised_at(error), name, first_line(error))
    said = filter(None, parts)
    return ": ".join(dict.fromkeys(said))


def raised_at(error: BaseException) -> str:
    """The last line of somebody's own code that the error came through, "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in LIBRARIES)]
    if not own:
        return ""
    file = os.path.basename(own[-1].filename)
    return f"{file}, line {own[-1].lineno}"


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """What is called within prints nothing, and an alarm ends what takes too long, in the main thread of a system that
    has alarms."""

    def stop(number, frame):
        if np.any(WALK.seconds() > MOST_SECONDS):  # each second again, if the code catches it
            most, most_waiting = MOST_SECONDS
            raise UserError(
                f"no progress: one text computes for more than {most} s, or takes more than {most_waiting} s"
            )

    WALK.restart_clocks()
    quiet = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(quiet))
        stack.enter_context(contextlib.redirect_stderr(quiet))
        stack.enter_context(np.errstate(all="ignore"))
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, stop))
            stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 1, 1)
        yield


@contextlib.contextmanager
def stand_ins_in(function: Callable, stand_ins: StandIns | None = None) -> Iterator[None]:
    """Within, the function's random numbers are those of the stand-ins, by default unknown ones; and it is quiet."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(function, stand_ins or UnknownStandIns()))
        if "torch" in sys.modules:
            stack.enter_context(replaced_in_torch(stand_ins))
        stack.enter_context(quietly())
        yield


def replaced_in_torch(stand_ins: StandIns | None) -> contextlib.AbstractContextManager:
    """Within, PyTorch's random numbers are unknown too, or have other seeds."""
    if isinstance(stand_ins, SaltedStandIns):
        return stand_ins.salted_torch()
    from speculative.laws.pytorch.torches import unknown_tensors

    return unknown_tensors()


def program_of(decode: Callable, case: Case) -> Callable:
    """program(rng) -> the text, () if a draw is impossible. Raises UserError.

    decode(draft, target, case, rng) -> the tokens after the prompt; somebody's code needs `stand_ins_in` around it.
    """

    def counted(model):
        def rows(*args, **options):
            WALK.count()
            return model(*args, **options)

        return rows

    draft, target = map(counted, case.models())

    def program(rng):
        try:
            with as_user_errors():
                return tuple(map(int, decode(draft, target, case, rng)))
        except NoDistribution:
            return ()

    return program


def law_of_texts(decode: Callable, case: Case, most: int = MOST_PATHS, reseeds: bool = True) -> dict:
    """The exact law of the texts. Raises UserError."""
    return law_of(program_of(decode, case), most, reseeds)
