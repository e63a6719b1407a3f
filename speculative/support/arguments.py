"""Flags and the types of their values. A type is a function from the text that was typed to the value.

The other commands use argparse, whose parser is here too.

A type raises ValueError, which says what the value must be.
"""

import argparse
import difflib
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from speculative.support.errors import UserError

PART = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"
PLAIN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"


class Flag(NamedTuple):
    """A flag of main.py, declared in a module of its subject."""

    name: str
    parse: Callable[[str], Any]  # what was typed -> value; raises ValueError, which says what a value must be
    help: str | Callable[[], str]  # a function where it names what can be registered later
    default: Any = None
    excludes: tuple[str, ...] = ()  # flags that cannot be given beside it
    only_engine: str = ""  # the engine that it is for, where another one cannot, and `why`
    why: str = ""
    in_vain: Callable[[Any], str] = lambda o: ""  # options -> why it would do nothing with these; "" where it does
    live: bool = False  # whether it can change while the models stay loaded
    needs: tuple[str, ...] = ()  # libraries that the small installation lacks
    bare: str = ""  # what it stands for without a value; "" where it needs one
    short: str = ""  # a letter that may be typed in place of the name, as -K
    joined_by: str = ""  # between the parts of a value that comes from Python as a tuple or list; "": it has one part

    def help_now(self) -> str:
        """The help, with what is registered by now."""
        return self.help() if callable(self.help) else self.help


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody who typed this one may have meant, None if there is none.

    It is the same name in another case, the only one that begins with it, or one of similar spelling.
    """
    if not name:  # every name begins with it
        return None
    known = list(known)
    same = [other for other in known if other.lower() == name.lower()]
    begins = [other for other in known if other.lower().startswith(name.lower())]
    alike = difflib.get_close_matches(name, known, n=1)
    if same:
        return same[0]
    if len(begins) == 1 or (begins and not alike):
        return begins[0]
    return alike[0] if alike else None


def text(value: str) -> str:
    if not value:
        raise ValueError("a text that is not empty")
    try:  # bytes that Python could not decode, for it took them for ASCII maybe, arrive as halves of surrogate pairs
        return value.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise ValueError("text in UTF-8") from None


def prompt(value: str) -> str:
    """A text that may be empty."""
    return value and text(value)


def path(value: str) -> str:
    try:
        # No system has longer ones, and os.path.realpath takes seconds over a million slashes.
        if 0 < len(os.fsencode(value)) < 2**15 and "\0" not in value:
            return value
    except UnicodeError:  # half of a surrogate pair that stands for no byte either
        pass
    raise ValueError("the name of a file or folder")


def folder_name(value: str) -> str:
    if not re.fullmatch(PLAIN_NAME, value):
        raise ValueError("a plain folder name such as 124M, without slashes")
    return value


def model(value: str) -> str:
    """A folder of models_dir, a path to one, or a model of the Hugging Face hub."""
    if value.startswith((".", "/", "~")):
        return path(value)
    if len(value) < 255 and (re.fullmatch(PLAIN_NAME, value) or re.fullmatch(rf"{PART}(/{PART})?(@{PART})?", value)):
        return value
    raise ValueError("124M, a folder of models_dir, a path that begins with . / or ~, or owner/name of the hub")


def switch(value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError("given without a value")
    return value == "True"


def integer(at_least: int, at_most: int | None = None) -> Callable[[str], int]:
    def parse(value: str) -> int:
        limits = f"from {at_least} to {at_most}"
        if at_most is None:
            limits = f"of at least {at_least}"
            if len(value) > 18:
                limits += " and at most 18 digits"
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value) or not at_least <= int(value) <= (at_most or math.inf):
            raise ValueError(f"a whole number {limits}")
        return int(value)

    return parse


def number(must_be: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    def parse(value: str) -> float:
        is_number = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value)
        if not is_number or not math.isfinite(float(value)) or not allowed(float(value)):
            raise ValueError(must_be)
        return float(value)

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in names:
            near = nearest(value, names)
            raise ValueError(f"one of {', '.join(names)}" + (f" (did you mean {near}?)" if near else ""))
        return value

    return parse


def source(value: str) -> str:
    local = r"http://(localhost|127\.0\.0\.1)(:\d+)?(/|$)"
    if value not in ("openai", "huggingface") and not re.match(rf"https://[^/?#]|{local}", value):
        raise ValueError("openai, huggingface or an https address")
    return value


def argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type of ours as the type of an argparse argument. argparse shows a message only if the exception is its own."""

    def checked(value):
        try:
            return parse(value)
        except ValueError as must_be:
            raise argparse.ArgumentTypeError(f"must be {must_be}, not {value!r:.80}") from None

    return checked


temperature = number("a number of at least 0", lambda value: value >= 0)
share = number("a number above 0 and at most 1", lambda value: 0 < value <= 1)
lenience = number("a number from 0.000001 to 1", lambda value: 1e-6 <= value <= 1)
typical = number("a number from 0.000001 to 0.999999", lambda value: 1e-6 <= value <= 0.999999)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserError. argparse itself would print its usage and end the program."""

    def __init__(self, doc: str, **options):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def print_help(self, file=None) -> None:
        print(self.format_help(), end="", file=file)  # argparse would pass over a disk that is full

    def error(self, message: str) -> NoReturn:
        raise UserError(message)
