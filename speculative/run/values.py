"""The values of options: from typed words, or Python's values, to their meaning, and back.

A check takes a value, or the text that was typed, and returns the value. It raises WrongValue.
"""

import contextlib
import math
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from operator import mul
from typing import TypeVar

from speculative.support.errors import UserError, WrongValue, did_you_mean

LARGEST = 2**63 - 1  # whole number that all libraries take
MOST_NODES = 64  # nodes of a tree
STOP = " /stop "  # between two stop texts in one line
OFF = ", or left out, which turns it off"
T = TypeVar("T")
V = TypeVar("V")


def checked(name: str, check: Callable[[V], T], value: V) -> T:
    """Return check(value). name: an Option, or a parameter of Python. Raises UserError, which names the value."""
    try:
        return check(value)
    except WrongValue as error:
        raise UserError(name, f" must be {error.must_be}, not {value!r:.80}", hint=error.hint) from None


# ---- Checks ----------------------------------------------------------------------------------------------------------


def as_text(value: str) -> str:
    """Any text. (An empty prompt stands for <|endoftext|>.)"""
    try:  # bytes that Python took for ASCII arrive from a command line as halves of surrogate pairs
        return value.encode("utf-8", "surrogateescape").decode("utf-8")
    except (AttributeError, UnicodeError):
        raise WrongValue("a text in UTF-8") from None


def as_source(value: object) -> str:
    if value not in ("openai", "huggingface") and not re.match(r"https?://\S", str(value)):
        raise WrongValue("openai, huggingface, or the URL of a mirror, which begins with http:// or https://")
    return str(value)


def as_stops(value: object) -> str | tuple[str, ...]:
    """A stop text, or several."""
    texts = tuple(map(as_text, parts_of(value)))
    if "" in texts:
        raise WrongValue("a text that is not empty, or left out")
    return texts[0] if len(texts) == 1 else texts


SWITCH = {"True": True, "on": True, "False": False, "off": False}  # the typed word -> the value


def as_switch(value: object) -> bool:
    if str(value) not in SWITCH:
        raise WrongValue("on or off, or given without a value")
    return SWITCH[str(value)]


def whole(least: int, most: int = LARGEST, more: str = "") -> Callable:
    """The check of a whole number in this range. more: other values that it may have."""

    def check(value):
        digits = str(value)
        if not re.fullmatch(r"\+?[0-9]{1,19}", digits) or not least <= int(digits) <= most:
            bounds = f"from {least} to {most}" if most < LARGEST or len(digits) > 18 else f"of at least {least}"
            raise WrongValue(f"a whole number {bounds}{more}")
        return int(digits)

    return check


def number(must_be: str, allowed: Callable) -> Callable:
    """The check of a number. allowed(number): whether it may be this one."""

    def check(value):
        if re.fullmatch(r"[-+.0-9Ee]+", str(value)):  # Python takes 1_0 and other digits, too
            with contextlib.suppress(ValueError):
                number = float(str(value))
                if math.isfinite(number) and allowed(number):
                    return number
        raise WrongValue(must_be)

    return check


as_not_negative = number("a number of at least 0", lambda value: value >= 0)
as_share = number(f"a number above 0 and at most 1{OFF}", lambda value: 0 < value <= 1)


def as_seed(value: object) -> int:
    """A seed. "random" stands for one that is drawn now."""
    return secrets.randbelow(10**9) if value == "random" else whole(0, more=", or random")(value)


def one_of(*names: str) -> Callable:
    """The check of one of these names."""

    def check(value):
        if value not in names:
            raise WrongValue(f"one of {', '.join(names)}", did_you_mean(str(value), names))
        return value

    return check


def parts_of(value: object, separator: str | None = None) -> Sequence:
    """The parts of a value with several; a text is split at the separator."""
    if isinstance(value, tuple | list):
        return value
    return str(value).split(separator) if separator else [value]


def as_Ks(value: object) -> int | str | tuple:
    """K: a number or "auto"; for a staged drafter one for each level, as "16/4" or (16, 4), from the outermost in."""
    as_K = whole(1, 1024, ", or auto, or for a staged drafter one for each level, as 16/4")
    Ks = tuple(part if part == "auto" else as_K(part) for part in parts_of(value, "/") or [""])
    return Ks if len(Ks) > 1 else Ks[0]


def as_widths(value: object) -> tuple[int, ...]:
    """--tree 2,2,1: the number of children at each depth."""
    parts = parts_of(value, ",")
    are_sizes = all(re.fullmatch("[1-9][0-9]?", str(part)) for part in parts)
    sizes = tuple(map(int, parts)) if are_sizes else ()
    if not sizes or n_nodes(sizes) > MOST_NODES:
        raise WrongValue(f"children by depth, as 2,2,1, of at most {MOST_NODES} nodes in all")
    return sizes


def n_nodes(sizes: Collection[int]) -> int:
    """The nodes of a tree, without its root, in which each node of depth d has sizes[d] children."""
    return sum(accumulate(sizes, mul))


ALONE = ", a port of 127.0.0.1, as it answers this machine alone"


def as_port(value: object) -> int:
    n = 8000 if value == "True" else whole(0, 65535, ALONE)(value)  # "True" without a value
    if 0 < n < 1024:
        raise WrongValue("a port from 1024 to 65535, or 0 for one that is free")
    return n


# ---- Typed words -----------------------------------------------------------------------------------------------------


def without_escapes(typed: str) -> str:
    r"""Return a line that was typed with \n and \t as newline and tab; \\n is the two characters."""
    meant = {"n": "\n", "t": "\t"}
    return re.sub(r"\\(\\?)([nt])", lambda match: "\\" + match[2] if match[1] else meant[match[2]], typed)


def with_escapes(text: str) -> str:
    r"""Return the line that is typed for a text: without_escapes gives the text again."""
    line = re.sub(r"\\(?=[nt])", r"\\\\", text)
    return line.replace("\n", r"\n").replace("\t", r"\t")


def as_typed(name: str, value: object) -> str:
    """Return the text that is typed for a value: 8/2 for several K, 2,1 for a tree."""
    if name in ("stop", "prompt") and value is not None:
        return with_escapes(STOP.join(parts_of(value)))
    if isinstance(value, list | tuple):
        return ("/" if name == "K" else ",").join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
