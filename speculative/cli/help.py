"""--help, and /help of a session: the options in groups, as wide as the terminal."""

import shutil
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from speculative.options import BLOG, DRAFT, ENGINE, FIELDS, LAW, SHOWN, TEXT, ModelOptions
from speculative.values import as_typed

GROUPS = (BLOG, TEXT, LAW, DRAFT, ENGINE, SHOWN)
COMMANDS = {  # of a session -> what they do
    "/": "help",
    "/help": "help",
    "help": "help",
    "?": "help",
    "/why": "why",
    "/quit": "quit",
    "/exit": "quit",
    "quit": "quit",
    "exit": "quit",
}
SESSION = r"""/NAME VALUE changes an option; /NAME alone switches it or sets its default. /why says why the last run
was as fast as it was. quit ends the session.
In a prompt \n is a newline, \t a tab, \\n the characters \n; // begins a prompt with a slash."""
MORE = "More"  # the group of the rare options
MOST_COLUMNS = 120  # also at a wider terminal
INDENT = 26  # columns before an option's help


def help_text(everything: bool = False) -> str:
    """Return --help: the options with their defaults; with everything, the rare ones too."""
    groups = [*GROUPS, MORE] if everything else GROUPS
    lines = [line for group in groups for line in group_lines(group, flag, default)]
    return "\n".join(lines if everything else [*lines, "", "--help all shows the rest."])


def session_help(options: ModelOptions) -> str:
    """Return /help: the options that a session can change, with their values."""

    def live(name: str) -> str:
        return f"/{name}" if FIELDS[name].metadata.get("live") else ""

    def value(name: str) -> str:
        return in_words(name, getattr(options, name))

    return "\n".join([SESSION, *(line for group in (*GROUPS, MORE) for line in group_lines(group, live, value))])


def group_lines(group: str, flag_of: Callable[[str], str], value_of: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of a group. flag_of(name): the option as it is typed, "" to leave it out. value_of(name): the
    value that stands behind its help."""
    names = [name for name, f in FIELDS.items() if f.metadata.get("group", MORE) == group and flag_of(name)]
    if names:
        yield from ("", group)
    for name in names:
        metadata = FIELDS[name].metadata
        value = value_of(name)
        words = f"{metadata['help']} [{value}]" if value else metadata["help"]
        yield from option_lines(f"{flag_of(name)} {metadata['takes']}".rstrip(), words)


def option_lines(typed: str, words: str) -> list[str]:
    """Return an option's lines. Its help begins beside it, or below it if it is long."""
    columns = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
    beside = f"  {typed}".ljust(INDENT)
    below = " " * INDENT
    lines = textwrap.wrap(words, max(columns - INDENT, INDENT), break_on_hyphens=False)
    if not beside.endswith(" "):
        return [beside, *(below + line for line in lines)]
    return [beside + lines[0], *(below + line for line in lines[1:])]


def flag(name: str) -> str:
    """Return an option as a command line has it: -K, --K."""
    short = FIELDS[name].metadata.get("short")
    return f"-{short}, --{name}" if short else f"--{name}"


def default(name: str) -> str:
    """Return the default as it is typed; "" for an option that is off."""
    value = FIELDS[name].default
    return "" if value is None or value is False else as_typed(name, value)


def in_words(name: str, value: Any) -> str:
    """Return the value as a session shows it: on and off for a switch, off for what is not set."""
    if value is None or isinstance(value, bool):
        return "on" if value else "off"
    return as_typed(name, value)
