"""--interactive: models are loaded once, and each line is a prompt. A line that begins with / changes options."""

import re
import sys
from collections.abc import Callable

from speculative.cli.help import COMMANDS, in_words, session_help
from speculative.cli.line_editor import editing
from speculative.cli.words import WITHOUT_VALUE, Given
from speculative.options import FIELDS, SHORT
from speculative.session import Session
from speculative.support.errors import UserError, naming_options
from speculative.support.terminal import one_line
from speculative.values import without_escapes

WELCOME = "\nEach line is a prompt. /help lists what can change; Ctrl-C ends a decode, Ctrl-D the session."


def interact(session: Session, decode: Callable) -> None:
    """Read lines until there are no more. decode(session, prompts) prints.

    At a terminal the session goes on after a mistake, and after Ctrl-C. Elsewhere both end it, as any command.
    """
    # Bytes that are not UTF-8 are refused with the prompt.
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    if sys.stdin.isatty():
        print(WELCOME)
        with editing():
            talk(session, decode)
    else:
        while session := next_session(session, decode, ""):
            pass


def talk(session: Session | None, decode: Callable) -> None:
    """Answer the lines that are typed at a terminal, until the session is ended."""
    while session:
        try:
            session = next_session(session, decode, "\n> ")
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print(file=sys.stderr)  # after ^C


def next_session(session: Session, decode: Callable, sign: str) -> Session | None:
    """Read a line and answer it -> the session that answers the next one, or None. Raises UserError."""
    try:
        line = input(sign)
    except EOFError:
        return None
    with naming_options("/"):
        return answer(line, session, decode)


def answer(line: str, session: Session, decode: Callable) -> Session | None:
    """Decode a prompt, change options or run a command -> the next session, None after /quit. Raises UserError."""
    line = line.removeprefix("\ufeff").removesuffix("\r")  # of a pipe on Windows
    command = COMMANDS.get(line.strip())
    if command == "quit":
        return None
    if command == "help":
        print(session_help(session.options))
        return session
    if line.startswith("/") and not line.startswith("//"):
        return change(session, read_changes(line))
    check_prompt(line)
    if line.strip():
        decode(session, [without_escapes(line.removeprefix("/"))] * session.options.n_samples)
    return session


def check_prompt(line: str) -> None:
    """Raise UserError if a line seems to be options instead of a prompt."""
    flag = re.match(r"--?(\w+)(\s|=|$)", line)
    if flag and flag[1] in {*FIELDS, *SHORT}:
        raise UserError("this line would be a prompt: change options in another line, such as /temperature 1 /K 8")


def change(session: Session, given: Given) -> Session:
    """Change options, and print what they are now. A switch without a value is switched. Raises UserError."""
    options = {name: value if value else switched(session, name) for name, value in given.items()}
    session = session.changed(**options)
    for name in given:
        print(one_line(f"{name} = {in_words(name, getattr(session.options, name))}"))
    return session


def switched(session: Session, name: str) -> bool | None:
    """Return the other value of a switch; None, the default, for another option."""
    return not getattr(session.options, name) if name in WITHOUT_VALUE else None


def read_changes(line: str) -> Given:
    """ "/K 8/4 /stop a b /stop c /seed" -> {"K": "8/4", "stop": ["a b", "c"], "seed": None}. Raises UserError."""
    another = rf"/(?:{'|'.join(FIELDS)})(?:[\s=]|$)"  # in "/quiet /K 4" no value follows /quiet
    _, *parts = re.split(rf"(?:^|\s)/([^\s=]+)(?:=|\s(?!{another}))?", line)
    given = Given()
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        given.add(name, value or None)
    return given
