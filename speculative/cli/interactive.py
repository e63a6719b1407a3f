"""--interactive: models are loaded once, and each line is a prompt. A line that begins with / changes options."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from speculative.cli.command import DASHES, SWITCHES, Given
from speculative.cli.display import show_ending
from speculative.cli.help import CHOICES, LIVE, SESSION_COMMANDS, session_help, value_in_words, wrapped
from speculative.report.record import RunRecord
from speculative.run.options import FIELDS, SHORT, Options
from speculative.run.session import Session
from speculative.run.values import without_escapes
from speculative.support.errors import Option, UserError, naming_options
from speculative.support.files import cache_home
from speculative.support.terminal import one_line

WELCOME = """
Each line is a prompt, and an empty one goes on from the last text.
/help lists what can change; /why says why the last run was as fast as it was.
Ctrl-C ends a decode, Ctrl-D the session."""


# decode(session, prompts) prints -> the record of the run, None with --quiet
Decode = Callable[[Session[Options], list[str]], RunRecord | None]


# ---- Editing a line --------------------------------------------------------------------------------------------------


MOST_LINES = 1000  # lines of the history
SLASH_WORDS = [f"/{name}" for name in LIVE]  # as they are typed
SLASH_WORDS += [name for name in SESSION_COMMANDS if len(name) > 1 and name.startswith("/")]


@contextlib.contextmanager
def editing() -> Iterator:
    """Read lines with Tab and a history while the body of the `with` runs. Where readline is
    missing, as on Windows, lines are read without these."""
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
    is_libedit = "libedit" in (readline.__doc__ or "")  # the library of macOS
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
    """Return the completions of a word. before: the line up to it."""
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


# ---- The conversation ------------------------------------------------------------------------------------------------


@dataclass
class Conversation:
    """A session at a terminal or over a pipe: the state that a line may change."""

    session: Session[Options]
    decode: Decode
    last: RunRecord | None = None  # the record of the last run, if it had one
    has_begun: bool = False  # whether a text was decoded

    @naming_options("/")
    def answer(self, line: str) -> None:
        """Decode a prompt, change options or run a command. Raises UserError, and EOFError if the session is to end."""
        line = line.removeprefix("\ufeff").removesuffix("\r")  # marks of a pipe on Windows
        command = SESSION_COMMANDS.get(line.strip())
        if re.match(r"/(help|\?)\s", line):  # with the name of an option
            command = "help"
        if command == "quit":
            raise EOFError
        elif command == "help":
            print(session_help(self.session.options))
        elif command == "why":
            if not self.last:
                raise UserError("nothing was decoded and measured yet: give a prompt first, without /quiet")
            show_ending(self.last)
        elif line.startswith("/") and not line.startswith("//"):
            changes = read_changes(line)
            prompt = changes.pop("prompt", "")
            if not isinstance(prompt, str):
                raise UserError(Option("prompt"), " needs a text: /p It was")
            self.session = change(self.session, changes)
            if prompt:
                self.decode_text(prompt)  # its escapes are read: see Given
        elif line.strip():
            check_prompt(line)
            self.decode_text(without_escapes(line.removeprefix("/")))

    def decode_text(self, prompt: str) -> None:
        self.last = None
        self.has_begun = True
        self.last = self.decode(self.session, [prompt] * self.session.options.n_samples)

    @naming_options("/")
    def go_on(self) -> None:
        """Decode from the end of the last text. Nothing happens before the first. Raises UserError."""
        if self.has_begun and not self.last:
            raise UserError("there is no text to go on from: the last run had /quiet, or was interrupted")
        if self.last:
            [*_, decoder] = self.last.decoders.values()
            self.decode_text(self.last.prompts[0].text + decoder.samples[0].text)


def interact(session: Session[Options], decode: Decode) -> None:
    """Answer lines until there are no more. decode: see Conversation.

    At a terminal the session goes on after a mistake, and after Ctrl-C. Elsewhere both end it, as any command.
    """
    if not isinstance(sys.stdin, io.TextIOWrapper):  # the input of a notebook
        instead = "session = load_pair(...), then session.compare(prompt)"
        raise UserError(Option("interactive"), f" reads a terminal or a pipe: in a notebook take {instead}")
    sys.stdin.reconfigure(errors="surrogateescape")  # bytes that are not UTF-8 are refused with the prompt
    conversation = Conversation(session, decode)
    with contextlib.suppress(EOFError):  # the end of the input, or a line that ends the session
        if sys.stdin.isatty():
            talk(conversation)
        while True:
            conversation.answer(input())


@editing()
def talk(conversation: Conversation) -> NoReturn:
    """Answer the lines that are typed at a terminal. Raises EOFError at their end."""
    print(wrapped(WELCOME))
    while True:
        try:
            line = input("\n> ")
            if line.strip():
                conversation.answer(line)
            else:
                conversation.go_on()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print(file=sys.stderr)  # after ^C


def check_prompt(line: str) -> None:
    """Raise UserError if a line seems to be options instead of a prompt."""
    flag = re.match(rf"[-{DASHES}]-?(\w+)(\s|=|$)", line)
    if flag and flag[1] in {*FIELDS, *SHORT}:
        raise UserError("this line would be a prompt: change options in another line, such as /temperature 1 /K 8")


def change(session: Session[Options], given: Given) -> Session[Options]:
    """Change options, and print their values. A switch without a value is switched, another option only shown.
    Raises UserError."""
    values: dict[str, object] = {}
    for name, value in given.items():
        if name in SWITCHES and not value:
            values[name] = not getattr(session.options, name)
        elif value in ("off", ["off"]) and name in FIELDS and FIELDS[name].default is None:
            values[name] = None
        elif value or not hasattr(session.options, name):  # an unknown name is refused
            values[name] = value
    session = session.changed(**values)
    for name in given:
        print(one_line(f"{name} = {value_in_words(name, getattr(session.options, name))}"))
    return session


def read_changes(line: str) -> Given:
    """ "/K 8/4 /stop a b /stop c /seed" -> {"K": "8/4", "stop": ["a b", "c"], "seed": None}. /n is its option, too.
    Raises UserError."""
    another = rf"/(?:{'|'.join([*FIELDS, *SHORT])})(?:[\s=]|$)"  # in "/quiet /K 4" no value follows /quiet
    _, *parts = re.split(rf"(?:^|\s)/([^\s=]+)(?:=|\s(?!{another}))?", line)
    given = Given()
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        given.add(SHORT.get(name, name), value or None)
    return given
