"""Files that are written whole or not at all."""

import contextlib
import json
import os
import sys
import tempfile

from plumbing.errors import UserError
from plumbing.terminal import ESCAPED

ROOM = 2**20  # bytes, more than most runs need


def check_writable(path: str) -> None:
    """Raises UserError where write_text could not write to path, or the disk has no ROOM; to be asked before hours of
    work, not after."""
    try:
        if path == "-":
            raise OSError(22, "standard output has the texts, and a file of that name is written ./-")
        if os.path.isdir(path):
            raise IsADirectoryError(21, "it is a folder")
        if is_printed_to(path):  # /dev/stdout, redirected: its link would be replaced, or what is printed lost
            raise OSError(22, "this run prints to it")
        if not is_plain_file(path):  # opening a pipe would end it for who reads
            if not os.access(path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        else:
            target = behind_links(path)
            if os.path.exists(target):
                with open(target, "ab"):
                    pass
            with tempfile.NamedTemporaryFile(dir=os.path.dirname(target) or ".") as f:
                f.write(bytes(ROOM))
                f.flush()
            for name in (target, f"{target}.part"):
                with contextlib.suppress(FileNotFoundError):
                    os.stat(name)  # an error of another kind where the name is too long, or a link leads to itself
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}") from None


def write_json(path: str, content: dict) -> None:
    """In UTF-8, and what a terminal that shows it would obey as an escape, \\u009b for example."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text.translate(ESCAPED) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes all of it or nothing: the file appears under its name when it is complete. Raises UserError."""
    target = behind_links(path) if is_plain_file(path) else path
    part = f"{target}.part" if is_plain_file(path) else path  # a pipe or a device is written to as it is
    try:
        # A prompt may hold half a surrogate pair, which UTF-8 cannot say but JSON can: as an escape, \\udXXX.
        with open(part, "w", encoding="utf-8", errors="backslashreplace") as f:
            f.write(text)
        if part != path:
            os.replace(part, target)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}") from None
    finally:
        if part != path:
            with contextlib.suppress(OSError):
                os.remove(part)  # it is still there only where something went wrong, or was interrupted


def behind_links(path: str) -> str:
    """The plain file that a link leads to, which is what is written: the link stays."""
    return os.path.realpath(path) if os.path.islink(path) else path


def is_plain_file(path: str) -> bool:
    return os.path.isfile(path) or not os.path.exists(path)


def is_printed_to(path: str) -> bool:
    """Whether path is the file that standard output or standard error goes to."""
    printed_to = []
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no file
            printed_to.append(os.fstat(stream.fileno()))
    return os.path.isfile(path) and any(os.path.samestat(os.stat(path), to) for to in printed_to)
