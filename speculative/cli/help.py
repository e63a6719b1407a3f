"""--help, and /help of a session: the options in groups, as wide as the terminal."""

import shutil
import textwrap
from typing import Any, NamedTuple

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
SESSION = r"""/NAME VALUE changes an option; /NAME alone switches it or sets its default.
/why explains the last run; quit ends the session.
In a prompt \n is a newline, \t a tab, \\n the characters \n; // begins a prompt with a slash."""
MORE = "More"  # the group of the rare options
MOST_COLUMNS = 120  # also at a wider terminal
INDENT = 26  # columns before an option's help


class Entry(NamedTuple):
    """An option in a list of options."""

    typed: str  # its name as it is typed here
    value: str  # that stands behind its help; "" for none


def help_text(everything: bool = False) -> str:
    """Return --help: the options with their defaults; with everything, the rare ones too."""
    lines = []
    for group in [*GROUPS, MORE] if everything else GROUPS:
        lines += group_lines(group, {name: Entry(flag(name), default(name)) for name in FIELDS})
    return "\n".join(lines if everything else [*lines, "", "--help all shows the rest."])


def session_help(options: ModelOptions) -> str:
    """Return /help: the options that a session can change, with their values."""
    entries = {}
    for name, f in FIELDS.items():
        if f.metadata.get("live"):
            entries[name] = Entry(f"/{name}", in_words(name, getattr(options, name)))
    lines = [SESSION]
    for group in (*GROUPS, MORE):
        lines += group_lines(group, entries)
    return "\n".join(lines)


def group_lines(group: str, entries: dict[str, Entry]) -> list[str]:
    """Return the lines of a group: its heading and the options that have an entry, if any has."""
    lines = []
    for name, entry in entries.items():
        metadata = FIELDS[name].metadata
        if metadata.get("group", MORE) == group:
            value = f" [{entry.value}]" if entry.value else ""
            lines += option_lines(f"{entry.typed} {metadata['takes']}", metadata["help"] + value)
    return ["", group, *lines] if lines else []


def option_lines(typed: str, words: str) -> list[str]:
    """Return an option's lines. Its help begins beside it, or below it if it is long."""
    columns = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
    width = max(columns - INDENT, INDENT)
    indent = " " * INDENT
    lines = [indent + line for line in textwrap.wrap(words, width, break_on_hyphens=False)]
    beside = f"  {typed.rstrip()}".ljust(INDENT)
    if not beside.endswith(" "):
        return [beside, *lines]
    return [beside + lines[0].lstrip(), *lines[1:]]


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
