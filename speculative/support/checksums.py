"""checksums.json: the size and sha256 of each file of a model, noted when the file was known to be whole.

{"hparams.json": {"bytes": 90, "sha256": "d9d56e41..."}, ...} stands beside the files. A download notes each file before
it gives it its name, training notes what it saves; a folder without the note is read as it is. A model that has an
official name, but not the official weights, also has "stand-in": "what it is instead".

Large safetensors take seconds to compare with their sha256. verified.json says which have been, with the size and the
times that they had. Neither note follows a link.
"""

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from speculative.support.errors import UserError, first_line
from speculative.support.files import MOST_SMALL, clear_parts, read_small, write_note

NAME = "checksums.json"
VERIFIED = "verified.json"
STAND_IN = "stand-in"  # the one key that is not a file's name
PACKED = "packed-"  # the beginning of the names of files that --pack makes of the weights
OURS = re.compile(
    rf"{re.escape(NAME)}|{re.escape(VERIFIED)}|{PACKED}\w+\.safetensors"
)  # files that a run writes unasked
MOST_BYTES = 2**20  # of the note itself
MOST_WORDS = 200  # characters that a stand-in may say of itself
DAMAGED = f"damaged: its sha256 is not the one in {NAME}"


def describe(path: str | Path, over: threading.Event | None = None) -> dict:
    """{"bytes": size, "sha256": hexadecimal digits} of a file. `over` ends the reading early."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(2**20):
            sha256.update(chunk)
            if over and over.is_set():
                break
        return {"bytes": f.tell(), "sha256": sha256.hexdigest()}


def note(folder: str | Path, files: dict[str, dict], stand_in: str = "") -> None:
    """Adds files, {name: result of describe}, to the note of a folder, where they may replace others, and drops those
    that the folder no longer has. stand_in: what the model is instead of the official one."""
    entries = {name: about for name, about in read_note(folder).items() if name == STAND_IN or is_there(folder, name)}
    entries |= files
    if stand_in:
        entries[STAND_IN] = stand_in
    lines = [f"{json.dumps(name)}: {json.dumps(about)}" for name, about in sorted(entries.items())]
    write_note(os.path.join(folder, NAME), "{\n" + ",\n".join(lines) + "\n}\n")


def is_there(folder, name):
    return os.path.isfile(os.path.join(folder, name))


def noted(folder: str | Path) -> dict[str, dict]:
    """{name: result of describe} for the files of a folder; {} if nothing is noted. Raises UserError."""
    files = read_note(folder)
    files.pop(STAND_IN, None)
    return files


def stand_in(folder: str | Path) -> str:
    """The words for a model that is not the official one of its name; "" if it does not say so. Raises UserError."""
    return read_note(folder).get(STAND_IN, "")


def read_note(folder: str | Path) -> dict[str, dict | str]:
    """The whole note, {} if there is none. Packed weights are left out: they have their own sums. Raises UserError."""
    path = os.path.join(folder, NAME)
    if not os.path.lexists(path):
        return {}
    try:
        content = json.loads(read_small(path, MOST_BYTES)).items()
        return {name: checked(name, about) for name, about in content if not name.startswith(PACKED)}
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise bad_note(folder, first_line(error)) from error


def bad_note(folder, fault):
    remedy = "delete it, and the files of this model are read unchecked"
    return UserError(f"{os.path.join(folder, NAME)}: damaged ({fault}); {remedy}")


def checked(name, about):
    """An entry of the note, converted to its types. Raises ValueError, TypeError or KeyError."""
    if name != STAND_IN:
        return {"bytes": int(about["bytes"]), "sha256": str(about["sha256"])}
    if len(about) > MOST_WORDS or not about.isprintable():  # it is shown, and a stranger may have written it
        raise ValueError(f"{STAND_IN} is not a short text")
    return about


def find_fault(path: str, thorough: bool = False) -> str | None:
    """The fault of a file, None if it has none: it is too large for its kind, or not the file that was noted.

    The sha256 of large weights takes long. Only their size is compared, unless thorough: compared() does the rest.
    """
    folder, name = os.path.split(path)
    n_bytes = os.path.getsize(path)
    about = noted(folder).get(name)
    is_large = n_bytes > MOST_SMALL
    if is_large and not name.startswith("model.") and not name.endswith(".safetensors"):
        return f"has {n_bytes:,} bytes, more than {MOST_SMALL:,}"
    if about and n_bytes != about["bytes"]:
        return f"has {n_bytes:,} bytes, {NAME} says {about['bytes']:,}"
    if about and (thorough or not is_large) and describe(path) != about:
        return DAMAGED
    return None


def check(folder: str, names: list[str], bad_file: Callable[[str, str], UserError]) -> None:
    """Raises bad_file(path, fault) for the first of these files that is there and has a fault; and UserError where
    there is a note, but not of all of them."""
    noted_files = noted(folder)
    for name in names:
        if not is_there(folder, name):
            continue
        if noted_files and name not in noted_files:
            raise bad_note(folder, f"it lacks {name}")
        path = os.path.join(folder, name)
        fault = find_fault(path)
        if fault:
            raise bad_file(path, fault)


def check_whole(folder: str) -> None:
    """Raises UserError where the note names a file that is not there: in a whole model, its name is misspelt."""
    for name in noted(folder):
        if not is_there(folder, name):
            raise bad_note(folder, f"it names {name!r:.100}, which is not there")


@contextlib.contextmanager
def compared(
    folder: str, names: list[str], bad_file: Callable[[str, str], UserError], describe: Callable = describe
) -> Iterator[None]:
    """Takes the sha256 of large safetensors while the body of the `with` reads them, and compares it at the end.

    Raises bad_file(path, fault) if it is not the one that was noted. OpenAI's form has its own sums, for each tensor.

    A file that was compared before, and has not changed since, is not compared again.
    """
    clear_left_over(folder)
    files = noted(folder)
    verified = read_verified(folder)
    over = threading.Event()
    described = []  # (path, its state, the result of describe to come)
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            for name in names:
                path = os.path.join(folder, name)
                if name not in files or not name.endswith(".safetensors") or os.path.getsize(path) <= MOST_SMALL:
                    continue
                now = state(path, files[name])
                if verified.get(name) != now:
                    described.append((path, now, thread.submit(describe, path, over)))
            yield
            for path, now, about in described:
                name = os.path.basename(path)
                if about.result() != files[name]:
                    raise bad_file(path, DAMAGED)
                if not os.path.islink(path):  # which leads into somebody else's cache, where nothing of ours belongs
                    keep_verified(folder, {name: now})
        finally:
            over.set()


def clear_left_over(folder: str | Path) -> None:
    """Removes files that killed runs had begun to write here."""
    clear_parts(folder, OURS.fullmatch)


def state(path: str, about: dict) -> list:
    """The noted sha256, and the size and times of the file, which change when it does. about: a result of describe."""
    now = os.stat(path)
    return [about["sha256"], now.st_size, now.st_mtime_ns, now.st_ctime_ns]


def read_verified(folder: str) -> dict:
    """{name: state} of the large files whose sha256 was found to be the one that is noted."""
    path = os.path.join(folder, VERIFIED)
    try:
        return dict(json.loads(read_small(path, MOST_BYTES)))
    except (ValueError, TypeError, RecursionError):  # then they are compared once more
        return {}


def keep_verified(folder: str, files: dict) -> None:
    """Adds {name: state} of files that are known to be whole."""
    path = os.path.join(folder, VERIFIED)
    files = read_verified(folder) | files
    with contextlib.suppress(UserError):  # where nothing can be written, they are compared each time
        write_note(path, json.dumps(files) + "\n")


def show(folder: str, names: list[str], known: dict[str, str]) -> list[str]:
    """Prints whether each file is whole -> the names of those that are damaged.

    It also shows other files that are noted, and other safetensors, heads for example. known: {name: sha256} of
    official files, which may not be noted; a stand-in does not have them.
    """
    files = noted(folder)
    found = {path.name for path in Path(folder).glob("*.safetensors") if not path.name.startswith(PACKED)}
    others = {*files, *found} - {*names}
    damaged = []
    what = stand_in(folder)
    if what:
        print(f"{folder} is a stand-in: {what}")
        known = {}
    for name in [*names, *sorted(others)]:
        path = os.path.join(folder, name)
        if not is_there(folder, name):
            continue
        unknown = name not in files and name not in known
        fault = f"{NAME} lacks it" if files and unknown else find_fault(path, thorough=True)
        if not fault and name in known and describe(path)["sha256"] != known[name]:
            fault = "not the official file"
        if fault:
            print(f"DAMAGED  {path}: {fault}")
            damaged.append(name)
        else:
            print(f"{'unknown' if unknown else 'ok':8} {path}")
    return damaged
