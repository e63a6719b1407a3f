"""--interactive: models are loaded once, and each line is a prompt. A line that begins with / changes a flag."""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping

from speculative.options import check_live
from speculative.session import Session
from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.options import Options

MOST = 2**20  # characters of a line that nobody types, so that no endless one fills the memory

FLAGS = (
    Flag(
        "interactive",
        arguments.switch,
        "load the models once, and decode each line that is typed",
        False,
        excludes=("prompt", "prompt_file", "unconditional", "batch", "json", "html", "verify"),
    ),
)


def check(o: Options) -> None:
    """Raises UserError where several processes would be asked one thing each."""
    if (o.interactive or o.serve is not None) and os.environ.get("JAX_COORDINATOR_ADDRESS"):
        raise UserError("here several processes compute the same: --interactive and --serve are for one that is asked")


def interact(session: Session, decode: Callable, flags: Mapping[str, Flag]) -> None:
    """Reads lines until there are no more. decode(session, prompts) prints; flags: those of the command line.

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
            session = answer(next_line(typed), session, decode, flags)
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
        line = line.rstrip("\r\n")
        return arguments.prompt(line)
    except UnicodeDecodeError:
        raise UserError("a line must be text in UTF-8") from None
    except ValueError as must_be:
        raise UserError(f"a line must be {must_be}") from None


def answer(line: str, session: Session, decode: Callable, flags: Mapping[str, Flag]) -> Session:
    """-> the session that answers the next line. Raises EOFError where that is to be the end, and UserError."""
    short = [flag.short for flag in flags.values() if flag.short]
    if re.match(rf"(--({'|'.join(flags)})|-({'|'.join(short)}))(\s|=|$)", line):
        raise UserError("a line is a prompt: flags change with a line like /temperature 1 /K 8, before it")
    if not line.startswith("/"):
        if line.strip():
            decode(session, [line])
        return session
    o = session.options
    command, *rest = line[1:].split(maxsplit=1) or [""]
    if command in ("quit", "exit", "help") and rest:
        raise UserError(f"/{command} stands alone on its line")
    if command in ("quit", "exit"):
        raise EOFError
    if command in ("", "help"):
        print("/quit ends the session. A flag alone is switched over, or set to its default:")
        for flag in flags.values():
            if flag.live:
                print(f"  /{flag.name:21} {flag.help_now()} [{getattr(o, flag.name)}]")
        return session
    changed = changes(line, flags)
    check_live(flags, changed)
    for name, value in changed.items():
        if name in flags and flags[name].parse is arguments.switch and not value:
            changed[name] = not getattr(o, name)
    session = session.changed(**changed)
    for name, value in changed.items():
        print(f"{name} = {getattr(session.options, name) if value is None else value}")
    return session


def changes(line: str, flags: Mapping[str, Flag]) -> dict[str, str | None]:
    """ "/K 8/4 /temperature=1 /stop" -> {"K": "8/4", "temperature": "1", "stop": None}

    A value goes on to the next flag, as it may hold spaces and slashes. The first name may be one that is none. Raises
    UserError where one stands twice.
    """
    parts = re.split(rf"(?:^|\s)/({'|'.join(flags)})(?=[\s=]|$)", line)
    first, *named = parts
    if first:
        name, *value = re.split(r"[\s=]", first[1:], maxsplit=1)
        named = [name, "".join(value), *named]
    names = named[::2]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--{name:.80} is given twice")
    values = [value[1:] if value[:1] in (" ", "=") else value for value in named[1::2]]
    return {name: value or None for name, value in zip(names, values, strict=True)}
