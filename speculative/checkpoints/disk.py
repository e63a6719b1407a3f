"""Files of a model on the disk: mapped into memory, and the note that one of them was checked."""

import contextlib
import hashlib
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from speculative.checkpoints.names import MODEL_SIZES
from speculative.support.errors import UserError
from speculative.support.files import StrPath, cache_home, naming, size_of

SAVE = "save the model as transformers does, as model.safetensors"
# How files begin that are in the place of one that can be read, in lower case.
OTHER_FILES = {
    b"version https://git-lfs": "a pointer of git-lfs: git lfs pull gets the file",
    b"<!doctype": "a web page in the file's place: download the file itself",
    b"<html": "a web page in the file's place: download the file itself",
    b"gguf": f"a file of llama.cpp under another name: {SAVE}",
    b"pk\x03\x04": f"an archive or a file of torch.save under another name: unpack it, or {SAVE}",
    b"\x80\x02": f"a file of torch.save under another name: {SAVE}",
    b"\x89hdf": f"a file of Keras or TensorFlow under another name: {SAVE}",
    b"\x1f\x8b": "compressed by gzip: unpack it",
}


class FileState(NamedTuple):
    """The facts of a file that change when another one takes its place, or when its content changes."""

    n_bytes: int
    modified: int  # nanoseconds
    changed: int  # nanoseconds
    number: int


@dataclass(frozen=True)
class MappedFile:
    """A file in memory."""

    path: str
    content: mmap.mmap | bytes = field(repr=False)  # bytes if the file system cannot map
    state: FileState  # when it was opened


def mapped(path: StrPath) -> MappedFile:
    """Map a file into memory, to be read; some network disks cannot, so it is read. Raises UserError, OSError."""
    with naming(path), open(path, "rb") as f:
        state = state_of(f.fileno())
        if state.n_bytes == 0:
            raise bad_file(path, "empty")
        content: mmap.mmap | bytes
        try:
            content = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError:
            content = f.read()
        return MappedFile(os.fspath(path), content, state)


def state_of(file: str | int) -> FileState:
    """Return the state of a path, or of an open file, whatever its name means by now."""
    about = os.stat(file)
    return FileState(about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)


def check_files_in_use(states: Mapping[str, FileState]) -> None:
    """Raise UserError if another program has written to a file that stays mapped, because a model reads its weights
    where they lie. (A replaced file is still there.) states: by path, when the model was loaded."""
    for path, state in states.items():
        now = state_of(path) if os.path.exists(path) else state
        if now.number == state.number and (now.n_bytes, now.modified) != (state.n_bytes, state.modified):
            raise UserError(f"{path}: written to while the model uses it: load the model once more")


def bad_file(path: StrPath, fault: str) -> UserError:
    """Return the UserError for a file that can be read and has the wrong content."""
    return UserError(f"{path}: {other_file(path) or fault}{how_it_comes_back(Path(path))}")


def other_file(path: StrPath) -> str:
    """Return the kind of a file that is in another one's place, by its first bytes, and a remedy; "" if unknown."""
    if size_of(path) == 0:
        return ""
    with open(path, "rb") as f:
        begin = f.read(100).lstrip().lower()
    return next((kind for first, kind in OTHER_FILES.items() if begin.startswith(first)), "")


def how_it_comes_back(path: Path) -> str:
    """Return the file to delete, so that a damaged one is downloaded again; "" if it was not downloaded."""
    if path.parent.parent.name == "snapshots":  # a link of the hub's cache
        return f"; delete {os.path.realpath(path)} to have it downloaded again"
    sums = path.with_name("SHA256SUMS")  # the hashes of the official models' files
    if path.parent.name in MODEL_SIZES and sums.is_file() and f"  {path.name}\n" in sums.read_text():
        return "; delete it to have it downloaded again"
    return ""


def note_of(about: object) -> Path | None:
    """Return the path of a note, an empty file in the user's cache: if it is there, an earlier run found everything
    right in files of this state. None if there is no home.

    about: all that was checked, with the states of its files.
    """
    with contextlib.suppress(RuntimeError):
        return cache_home() / "checked" / hashlib.sha256(repr(about).encode()).hexdigest()
    return None


def leave(note: Path) -> None:
    """Write a note, or leave it out if that is not possible: then later runs check again."""
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
