"""Files: one that we write is whole or absent, and never one of the run's inputs; and texts that are read."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from speculative.support.errors import UserError
from speculative.support.terminal import ESCAPED, one_line

AnyPath = str | os.PathLike
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
def naming(path: AnyPath) -> Iterator:
    """Add the file's name to an OSError: that of a read, a write or a map does not have it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[str]:
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
        os.replace(part, path)


@contextlib.contextmanager
def locked(path: str, waiting: str) -> Iterator:
    """Hold a lock on a file while the body of the `with` runs, if its disk has locks. Another process that holds it is
    waited for, with the line `waiting`. The system takes the lock back from a process that ends."""
    from filelock import FileLock, Timeout

    beside = f"{path}.lock"
    if os.path.islink(beside):  # of a stranger
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


def size_of(path: AnyPath) -> int:
    """Return the bytes of a file, 0 if it does not exist."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def say_written(path: str, what: str) -> None:
    """Print the name of a file that was written, and its size, unless it is standard output."""
    if path != "-":
        print(one_line(f"Wrote {path}: {what}, {os.path.getsize(path) / 1e3:,.0f} kB"))


def check_outputs(outputs: Iterable[str | None], inputs: Iterable[str | None] = ()) -> None:
    """Raise UserError if an output cannot be written, is written twice, or is one of the inputs or a file of the
    program: before the work.

    An input may be a folder, in which nothing may be written, or "-", the standard input. A path of None is left out,
    and an output "-", which is standard output.
    """
    used = forms_of("/dev/stdout")
    for path in (*PROGRAM, *inputs):
        if path:
            used |= forms_of("/dev/stdin" if path == "-" else path)
    for path in outputs:
        if path in (None, "-"):
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


def check_writable(path: str) -> None:
    """Raise UserError if a file of this name cannot be written. A device would be replaced."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if os.path.exists(real) and not os.path.isfile(real):
        raise UserError(f"cannot write to {path}: it is there, and not a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {path}: {folder} is not a folder in which you may write")


# ---- Texts from files: prompts, and texts in which n-grams are counted -----------------------------------------------


def read_text(path: str, what: str) -> str:
    """Return a text in UTF-8; "-" is the standard input. Raises UserError, which says what the text is for."""
    try:
        with open(0 if path == "-" else path, encoding="utf-8-sig", newline="", closefd=path != "-") as f:
            text = f.read()  # -sig: some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"byte {error.start} is not UTF-8"
        raise UserError(f"cannot read the {what} from {path}: {reason}") from None
    if not text.strip():
        raise UserError(f"the {what} from {path} is empty: it should be some text")
    return text


def read_prompts(path: str, n: int | None = None) -> list[str]:
    """Return the first n prompts of a file (default: all). Raises UserError.

    A file .jsonl has an object with "prompt" on each line, any other file has one prompt a line.
    """
    text = read_text(path, "file of prompts")
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()][:n]
    if not is_jsonl(path):
        return lines
    return [prompt_of(line, f"{path}: prompt {number}") for number, line in enumerate(lines, start=1)]


def prompt_of(line: str, name: str) -> str:
    """Return the prompt of a line of JSON. name: of the line, for the error. Raises UserError."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        prompt = json.loads(line)["prompt"]
        if prompt and isinstance(prompt, str):
            return prompt
    raise UserError(f'{name} should be an object with "prompt", which is a text that is not empty')


def is_jsonl(path: str) -> bool:
    """Return True if the file's name says that each line is a JSON object."""
    return path.lower().endswith(".jsonl")
