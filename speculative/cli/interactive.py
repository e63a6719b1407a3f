"""--interactive: models are loaded once, and each line is a prompt. A line that begins with / changes options."""

import contextlib
import re
import sys
from collections.abc import Callable
from typing import Any

from speculative.cli.command import WITHOUT_VALUE
from speculative.options import FIELDS, SHORT, as_typed, without_escapes
from speculative.session import Session
from speculative.support.errors import UserError
from speculative.support.terminal import one_line


def interact(session: Session, decode: Callable) -> None:
    """Read lines until there are no more. decode(session, prompts) prints.

    At a terminal the session goes on after a mistake, and after Ctrl-C. Elsewhere both end it, as any command.
    """
    # Bytes that are not UTF-8 are refused with the prompt.
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    typed = sys.stdin.isatty()
    if typed:
        with contextlib.suppress(ImportError):  # it is not on every system
            import readline  # noqa: F401
        print("\nEach line is a prompt. /help lists what can change; Ctrl-C ends a decode, Ctrl-D the session.")
    while True:
        try:
            session = answer(input("\n> " if typed else ""), session, decode)
        except EOFError:
            return
        except (UserError, KeyboardInterrupt) as error:
            if not typed:
                raise
            said = f"error: {error}" if isinstance(error, UserError) else ""  # after ^C a line break is enough
            print(said, file=sys.stderr)


def answer(line: str, session: Session, decode: Callable) -> Session:
    """Decode a prompt, or change options -> the session that answers the next line. Raises UserError, and EOFError
    after /quit."""
    line = line.removeprefix("\ufeff").removesuffix("\r")  # of a pipe on Windows
    flag = re.match(r"--?(\w+)(\s|=|$)", line)
    if flag and flag[1] in {*FIELDS, *SHORT}:
        raise UserError("this line would be a prompt: change options in another line, such as /temperature 1 /K 8")
    if not line.startswith("/") or line.startswith("//"):
        if line.strip():
            decode(session, [without_escapes(line.removeprefix("/"))] * session.options.n_samples)
        return session
    given = changes(line)
    if {"quit", "exit"} & {*given}:
        raise EOFError
    o = session.options
    if not given or "help" in given:
        print("/NAME VALUE changes an option; /NAME alone switches it or sets its default. /quit ends the session.")
        print(r"In a prompt \n is a newline, \t a tab, \\n the characters \n; // begins a prompt with a slash.")
        for name, f in FIELDS.items():
            if f.metadata.get("live"):
                print(f"  /{name:21} {f.metadata['help']} [{as_typed(name, getattr(o, name))}]")
        return session
    given |= {name: not getattr(o, name) for name in WITHOUT_VALUE & {*given} if given[name] is None}
    session = session.changed(**given)
    for name in given:
        print(one_line(f"{name} = {as_typed(name, getattr(session.options, name))}"))
    return session


def changes(line: str) -> dict[str, Any]:
    """ "/K 8/4 /stop a b /stop c /seed" -> {"K": "8/4", "stop": ["a b", "c"], "seed": None}"""
    another = rf"/(?:{'|'.join(FIELDS)})(?:[\s=]|$)"  # in "/quiet /K 4" no value follows /quiet
    _, *parts = re.split(rf"(?:^|\s)/([^\s=]+)(?:=|\s(?!{another}))?", line)
    given: dict[str, Any] = {}
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        if name == "stop" and value:
            given[name] = [*given.get(name, []), without_escapes(value)]
        elif name in given:
            raise UserError(f"--{name} is given twice, and takes one value: give it once")
        else:
            given[name] = value or None
    return given
