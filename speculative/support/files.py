"""Files that are written whole or not at all, and never over what the run reads.

A file that the user names (--json, --html) may be a link, and is written where that leads to. What a run writes beside
a model without being asked where goes under its own name alone: a folder from a stranger may hold links.
"""

import contextlib
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from speculative.support.errors import UserError
from speculative.support.terminal import ESCAPED

ROOM = 2**20  # bytes, more than most runs need
MOST_SMALL = 2**24  # bytes of a file that is read whole, and of any of a model folder that does not hold weights
NO_FILE = "it is a pipe or a device, and not a file"

# The shell has opened these already, or they never wait. All other files that are read or written must be plain ones: a
# named pipe would wait for ever for somebody at its other end.
OPEN = re.compile(r"/dev/(null|stdin|stdout|stderr|fd/\d+)|/proc/self/fd/\d+")


def open_to_read(path: str) -> BinaryIO:
    """Opens a file; "-" is the standard input. Raises OSError."""
    if path == "-":
        return open(0, "rb", closefd=False)
    check_kind(path)
    return open(path, "rb")


def read_small(path: str | os.PathLike, most: int = MOST_SMALL) -> str:
    """The text of a file, which is UTF-8 on every system and may have any system's line ends.

    Every small file of a model is read here, since the folder may come from a stranger: reading a pipe could wait for
    ever, and a device may never end. Raises ValueError, which says why the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8", opener=open_at_once) as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                raise ValueError(NO_FILE)
            text = f.read(most + 1)
    except OSError as error:
        raise ValueError(error.strerror) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    if len(text) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return text


def open_at_once(path, flags):
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_kind(path):
    """Raises OSError if opening the path could wait for ever. The path may not exist."""
    mode = os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or OPEN.fullmatch(str(path))):
        raise OSError(22, NO_FILE)


def check_outputs(outputs: Iterable[str | None], inputs: Iterable[str | None] = ()) -> None:
    """Raises UserError if one of the outputs cannot be written, is one of the inputs, or is written twice.

    This is asked before hours of work, not after.

    An input may be a folder, of which every file is read, or "-", the standard input. A path of None is left out.
    """
    outputs = [path for path in outputs if path]
    read = [path for path in inputs if path]
    read += [entry.path for folder in read if os.path.isdir(folder) for entry in os.scandir(folder)]
    for number, path in enumerate(outputs):
        if any(is_same(path, other) for other in outputs[:number]):
            raise UserError(f"{path!r:.80} would be written twice: give each file a name of its own")
        if any(is_same(path, other) for other in read):
            raise UserError(f"{path!r:.80} is read in this run, and would be overwritten: write to another file")
        check_writable(path)


def is_same(path: str, other: str) -> bool:
    """True if two paths lead to the same plain file, which may not exist yet."""
    if not is_plain_file(path):
        return False
    try:
        return os.path.samestat(os.stat(path), os.fstat(0) if other == "-" else os.stat(other))
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def check_writable(path: str | os.PathLike) -> None:
    """Raises UserError if write_text could not write to path, or the disk has no ROOM."""
    try:
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise ValueError
        if path == "-":
            raise OSError(22, "standard output has the texts, and a file of that name is written ./-")
        if os.path.isdir(path):
            raise IsADirectoryError(21, "it is a folder")
        if is_printed_to(path):  # /dev/stdout, redirected: its link would be replaced, or what is printed lost
            raise OSError(22, "this run prints to it")
        check_kind(path)
        target = behind_links(path)
        if not is_plain_file(path):  # to open and close a pipe would end it for its reader
            if not os.access(path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        else:
            if os.path.exists(target):
                with open(target, "ab"):
                    pass
            with tempfile.NamedTemporaryFile(dir=os.path.dirname(target) or ".") as f:
                f.write(bytes(ROOM))
                f.flush()
            with contextlib.suppress(FileNotFoundError):
                os.stat(target)  # an error of another kind where the name is too long, or a link leads to itself
    except ValueError:  # a zero byte, or half a surrogate pair
        raise UserError(f"{path!r:.80} is not the name of a file") from None
    except OSError as error:
        raise UserError(f"cannot write to {path!s:.200}: {error.strerror}") from None


def write_json(path: str, content: dict) -> None:
    """Writes JSON in UTF-8. Characters that a terminal would obey become escapes, \\u009b for example."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text.translate(ESCAPED) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes all of it or nothing: the file appears under its name when it is complete. Raises UserError."""
    written_to = replacing(behind_links(path)) if is_plain_file(path) else contextlib.nullcontext(path)
    try:
        # A prompt may hold half a surrogate pair, which UTF-8 cannot say but JSON can: as an escape, \\udXXX.
        with written_to as part, open(part, "w", encoding="utf-8", errors="backslashreplace") as f:
            f.write(text)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}") from None


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """A path to write to. In the end that file takes the place of the file `path`, all at once; if something goes
    wrong, nothing is left. A link of that name is replaced, not followed.

    The path is in a new folder, so that no other process and no file of the user's has its name. Raises OSError where
    a folder, a pipe or a device has the name.
    """
    folder, name = os.path.split(path)
    if os.path.lexists(path) and stat.S_IFMT(os.lstat(path).st_mode) not in (stat.S_IFREG, stat.S_IFLNK):
        raise OSError(22, "it is there, and no file")
    with tempfile.TemporaryDirectory(dir=folder or ".", prefix=".", suffix=".part") as own:
        part = os.path.join(own, name)
        yield part
        os.replace(part, path)


def write_note(path: str | os.PathLike, text: str) -> None:
    """Writes a file that nobody asked for: a link of that name is replaced, not followed. Raises UserError."""
    try:
        with replacing(path) as part, open(part, "w", encoding="utf-8") as f:
            f.write(text)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}") from None


def clear_parts(folder: str | os.PathLike, is_ours: Callable[[str], object]) -> None:
    """Removes the folders that `replacing` has left where a run was killed.

    They hold nothing but files whose names are ours. They are an hour old, since another run may be writing.
    """
    for part in Path(folder).glob(".*.part"):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(part.lstat().st_mode):
                continue
            files = [*part.iterdir()]
            latest = max(path.lstat().st_mtime for path in (part, *files))
            if all(is_ours(path.name) for path in files) and time.time() - latest > 3600:
                for path in files:
                    path.unlink()
                part.rmdir()


def behind_links(path: str | os.PathLike) -> str:
    """The plain file that a link leads to. Written is that file, and the link stays."""
    return os.path.realpath(path) if os.path.islink(path) else os.fspath(path)


def is_plain_file(path: str) -> bool:
    return os.path.isfile(path) or not os.path.exists(path)


def is_printed_to(path: str) -> bool:
    """True if path is the file that standard output or standard error goes to."""
    printed_to = []
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no file
            printed_to.append(os.fstat(stream.fileno()))
    return os.path.isfile(path) and any(os.path.samestat(os.stat(path), to) for to in printed_to)
