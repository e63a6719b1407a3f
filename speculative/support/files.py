"""Every file that we write is whole or absent, and never one of the run's inputs."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from speculative.support.errors import UserError
from speculative.support.terminal import ESCAPED


def cache_home() -> Path:
    """The folder for files that this user's programs can make again. A relative one does not count, says the XDG Base
    Directory Specification: it would be another one in each folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "speculative-sampling"


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Give a path to write to; at the end that file takes the place of the file `path`, all at once.

    If the body of the `with` fails, nothing is left. A link named `path` is replaced, not followed: a model's folder
    may come from a stranger, and hold links. The temporary file has a folder of its own beside it, so no other process
    and no file of the user's has its name.
    """
    folder, name = os.path.split(path)
    with tempfile.TemporaryDirectory(dir=folder or ".", prefix=".", suffix=".part") as own:
        part = os.path.join(own, name)
        try:
            yield part
        except OSError as error:  # a full disk: the error of a write does not name its file
            error.filename = error.filename or os.fspath(path)
            raise
        os.replace(part, path)


def write_text(path: str, text: str) -> None:
    """Write a file that the user named, all of it or nothing. If it is a link, the file behind it is written. "-" is
    standard output."""
    if path == "-":
        sys.__stdout__.buffer.write(text.encode("utf-8", "backslashreplace"))
        return sys.__stdout__.flush()
    path = os.path.expanduser(path)
    check_writable(path)
    with replacing(os.path.realpath(path)) as part:
        Path(part).write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str, content: dict) -> None:
    """Write JSON in UTF-8. Characters that a terminal would obey become escapes, \\u009b for example."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text.translate(ESCAPED) + "\n")


def size_of(path: str | os.PathLike) -> int:
    """Return the bytes of a file, 0 if it does not exist."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def check_outputs(outputs: Iterable[str | None], inputs: Iterable[str | None] = ()) -> None:
    """Raise UserError if an output cannot be written, is written twice, or is one of the inputs: before the work.

    An input may be a folder, in which nothing may be written, or "-", the standard input. A path of None is left out,
    and an output "-", which is standard output.
    """
    used = {"/dev/stdin" if path == "-" else path for path in (*inputs, "/dev/stdout") if path}
    used = {form(path) for path in used for form in (os.path.realpath, os.path.abspath)}
    for path in outputs:
        if path in (None, "-"):
            continue
        forms = os.path.realpath(path), os.path.abspath(path)  # without the links in it, and with them
        if any(form == one or form.startswith(os.path.join(one, "")) for form in forms for one in used):
            raise UserError(f"this run uses {path}: choose another file")
        check_writable(path)
        used.update(forms)


def check_writable(path: str) -> None:
    """Raise UserError if a file of this name cannot be written. A device would be replaced."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if os.path.exists(real) and not os.path.isfile(real):
        raise UserError(f"cannot write to {path}: it is there, and not a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {path}: {folder} is not a folder in which you may write")
