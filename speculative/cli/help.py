"""--help, and /help of a session: the options in groups, as wide as the terminal."""

import shutil
import textwrap
from collections.abc import Sequence

from speculative import drafters
from speculative.run.options import BLOG, DRAFT, ENGINE, FIELDS, LAW, SHOWN, TEXT, ModelOptions
from speculative.run.values import as_typed

GROUPS = (BLOG, TEXT, LAW, DRAFT, ENGINE, SHOWN)
SESSION_COMMANDS = {  # a session's command -> its effect
    "/": "help",
    "/help": "help",
    "help": "help",
    "?": "help",
    "/?": "help",
    "/why": "why",
    "/quit": "quit",
    "/exit": "quit",
    "quit": "quit",
    "exit": "quit",
}
SESSION = r"""/NAME VALUE changes an option, and /NAME off turns it off.
/NAME alone shows it, or switches it if it is on or off.
/why explains the last run; at a terminal an empty line goes on from its text;
quit ends the session.
In a prompt \n is a newline, \t a tab, \\n the characters \n.
// begins a prompt with a slash."""
# Values that the workbench offers, and Tab in a session: not all that an option takes.
CHOICES = {
    "K": ["auto", "4", "8", "16"],
    "drafter": [*drafters.DRAFTERS, "prompt_lookup+model", "model/ngram", "model/prompt_lookup", "int8/model"],
    "accept": ["token", "block", "lenient:0.5", "typical:0.1"],
    "only": ["autoregressive", "speculative"],
    "stop": ["<|endoftext|>"],
    "seed": ["random"],
    "tree": ["2,2,1"],
}
LIVE = [name for name, f in FIELDS.items() if f.metadata.get("live")]  # options that a session can change
MORE = "More"  # the group of the rare options
MOST_COLUMNS = 120  # also at a wider terminal
INDENT = 26  # columns before an option's help


def help_text(everything: bool = False) -> str:
    """Return --help: the options with their defaults; with everything, the rare ones too."""
    entries = {name: (flag(name), default(name)) for name in FIELDS}
    rest = grouped(entries, [MORE]) if everything else ["", "--help all shows the rest."]
    return "\n".join(grouped(entries, GROUPS) + rest)


def session_help(options: ModelOptions) -> str:
    """Return /help: the options that a session can change, with their values."""
    entries = {name: (f"/{name}", value_in_words(name, getattr(options, name))) for name in LIVE}
    return "\n".join([wrapped(SESSION), *grouped(entries, (*GROUPS, MORE))])


def wrapped(text: str) -> str:
    """Return a text whose lines fit the terminal."""
    return "\n".join(textwrap.fill(line, columns(), break_on_hyphens=False) for line in text.splitlines())


def columns() -> int:
    """Return the width of help at this terminal."""
    return max(min(shutil.get_terminal_size().columns, MOST_COLUMNS), 2 * INDENT)


def grouped(entries: dict[str, tuple], groups: Sequence[str]) -> list[str]:
    """Return the lines of these groups: the heading of each that has an entry, and its entries.

    entries: {option: (its name as it is typed here, the value that stands behind its help; "" for none)}.
    """
    lines = []
    for group in groups:
        names = [name for name in entries if FIELDS[name].metadata.get("group", MORE) == group]
        if names:
            lines += ["", group]
        for name in names:
            typed, value = entries[name]
            metadata = FIELDS[name].metadata
            in_brackets = f" [{value}]" if value else ""
            lines += option_lines(f"{typed} {metadata['takes']}", metadata["help"] + in_brackets)
    return lines


def option_lines(typed: str, words: str) -> list[str]:
    """Return an option's lines. Its help begins beside it, or below it if it is long."""
    indent = " " * INDENT
    beside = f"  {typed.rstrip()}".ljust(INDENT)
    lines = []
    if not beside.endswith(" "):
        lines = [beside]
        beside = indent
    lines += textwrap.wrap(words, columns(), initial_indent=beside, subsequent_indent=indent, break_on_hyphens=False)
    return lines


def flag(name: str) -> str:
    """Return an option as a command line has it: -K, --K."""
    short = FIELDS[name].metadata.get("short")
    return f"-{short}, --{name}" if short else f"--{name}"


def default(name: str) -> str:
    """Return the default as it is typed; "" for an option that is off."""
    value = FIELDS[name].default
    return "" if value is None or value is False else as_typed(name, value)


def value_in_words(name: str, value: object) -> str:
    """Return the value as a session shows it: on and off for a switch, off for an option that is not set."""
    if value is None or isinstance(value, bool):
        return "on" if value else "off"
    return as_typed(name, value)
