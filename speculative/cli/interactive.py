"""--interactive: models are loaded once, and each line is a prompt. A line that begins with / changes a flag."""

import contextlib
import re
import signal
import sys
from collections.abc import Callable

from speculative.options import FIELDS, SHORT, as_typed, switch
from speculative.session import Session
from speculative.support.errors import UserError
from speculative.support.terminal import one_line

MOST = 2**20  # characters of a line that nobody types, so that no endless one fills the memory


def interact(session: Session, decode: Callable) -> None:
    """Reads lines until there are no more. decode(session, prompts) prints.

    At a terminal the session goes on after a mistake, and after Ctrl-C. Elsewhere both end it, as any command.
    """
    typed = sys.stdin is not None and sys.stdin.isatty()
    if typed:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(ImportError):  # it is not on every system
            import readline  # noqa: F401
        print("\nA line is a prompt. /help lists what can change; Ctrl-C ends a text, Ctrl-D the session.")
    while True:
        try:
            session = answer(next_line(typed), session, decode)
        except EOFError:
            return
        except (UserError, KeyboardInterrupt) as error:
            if not typed:
                raise
            said = f"error: {error}" if isinstance(error, UserError) else ""  # after ^C a line break is enough
            print(said, file=sys.stderr)


def next_line(typed: bool) -> str:
    """Raises EOFError at the end, and UserError for what is no text."""
    try:
        line = input("\n> ") if typed else sys.stdin and sys.stdin.readline(MOST)
        if not typed and not line:
            raise EOFError
        if len(line) == MOST:
            raise ValueError(f"at most {MOST:,} characters")
        return line.rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError("a line must be text in UTF-8") from None
    except ValueError as must_be:
        raise UserError(f"a line must be {must_be}") from None


def answer(line: str, session: Session, decode: Callable) -> Session:
    """-> the session that answers the next line. Raises EOFError if that is to be the end, and UserError."""
    if re.match(rf"(--({'|'.join(FIELDS)})|-({'|'.join(SHORT)}))(\s|=|$)", line):
        raise UserError("a line is a prompt: options change with a line like /temperature 1 /K 8, before it")
    if not line.startswith("/"):
        if line.strip():
            decode(session, [line])
        return session
    o = session.options
    if line in ("/quit", "/exit"):
        raise EOFError
    if line in ("/", "/help"):
        print("/quit ends the session. An option alone is switched over, or set to its default:")
        for name, f in FIELDS.items():
            if f.metadata.get("live"):
                print(f"  /{name:21} {f.metadata['help']} [{as_typed(name, getattr(o, name))}]")
        return session
    given = changes(line)
    for name, value in given.items():
        if name in FIELDS and FIELDS[name].metadata["check"] is switch and value is None:
            given[name] = not getattr(o, name)
    session = session.changed(**given)
    for name in given:
        print(one_line(f"{name} = {as_typed(name, getattr(session.options, name))}"))
    return session


def changes(line: str) -> dict[str, str | None]:
    """ "/K 8/4 /temperature=1 /stop" -> {"K": "8/4", "temperature": "1", "stop": None}

    A value goes on to the next option, as it may hold spaces and slashes.
    """
    parts = re.split(rf"(?:^|\s)/({'|'.join(FIELDS)})(?=[\s=]|$)", line)
    first, *named = parts
    if first:
        name, *value = re.split(r"[\s=]", first[1:], maxsplit=1)
        named = [name, "".join(value), *named]
    values = [value[1:] if value[:1] in (" ", "=") else value for value in named[1::2]]
    return {name: value or None for name, value in zip(named[::2], values, strict=True)}
