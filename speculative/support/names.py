"""Names as options take them: NAME[:ARGUMENT]. Names joined by + are a level, and levels are joined by /."""

import re
from typing import NamedTuple


class Name(NamedTuple):
    """A name, and the text after its colon, "" if there is none."""

    name: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


NAME = re.compile(r"(^|[/+])([^/+:]*)(?::([^+]*))?")  # what joins it to the name before, the name, its argument


def split(text: str) -> list[list[Name]]:
    """ "int8/file:a/b.txt+model" -> [[int8], [file:a/b.txt, model]]: the names of each level.

    An argument may hold a slash. It ends at the next +.
    """
    levels: list[list[Name]] = [[]]
    for joint, name, argument in NAME.findall(text):
        if joint == "/":
            levels.append([])
        levels[-1].append(Name(name, argument))
    return levels
