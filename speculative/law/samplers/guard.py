"""Somebody's code does what it likes. Here its errors and its endless loops become one line, and it prints nothing.

Who raises an error, who catches it, and what follows:

    NoDistribution    a generator of unknown numbers    Program: the text of this path is ()
    TooManyPaths      law_of                            following: the case is not tried
    NotRepeatable     law_of, check_repeats             as NotFollowed: it is one of these
    NotFollowed       unknown numbers; as_user_errors,  choose_decoder: another decoder may be right;
                      for each UserError of ours        else follow: texts are drawn
    UserError         as_user_errors, for each error    choose_decoder: the next decoder; leave_out: cases of a length
                      of somebody's code                are left out; else follow: texts are drawn, and law raises it
                                                        there
    Ctrl-C, SIGTERM   the system                        nobody here: the process ends
"""

import contextlib
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest import mock

import numpy as np

from speculative.law.forks import WALK, NotFollowed
from speculative.law.generators import NoDistribution, UnknownGenerator
from speculative.law.paths import INFINITY, law_of
from speculative.law.samplers.cases import Case
from speculative.law.samplers.places import is_file_of_library, replaced
from speculative.law.samplers.stand_ins import StandIns, UnknownStandIns
from speculative.support.errors import UserError, first_line

SECONDS_AT_IMPORT = (5, 60)  # seconds after which a line says that a file still runs, and after which it is ended
MOST_PRINTED = 500  # characters that are kept
MOST_SECONDS = (10, 60)  # seconds that one path may compute, and that it may take with all its waiting
SECONDS_OF_WORDS = (2, 10)  # seconds before the first words about progress, and between others


@contextlib.contextmanager
def as_user_errors() -> Iterator[None]:
    """Raise the errors of somebody's code as UserErrors, and ours in it as NotFollowed.

    The errors that the callers know pass."""
    try:
        yield
    except (NoDistribution, KeyboardInterrupt):
        raise
    except UserError as error:
        # A stand-in or the reading of the result refuses an unknown number. Real numbers may do, so the decoder may be
        # the right one (see Sampler.choose_decoder). Any other error is of somebody's code: what this decoder gives it
        # is not what it takes.
        raise NotFollowed(words_of(error)) from error
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM:  # as support.process ends the process
            raise
        raise UserError(words_of(error, type(error).__name__), hint=PRINTED.words()) from error


def words_of(error: BaseException, name: str = "") -> str:
    """Return the line where somebody's code raised an error, its name and its first line of words."""
    parts = (raised_at(error), name, first_line(error))
    said = filter(None, parts)
    return ": ".join(dict.fromkeys(said))


def raised_at(error: BaseException) -> str:
    """The last line of somebody's own code that the error came through, "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_file_of_library(frame.filename)]
    if not own:
        return ""
    file = os.path.basename(own[-1].filename)
    return f"{file}, line {own[-1].lineno}"


class LastLines(io.TextIOBase):
    """A stream that keeps the end of what is written to it."""

    def __init__(self) -> None:
        self.end = ""

    def write(self, text: str) -> int:
        self.end = (self.end + text)[-MOST_PRINTED:]
        return len(text)

    def words(self) -> str:
        """The last lines as a hint, "" if there is none."""
        lines = [line.strip() for line in self.end.splitlines() if line.strip()]
        return f"it had printed: {' / '.join(lines[-3:])}" if lines else ""


PRINTED = LastLines()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Code that is called within prints nothing, reads nothing, and cannot end the process without a word. The end of
    its output is kept, as it may be the reason of an error."""
    PRINTED.end = ""
    process, end = os.getpid(), os._exit

    def refuse_exit(status: int = 0) -> None:
        if os.getpid() != process:  # a child that it has made
            end(status)
        raise UserError(f"it ends the process with os._exit({status}), so nothing can be told: leave that out")

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(PRINTED))
        stack.enter_context(contextlib.redirect_stderr(PRINTED))
        stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO()))
        stack.enter_context(mock.patch.object(os, "_exit", refuse_exit))
        yield


@contextlib.contextmanager
def running(file: str) -> Iterator[None]:
    """A file is run within. After SECONDS_AT_IMPORT[0] a line says so, and after SECONDS_AT_IMPORT[1] it is ended by a
    UserError."""
    soon, late = SECONDS_AT_IMPORT
    began = time.monotonic()
    said: list[bool] = []

    def look(number, frame):
        seconds = time.monotonic() - began
        if seconds > late:
            raise UserError(f"it runs for more than {late} s: put the work under if __name__ == '__main__'")
        if seconds > soon and not said:
            said.append(True)
            print(UserError(f"{file} is run, and has not ended after {soon} s ..."), file=sys.__stderr__, flush=True)

    with contextlib.ExitStack() as stack:
        stack.enter_context(silenced())
        stack.enter_context(alarms(look))
        yield


@contextlib.contextmanager
def alarms(handler: Callable) -> Iterator[None]:
    """Call handler(number, frame) each second, in the main thread of a system that has alarms."""
    with contextlib.ExitStack() as stack:
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handler))
            stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 1, 1)
        yield


class PathClock:
    """The seconds that the path under way takes. It is read at alarms alone: to ask for them may take milliseconds."""

    def __init__(self) -> None:
        self.n_paths = WALK.n_paths
        self.began = clocks()  # [2]

    def look(self, number, frame) -> None:
        """Raise UserError if the path takes too long, at each alarm again, as its code may catch it."""
        if WALK.n_paths != self.n_paths:
            self.n_paths, self.began = WALK.n_paths, clocks()
        elif np.any(clocks() - self.began > MOST_SECONDS):
            most, most_waiting = MOST_SECONDS
            raise UserError(
                f"no progress: one text computes for more than {most} s, or takes more than {most_waiting} s"
            )


def clocks() -> np.ndarray:  # [2]
    """The seconds that this process has computed, and the time. On a busy machine a path may wait for long."""
    return np.array([time.process_time(), time.monotonic()])


class Progress:
    """Words on standard error about work that takes long: a line that changes on a terminal, else new ones."""

    def __init__(self) -> None:
        self.file = sys.stderr  # before silenced() replaces it; a service may have none
        self.is_terminal = bool(self.file) and self.file.isatty()
        self.due = time.monotonic() + SECONDS_OF_WORDS[0]
        self.was_shown = False

    def show(self, words: str) -> None:
        """Show the words if it is time for some."""
        if not self.file or time.monotonic() < self.due:
            return
        self.was_shown = True
        if self.is_terminal:
            print(f"\r{words}\x1b[K", end="", file=self.file, flush=True)
        else:
            self.due = time.monotonic() + SECONDS_OF_WORDS[1]
            print(words, file=self.file, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self.is_terminal and self.was_shown:
            print("\r\x1b[K", end="", file=self.file, flush=True)


# ---- The law of the texts of a decoder -------------------------------------------------------------------------------


MOST_PATHS = 2_000  # paths of a case that are followed


@contextlib.contextmanager
def stand_ins_in(function: Callable, stand_ins: StandIns | None = None) -> Iterator[None]:
    """Within, the function's random numbers are those of the stand-ins, by default unknown ones; and it is quiet."""
    stand_ins = stand_ins or UnknownStandIns()
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(function, stand_ins))
        if "torch" in sys.modules:
            stack.enter_context(stand_ins.in_torch())
        stack.enter_context(silenced())
        stack.enter_context(np.errstate(all="ignore"))
        stack.enter_context(alarms(PathClock().look))
        yield


class Effort(NamedTuple):
    """The effort of one text."""

    weight: float  # the probability of its path
    n_calls: int  # calls of the target
    n_drafts: int
    n_tokens: int  # those behind the text's end among them, if they were returned


class Program:
    """program(rng) -> the text of a decoder in a case, () if a draw is impossible.

    decode(draft, target, case, rng) -> the tokens after the prompt; somebody's code needs `stand_ins_in` around it.
    """

    def __init__(self, decode: Callable, case: Case):
        self.decode = decode
        self.case = case
        draft, target = case.models()
        self.models = self.counted("draft", draft), self.counted("target", target)
        self.n_calls: Counter = Counter()  # calls of each model in this path
        self.efforts: dict = {}  # {a path, by its branches: Effort}

    def counted(self, name: str, model: Callable) -> Callable:
        """The model, whose calls are counted."""

        def rows(x, *args, **options):
            WALK.count()
            self.n_calls[name] += 1
            if WALK.listener:
                WALK.listener.called(name, x)
            return model(x, *args, **options)

        return rows

    def __call__(self, rng) -> tuple[int, ...]:
        """Raises UserError."""
        self.n_calls.clear()
        PRINTED.end = ""
        try:
            with as_user_errors():
                text = tuple(map(int, self.decode(*self.models, self.case, rng)))
        except NoDistribution:
            return ()
        n_drafts = WALK.of_path.get("n_drafts", self.n_calls["draft"])
        n_tokens = WALK.of_path.get("n_tokens", len(text))
        # A path may be taken again; texts that are drawn have no forks, and each counts.
        path = tuple(WALK.branches) if isinstance(rng, UnknownGenerator) else len(self.efforts)
        self.efforts[path] = Effort(WALK.weight, self.n_calls["target"], n_drafts, n_tokens)
        return text


def law_of_texts(decode: Callable, case: Case, reseeds: bool = True, most_nodes: float = INFINITY) -> dict:
    """The exact law of the texts. Raises UserError."""
    return law_of(Program(decode, case), MOST_PATHS, reseeds, most_nodes)
