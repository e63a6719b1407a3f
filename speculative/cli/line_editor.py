"""The line editor of a session at a terminal: Tab completes, and earlier lines come back, also those of the last
session."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from speculative.cli.help import CHOICES, LIVE, SESSION_COMMANDS
from speculative.cli.words import SWITCHES
from speculative.support.files import cache_home

MOST_LINES = 1000  # of the history
SLASH_WORDS = [f"/{name}" for name in LIVE]  # as they are typed
SLASH_WORDS += [name for name in SESSION_COMMANDS if len(name) > 1 and name.startswith("/")]


@contextlib.contextmanager
def editing() -> Iterator:
    """Read lines with Tab and a history while the body of the `with` runs. Without readline, as on Windows, without."""
    try:
        import readline
    except ImportError:
        yield
        return
    words: list[str] = []  # the completions of the word that is being typed

    def complete(word: str, number: int) -> str | None:
        if number == 0:
            words[:] = completions(readline.get_line_buffer()[: readline.get_begidx()], word)
        return words[number] if number < len(words) else None

    readline.set_completer_delims(" =")
    readline.set_completer(complete)
    is_libedit = "libedit" in (readline.__doc__ or "")  # of macOS
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    readline.set_history_length(MOST_LINES)
    file = history_file()
    if not file:
        yield
        return
    with contextlib.suppress(OSError):  # without a file that can be read or written, there is no history
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)


def completions(before: str, word: str) -> Sequence[str]:
    """Return what a word can become. before: the line up to it."""
    words = before.split()
    if word.startswith("/"):
        typed = SLASH_WORDS
    elif words and words[-1].startswith("/"):
        name = words[-1].removeprefix("/")
        typed = ["on", "off"] if name in SWITCHES else CHOICES.get(name, [])
    else:
        typed = []
    return [f"{name} " for name in typed if name.startswith(word)]


def history_file() -> Path | None:
    """Return the file of earlier lines; None if HISTFILE is empty, which turns a shell's history off, too, or if there
    is no home."""
    if os.environ.get("HISTFILE") == "":
        return None
    with contextlib.suppress(RuntimeError):
        return cache_home() / "session_history"
    return None
