"""The command line: the flags of all rooms, the words that were typed, and --help."""

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from speculative import drafters, options
from speculative.cli import display, interactive, packing, prompts, serve
from speculative.options import Room
from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.options import Options
from speculative.version import __version__


def rooms() -> list[Room]:
    """(heading of --help, its flags), in the order of --help."""
    blog, (text, flags), *others = options.rooms()
    return [
        blog,
        (text, (*flags, *prompts.FLAGS)),
        *others,
        ("What is shown", display.FLAGS),
        ("Many texts, one loading", (*interactive.FLAGS, *serve.FLAGS, *packing.FLAGS)),
    ]


def all_flags() -> dict[str, Flag]:
    return options.flags_of(rooms())


def parse(given: dict[str, Any], **changed: Any) -> Options:
    """options.parse_options for all flags of the command line. Raises UserError."""
    o = options.parse_options(all_flags(), given, **changed)
    interactive.check(o)
    if o.prompt_file or o.unconditional:
        return o.replaced(prompt=None)  # it is the default, and not what is continued
    return o


# ---- The words of a command line -------------------------------------------------------------------------------------


def run(main: Callable, doc: str, words: list[str] | None = None) -> None:
    """Calls main with the flags that were typed, or with these words. Raises UserError."""
    import fire

    words = sys.argv[1:] if words is None else words
    if {"-h", "--help"} & {*words}:
        name = {"__main__.py": "python -m speculative", "speculative-sampling": "speculative-sampling"}
        command = name.get(os.path.basename(sys.argv[0]), "python main.py")
        print(f"{doc}\n{usage()}".replace("python main.py", command))
    elif "--version" in words:
        print(f"speculative-sampling {__version__}")
    else:
        fire.Fire(fire.decorators.SetParseFn(str)(main), command=with_values(words))


def with_values(words: list[str]) -> list[str]:
    """A command line's words, each flag as --flag=value, so that fire has nothing left to guess. Raises UserError.

    The word after a flag is its value, also where it looks like a number, a list or -x; but not where it begins with
    two dashes. What needs no value, as a switch, which gets True, takes none that begins with one.
    """
    words = list(words)
    flags = all_flags()
    long = {flag.short: flag.name for flag in flags.values() if flag.short}
    given = {}
    while words:
        word = words.pop(0)
        match = re.fullmatch(rf"(?:--([A-Za-z][A-Za-z0-9_-]*)|-([{''.join(long)}]))(?:=(.*))?", word, re.DOTALL)
        if not match:
            raise UserError(f"unexpected {word!r:.80}: every value follows its --flag, and a text goes in quotes")
        name = match[1].replace("-", "_") if match[1] else long[match[2]]
        value = match[3]
        if name in given:
            raise UserError(f"--{name:.80} is given twice")
        bare = "True" if name not in flags or flags[name].parse is arguments.switch else flags[name].bare
        if value is None and words and not words[0].startswith("-" if bare else "--"):
            value = words.pop(0)
        if value is None and not bare:
            raise UserError(f"--{name} needs a value; one that begins with -- is written --{name}=VALUE")
        given[name] = bare if value is None else value
    check_typed(given)
    return [f"--{name}={value}" for name, value in given.items()]


def check_typed(given: dict[str, str]) -> None:
    """Raises UserError where a draft model is named that nobody needs. (Not from Python, where a pair keeps the name of
    its draft model while its drafter changes.)"""
    drafter = given.get("drafter", drafters.FLAG.default)
    if "draft_model_size" in given and not drafters.needs(drafter, "draft"):
        raise UserError(f"--draft_model_size is of no use here: --drafter {drafter} needs no draft model")


def usage() -> str:
    """--help: the flags in groups, with their defaults."""
    short = [flag for flag in all_flags().values() if flag.short]
    letters = ", ".join(f"-{flag.short}" for flag in short)
    names = ", ".join(f"--{flag.name}" for flag in short)
    lines = ["usage: python main.py [--FLAG VALUE ...]", f"       {letters} are short for {names}"]
    for heading, flags in rooms():
        lines += ["", heading]
        for flag in flags:
            shown = "" if flag.default is None or flag.default is False else f" [{flag.default}]"
            lines.append(f"  --{flag.name:21} {flag.help_now()}{shown}")
            if flag is drafters.FLAG:
                lines += [f"{'':26}{line}" for line in drafters.help_of_kinds()]
    return "\n".join(lines)
