"""Files: one that we write is whole or absent, and never one of the run's inputs; and texts that are read."""

import contextlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from speculative.support.errors import UserError
from speculative.support.terminal import ESCAPED, one_line

StrPath = str | os.PathLike
STANDARD_OUTPUT = {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}  # its names
PACKAGE = Path(__file__).parents[1]
BESIDE = ("main.py", "gpt2.py", "encoder.py", "utils.py", "README.md")  # the package, in a checkout
PROGRAM = (str(PACKAGE), *(str(PACKAGE.parent / name) for name in BESIDE))  # is not overwritten


def cache_home() -> Path:
    """Return the folder for files that this user's programs can make again. Raises RuntimeError if there is no home.

    A relative one does not count, says the XDG Base Directory Specification: it would be another one in each folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "speculative-sampling"


def bytes_in_words(n_bytes: int) -> str:
    """1_600_000_000 -> "1.6 GB", 25_000_000 -> "25 MB"."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.0f} MB"


@contextlib.contextmanager
def naming(path: StrPath) -> Iterator:
    """Add the file's name to an OSError: that of a read, a write or a map does not have it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


@contextlib.contextmanager
def replacing(path: StrPath) -> Iterator[str]:
    """Give a path to write to; at the end that file takes the place of the file `path`, all at once.

    If the body of the `with` fails, nothing is left. A link named `path` is replaced, not followed: a model's folder
    may come from a stranger, and hold links. The temporary file has a folder of its own beside it, so no other process
    and no file of the user's has its name.
    """
    folder, name = os.path.split(path)
    with tempfile.TemporaryDirectory(dir=folder or ".", prefix=".", suffix=".part") as own:
        part = os.path.join(own, name)
        with naming(path):
            yield part
        if os.path.isfile(path) and not os.path.islink(path):
            os.chmod(part, stat.S_IMODE(os.stat(path).st_mode))  # the mode of the file that is replaced
        os.replace(part, path)


@contextlib.contextmanager
def locked(path: str, waiting: str) -> Iterator:
    """Hold a lock on a file while the body of the `with` runs, if its disk has locks. Another process that holds it is
    waited for, with the line `waiting`. The system takes the lock back from a process that ends."""
    from filelock import FileLock, Timeout

    beside = f"{path}.lock"
    if os.path.islink(beside):  # a stranger's link
        os.remove(beside)
    lock = FileLock(beside)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(one_line(waiting), file=sys.stderr, flush=True)
        lock.acquire()
    except (NotImplementedError, OSError):
        pass  # a network disk may have no locks
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not delete an open file
            os.remove(beside)
        lock.release()


def standard_output() -> BinaryIO:
    """Return the bytes of standard output. Raises UserError if it is closed, or a notebook's."""
    stream = getattr(sys.__stdout__, "buffer", None)
    if stream is None or stream.closed:
        raise UserError("there is no standard output to write to: give a file in place of -")
    return stream


def write_text(path: str, text: str) -> None:
    """Write a file that the user named, all of it or nothing. If it is a link, the file behind it is written. "-" is
    standard output."""
    if path in STANDARD_OUTPUT:
        stream = standard_output()
        stream.write(text.encode("utf-8", "backslashreplace"))
        stream.flush()
        return
    path = os.path.expanduser(path)
    check_writable(path)
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device
        with naming(path), open(path, "w", encoding="utf-8", errors="backslashreplace") as f:
            f.write(text)
        return
    with replacing(os.path.realpath(path)) as part:
        Path(part).write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str, content: dict) -> None:
    """Write JSON in UTF-8."""
    write_text(path, as_json(content, indent=1))


def write_json_lines(path: str, objects: Iterable[dict]) -> None:
    """Write objects in UTF-8, one on each line."""
    write_text(path, "".join(map(as_json, objects)))


def as_json(content: dict, indent: int | None = None) -> str:
    """Return JSON that ends with a newline. Characters that a terminal would obey are escapes, \\u009b for example."""
    text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.translate(ESCAPED) + "\n"


def size_of(path: StrPath) -> int:
    """Return the bytes of a file, 0 if it does not exist."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def say_written(path: str, what: str) -> None:
    """Print the name of a file that was written, and its size, unless it is standard output."""
    if path not in STANDARD_OUTPUT:
        size = f", {size_of(path) / 1e3:,.0f} kB" if size_of(path) else ""
        print(one_line(f"Wrote {path}: {what}{size}"))


def check_outputs(outputs: Iterable[str | None], inputs: Iterable[str | None] = ()) -> None:
    """Raise UserError if an output cannot be written, is written twice, or is one of the inputs or a file of the
    program: before the work.

    An input may be a folder, in which nothing may be written, or "-", the standard input. A path of None is left out,
    and an output "-", which is standard output.
    """
    used = forms_of("/dev/stdout") if os.path.isfile("/dev/stdout") else set()
    for path in (*PROGRAM, *inputs):
        if path:
            used |= forms_of("/dev/stdin" if path == "-" else path)
    for path in outputs:
        if path is None:
            continue
        if path in STANDARD_OUTPUT:
            standard_output()
            continue
        forms = forms_of(path)
        if used & {outer for form in forms for outer in with_parents(form)}:
            raise UserError(f"this run uses {path}: choose another file")
        check_writable(path)
        used |= forms


def forms_of(path: str) -> set[str]:
    """Return the absolute path with the links in it, and without them."""
    return {os.path.abspath(path), os.path.realpath(path)}


def with_parents(path: str) -> list[str]:
    """Return an absolute path and the folders that it is in."""
    return [path, *map(str, Path(path).parents)]


def existing_part(path: StrPath) -> str:
    """Return a path if it exists, else the innermost folder around it that does."""
    return next(filter(os.path.exists, with_parents(os.path.abspath(path))))


def check_writable(path: str) -> None:
    """Raise UserError if a file of this name cannot be written."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if os.path.isdir(real):
        raise UserError(f"cannot write to {path}: it is a folder")
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device, which is written straight
        if not os.access(path, os.W_OK):
            raise UserError(f"cannot write to {path}: you may not write to it")
        if not stat.S_ISFIFO(os.stat(path).st_mode):  # to open a pipe waits for its reader
            try_to_write(path, path)
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {path}: {folder} is not a folder in which you may write")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".part") as own:  # as replacing does
        try_to_write(path, os.path.join(own, os.path.basename(real)))


def try_to_write(path: str, file: str) -> None:
    """Open a file in place of the output `path`. Raises UserError, for example if the name is too long, or if it is a
    socket."""
    try:
        open(file, "ab").close()
    except OSError as error:
        raise UserError(f"cannot write to {path}: {(error.strerror or str(error)).lower()}") from None
