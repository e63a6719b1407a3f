"""The parts that a wrong verdict shows: the shortest text whose next token is wrong, and one path that leads there.

The path is run once more while a Listener notes what happens in it, each with the line of somebody's file:

    line 20  draft called with [1, 0]
    line 21  u1 draws 0 from [0.75 0.25 0]
    line 23  target called with [1, 0, 0]
    line 26  u2 < 0.3: True
"""

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from speculative.law.forks import ITSELF, WALK, Formula
from speculative.law.generators import UnknownGenerator
from speculative.law.paths import paths_of, run
from speculative.law.samplers.cases import Case
from speculative.law.samplers.guard import MOST_PATHS, Program
from speculative.law.samplers.places import is_file_of_library

PLAIN = 0.1  # share of the largest distance from which a fault is plain enough to be shown
MOST_EVENTS = 24
MOST_NUMBERS = 8  # numbers of a row that are shown in one line
SIGNS = {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
SIGNS |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "add": "+", "subtract": "-", "sub": "-"}
SIGNS |= {"multiply": "*", "mul": "*", "divide": "/", "true_divide": "/", "div": "/"}


class Fault(NamedTuple):
    """The shortest text after which the next token is wrong."""

    case: Case
    text: tuple[int, ...]  # after the prompt
    own: np.ndarray  # [n_vocab], the probabilities of the next token
    q: np.ndarray  # [n_vocab], those that it should have


def case_to_show(distances: dict[Case, float]) -> Case:
    """Return the case that is furthest from the target's law, in the smallest line of cases in which the fault is
    plain. distances: {wrong case: distance}."""
    furthest = max(distances.values())
    plain = [case for case, distance in distances.items() if distance >= PLAIN * furthest]
    line = min(plain, key=Case.size).line
    return max([case for case in plain if case.line == line], key=distances.__getitem__)


def fault_in(case: Case, law: dict, distance: float) -> Fault | None:
    """The fault of a law; None if no next token is plainly wrong, as in a text of another length."""
    for n in range(case.N):
        faults = [fault_after(case, law, text) for text in {text[:n] for text in law if len(text) >= case.N}]
        weight, fault = max(faults, key=lambda pair: pair[0], default=(0, None))
        if weight >= PLAIN * distance:
            return fault
    return None


def fault_after(case: Case, law: dict, text: tuple) -> tuple[float, Fault]:
    """How far the law's next tokens after a text are from the target's, times the probability of the text."""
    n = len(text)
    own = np.zeros(case.n_vocab)  # [n_vocab]
    for longer, weight in law.items():
        if longer[:n] == text and len(longer) > n:
            own[longer[n]] += weight
    probability = own.sum()
    own /= probability
    q = case.models()[1]([*case.prompt, *text], 1)[0]  # [n_vocab]
    return probability * np.abs(own - q).sum() / 2, Fault(case, text, own, q)


# ---- One path --------------------------------------------------------------------------------------------------------


def events_to(fault: Fault, decode: Callable) -> list[str]:
    """Return the events of the likeliest path after whose text the token comes that comes too often. Raises
    UserError."""
    program = Program(decode, fault.case)
    wrong = (*fault.text, int(np.argmax(fault.own - fault.q)))
    paths = [path for path in paths_of(program, MOST_PATHS) if path.outcome[: len(wrong)] == wrong]
    likeliest = max(paths, key=lambda path: path.weight)
    listener = WALK.listener = Listener()
    try:
        run(program, UnknownGenerator(), [*likeliest.branches])
    finally:
        WALK.listener = None
    return listener.in_words()


class Event(NamedTuple):
    """An event of a path, with the file and the line."""

    file: str  # "" if it is ours
    line: int
    words: str


class Listener:
    """Notes what happens in a path."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.names: dict = {}  # names of the random numbers: u1, u2 ...

    def called(self, model: str, x: Any) -> None:
        self.note(f"{model} called with {[*map(int, np.ravel(x))]}")

    def drawn(self, index: int, weights: Any, u: Any = None) -> None:
        """u: None if it is a race of random numbers."""
        p = np.array(weights, float) / np.sum(weights)  # [n]
        self.note(f"{self.name(u) if u else 'argmax'} draws {index} from {row_in_words(p)}")

    def compared(self, formula: Formula, u: Any, answer: Any) -> None:
        self.note(f"{formula_in_words(formula, self.name(u))}: {answer}", is_ours_told=False)

    def name(self, u: Any) -> str:
        return self.names.setdefault(u, f"u{len(self.names) + 1}")

    def note(self, words: str, is_ours_told: bool = True) -> None:
        """Add an event, which is left out if it happens in code of ours and is_ours_told is False."""
        frame: Any = sys._getframe(1)
        while frame.f_code is not run.__code__ and is_file_of_library(frame.f_code.co_filename):
            frame = frame.f_back
        is_ours = frame.f_code is run.__code__
        file = "" if is_ours else os.path.basename(frame.f_code.co_filename)
        if not is_ours or is_ours_told:
            self.events.append(Event(file, frame.f_lineno, words))

    def in_words(self) -> list[str]:
        """The events, each with its line; with its file too if there are several."""
        files = {event.file for event in self.events if event.file}
        places = []
        for event in self.events:
            place = f"line {event.line}" if event.file else ""
            places.append(f"{event.file}, {place}" if event.file and len(files) > 1 else place)
        width = max(map(len, places))
        lines = [f"{place:{width}}  {event.words}" for place, event in zip(places, self.events, strict=True)]
        n_more = len(lines) - MOST_EVENTS
        return [*lines[:MOST_EVENTS], f"and {n_more} more"] if n_more > 0 else lines


def formula_in_words(x: Any, u: str) -> str:
    """A formula of a random number of the name u as Python would have it, or a number."""
    if isinstance(x, bool | int | float | np.generic):
        return f"{x:.3g}" if not isinstance(x, np.bool_) else str(x)
    if not isinstance(x, Formula):
        return str(x)
    if x is ITSELF:
        return u
    function = x.function
    given = function.all_given(*x.parameters) if hasattr(function, "all_given") else x.parameters
    words = [formula_in_words(parameter, u) for parameter in given]
    name = getattr(function, "name", "") or getattr(function, "__name__", "function")
    if name in SIGNS and len(words) == 2:
        return f" {SIGNS[name]} ".join(words)
    return f"{name}({', '.join(words)})"


def row_in_words(row, digits: int = 3) -> str:  # [n_vocab]
    """The row's numbers, of a long one the largest."""
    if len(row) <= MOST_NUMBERS:
        numbers = " ".join(f"{p_j:.{digits}g}" for p_j in row)
        return f"[{numbers}]"
    largest = [j for j in np.argsort(-row, kind="stable")[:3] if row[j]]
    some = [f"{row[j]:.{digits}g} for token {j}" for j in largest]
    if len(largest) == 3:
        some.append("less for the others")
    return f"({', '.join(some)})"
