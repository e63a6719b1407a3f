"""The parser of a command, text in tables and without numbers, and tasks that take turns while they are timed."""

import argparse
import re
from collections.abc import Callable
from statistics import median
from timeit import timeit


def parser_of(command: str, about: str) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"python -m benchmarks {command}", description=about, formatter_class=raw)


def table(rows: list[dict], columns: str) -> str:
    """columns: words such as "K", "r:.2f" or "β=mean_beta:.2f", that is heading=key:format; _ in the heading is a
    space. A value that is None or missing is left empty; text stays as it is."""
    words = [re.fullmatch("(?:(.+)=)?(.+?)(?::(.+))?", word).groups("") for word in columns.split()]
    cells = [[(heading or key).replace("_", " ") for heading, key, _ in words]]
    cells += [[cell(row.get(key), form) for _, key, form in words] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(n) for cell, n in zip(line, widths, strict=True)) for line in cells)


def cell(value, form: str) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, form)


def without_numbers(text: str) -> str:
    """Return the text in one line, with # for each number, and without the instructions of the CPU."""
    text = re.sub(r"C \([^)]*\), \d+ threads?", "C", " ".join(text.split()).replace("C (#), # threads", "C"))
    return re.sub(r"\d+(?:[.,]\d+)*", "#", text)


def take_turns(tasks: dict[str, Callable], rounds: int) -> dict[str, float]:
    """The median seconds of each task over rounds in which each is called once; the first round is not counted."""
    measured = [{name: timeit(task, number=1) for name, task in tasks.items()} for _ in range(rounds + 1)]
    return {name: median(one[name] for one in measured[1:]) for name in tasks}
