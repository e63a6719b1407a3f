"""The values of options: from what was typed, or given in Python, to what is meant, and back.

A check takes a value, or the text that was typed, and returns the value. It raises ValueError, which says what the
value must be.
"""

import contextlib
import math
import re
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from speculative.support.errors import UserError, did_you_mean

LARGEST = 2**63 - 1  # whole number that all libraries take
MOST_NODES = 64  # of a tree
STOP = " /stop "  # between two stop texts in one line
OFF = ", or left out, which turns it off"


def text(value: Any) -> str:
    """Any text. (An empty prompt stands for <|endoftext|>.)"""
    try:  # bytes that Python took for ASCII arrive from a command line as halves of surrogate pairs
        return value.encode("utf-8", "surrogateescape").decode("utf-8")
    except (AttributeError, UnicodeError):
        raise ValueError("a text in UTF-8") from None


def stops(value: Any) -> str | tuple[str, ...]:
    """A stop text, or several."""
    given = value if isinstance(value, tuple | list) else [value]
    texts = tuple(map(text, given))
    if "" in texts:
        raise ValueError("a text that is not empty, or left out")
    return texts[0] if len(texts) == 1 else texts


def without_escapes(typed: str) -> str:
    r"""Return a line that was typed with \n and \t as newline and tab; \\n is the two characters."""
    meant = {"n": "\n", "t": "\t"}
    return re.sub(r"\\(\\?)([nt])", lambda match: "\\" + match[2] if match[1] else meant[match[2]], typed)


SWITCH = {"True": True, "on": True, "False": False, "off": False}  # what is typed -> the value


def switch(value: Any) -> bool:
    if str(value) not in SWITCH:
        raise ValueError("on or off, or given without a value")
    return SWITCH[str(value)]


def whole(least: int, most: int = LARGEST, more: str = "") -> Callable:
    def check(value: Any) -> int:
        is_whole = re.fullmatch(r"\+?[0-9]{1,19}", str(value))
        if not is_whole or not least <= int(value) <= most:
            is_bounded = most < LARGEST or len(str(value)) > 18
            bounds = f"from {least} to {most}" if is_bounded else f"of at least {least}"
            raise ValueError(f"a whole number {bounds}{more}")
        return int(value)

    return check


def check_number(must_be: str, allowed: Callable) -> Callable:
    def check(value: Any) -> float:
        if re.fullmatch(r"[-+.0-9Ee]+", str(value)):  # Python takes 1_0 and other digits, too
            with contextlib.suppress(ValueError):
                number = float(str(value))
                if math.isfinite(number) and allowed(number):
                    return number
        raise ValueError(must_be)

    return check


def one_of(*names: str) -> Callable:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}{did_you_mean(str(value), names)}")
        return value

    return check


def parts_of(value: Any, separator: str) -> Sequence:
    return value if isinstance(value, tuple | list) else str(value).split(separator)


def lookahead(value: Any) -> int | str | tuple:
    """K: a number or "auto"; for a staged drafter one for each level, as "16/4" or (16, 4), from the outermost in."""
    number = whole(1, 1024, ", or auto, or for a staged drafter one for each level, as 16/4")
    parts = parts_of(value, "/")
    Ks = tuple(part if part == "auto" else number(part) for part in parts or [""])
    return Ks if len(Ks) > 1 else Ks[0]


def n_nodes(sizes: Collection[int]) -> int:
    """The nodes of a tree, without its root, in which each node of depth d has sizes[d] children."""
    return sum(accumulate(sizes, mul))


def widths(value: Any) -> tuple[int, ...]:
    """--tree 2,2,1: the number of children at each depth."""
    parts = parts_of(value, ",")
    are_sizes = all(re.fullmatch("[1-9][0-9]?", str(part)) for part in parts)
    sizes = tuple(map(int, parts)) if are_sizes else ()
    if not sizes or n_nodes(sizes) > MOST_NODES:
        raise ValueError(f"children by depth, as 2,2,1, of at most {MOST_NODES} nodes in all")
    return sizes


ALONE = ", a port of 127.0.0.1, as it answers this machine alone"


def port(value: Any) -> int:
    n = 8000 if value == "True" else whole(0, 65535, ALONE)(value)  # "True" without a value
    if 0 < n < 1024:
        raise ValueError("a port from 1024 to 65535, or 0 for one that is free")
    return n


not_negative = check_number("a number of at least 0", lambda value: value >= 0)
share = check_number(f"a number above 0 and at most 1{OFF}", lambda value: 0 < value <= 1)


def with_escapes(text: str) -> str:
    r"""Return the line that is typed for a text: without_escapes gives the text again."""
    line = re.sub(r"\\(?=[nt])", r"\\\\", text)
    return line.replace("\n", r"\n").replace("\t", r"\t")


def as_typed(name: str, value: Any) -> str:
    """Return the text that is typed for a value: 8/2 for several K, 2,1 for a tree."""
    if name == "stop" and value is not None:
        return with_escapes(STOP.join([value] if isinstance(value, str) else value))
    if isinstance(value, list | tuple):
        separator = "/" if name == "K" else ","
        return separator.join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def checked(name: str, check: Callable, value: Any) -> Any:
    """Return check(value). Raises UserError, which names the value."""
    try:
        return check(value)
    except ValueError as error:
        must_be, *hint = str(error).partition("; did you mean")
        raise UserError(f"{name} must be {must_be}, not {value!r:.80}{''.join(hint)}") from None
