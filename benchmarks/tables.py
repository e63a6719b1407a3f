"""The parser of a command, text in tables and without numbers, and tasks that take turns while they are timed."""

import argparse
import re
from collections.abc import Callable
from statistics import median
from timeit import timeit
from typing import Any, NamedTuple, NoReturn

from speculative.support.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}: --help lists what it takes")


def parser_of(command: str, about: str) -> Parser:
    raw = argparse.RawDescriptionHelpFormatter
    return Parser(f"python -m benchmarks {command}", description=about, formatter_class=raw)


def whole(text: str) -> int:
    """Return a whole number of at least 1. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r:.40} should be a whole number of at least 1")
    return int(text)


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    key: str  # the key of a row
    format: str  # the format of its values, as after the colon in an f-string

    def cells(self, rows: list[dict]) -> list[str]:
        """Return the heading and the values, equally wide."""
        texts = [self.heading, *(self.cell(row.get(self.key)) for row in rows)]
        width = max(map(len, texts))
        return [text.rjust(width) for text in texts]

    def cell(self, value: Any) -> str:
        """Return a value as text: nothing for None, and a text as it is."""
        if value is None:
            return ""
        return value if isinstance(value, str) else format(value, self.format)


def columns_of(words: str) -> list[Column]:
    """ "K r:.2f β=mean_beta:.2f" -> the columns: heading=key:format, where the heading and the format may be left out.
    _ in a heading is a space."""
    columns = []
    for heading, key, form in re.findall(r"(?:(\S+)=)?([^\s=:]+)(?::(\S+))?", words):
        columns.append(Column((heading or key).replace("_", " "), key, form))
    return columns


def table(rows: list[dict], columns: str) -> str:
    """Return rows as a table. columns: see columns_of."""
    cells = [column.cells(rows) for column in columns_of(columns)]
    return "\n".join("  ".join(line) for line in zip(*cells, strict=True))


def without_numbers(text: str) -> str:
    """Return the text in one line, with # for each number, and without the instructions of the CPU."""
    line = " ".join(text.split()).replace("C (#), # threads", "C")
    line = re.sub(r"C \([^)]*\), \d+ threads?", "C", line)
    return re.sub(r"\d+(?:[.,]\d+)*", "#", line)


def take_turns(tasks: dict[str, Callable], rounds: int) -> dict[str, float]:
    """The median seconds of each task over rounds in which each is called once; the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            took = timeit(task, number=1)
            if number > 0:
                seconds[name].append(took)
    return {name: median(of_task) for name, of_task in seconds.items()}
