"""Names as options take them: NAME[:ARGUMENT]. Names joined by + are a level, and levels are joined by /."""

from typing import NamedTuple


class Name(NamedTuple):
    """A name, and the text after its colon, "" if there is none."""

    name: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


def split(text: str) -> list[list[Name]]:
    """ "int8/file:a/b.txt+model" -> [[int8], [file:a/b.txt, model]]: the names of each level.

    An argument may hold a slash. It ends at the next +.
    """
    levels: list[list[Name]] = [[]]
    for part in text.split("+"):
        names, _, argument = part.partition(":")
        *outer, last = names.split("/")
        for name in outer:
            levels[-1].append(Name(name))
            levels.append([])
        levels[-1].append(Name(last, argument))
    return levels
