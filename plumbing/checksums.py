"""checksums.json: the size and sha256 of each file of a model, noted when the file was known to be whole.

{"hparams.json": {"bytes": 90, "sha256": "d9d56e41..."}, ...} stands beside the files. A download notes each file before
it gives it its name, training notes what it saves; a folder without the note is read as it is. A model that has an
official name, but not the official weights, also has "stand-in": "what it is instead".
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from plumbing.errors import UserError, first_line

NAME = "checksums.json"
STAND_IN = "stand-in"  # the one key that is not a file's name
MOST_BYTES = 2**20  # of the note itself
MOST_WORDS = 200  # characters that a stand-in may say of itself
MOST_SMALL = 2**24  # bytes of a file that is read whole to be checked, and of any that does not hold weights


def describe(path: str | Path) -> dict:
    """{"bytes": its size, "sha256": as hexadecimal digits} of a file."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(2**20):
            sha256.update(chunk)
        return {"bytes": f.tell(), "sha256": sha256.hexdigest()}


def note(folder: str | Path, files: dict[str, dict], stand_in: str = "") -> None:
    """Adds {name: what describe gave} to the note of a folder, or replaces it there; stand_in: what the model is."""
    path = Path(folder) / NAME
    part = path.with_suffix(".json.part")
    entries = {**read_note(folder), **files}
    if stand_in:
        entries[STAND_IN] = stand_in
    lines = [f"{json.dumps(name)}: {json.dumps(about)}" for name, about in sorted(entries.items())]
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    part.replace(path)


def noted(folder: str | Path) -> dict[str, dict]:
    """{name: what describe gave} for the files of a folder; {} where nothing is noted. Raises UserError."""
    return {name: about for name, about in read_note(folder).items() if name != STAND_IN}


def stand_in(folder: str | Path) -> str:
    """What the model in a folder is in place of the official one of its name; "" where it says nothing of the kind."""
    return read_note(folder).get(STAND_IN, "")


def read_note(folder: str | Path) -> dict[str, dict | str]:
    """The whole note, {} where there is none. Raises UserError."""
    path = os.path.join(folder, NAME)
    if not os.path.lexists(path):
        return {}
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
            raise ValueError("no file, or too large a one")
        with open(path, encoding="utf-8") as f:
            return {name: checked(name, about) for name, about in json.load(f).items()}
    except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError) as error:
        fault = f"damaged ({first_line(error)})"
        raise UserError(f"{path}: {fault}; delete it, and the files of this model are read unchecked") from error


def checked(name, about):
    """An entry of the note, in the types it should have."""
    if name != STAND_IN:
        return {"bytes": int(about["bytes"]), "sha256": str(about["sha256"])}
    if len(about) > MOST_WORDS or not about.isprintable():  # it is shown, and a stranger may have written it
        raise ValueError(f"{STAND_IN} is not a short text")
    return about


def find_fault(path: str, thorough: bool = False) -> str | None:
    """What is wrong with a file, None where nothing is: too large for what it is, or not what was noted.

    Of large weights, whose sha256 takes as long as loading them, the size alone is compared, unless thorough.
    """
    folder, name = os.path.split(path)
    n_bytes, about = os.path.getsize(path), noted(folder).get(name)
    if n_bytes > MOST_SMALL and not name.startswith("model."):
        return f"has {n_bytes:,} bytes, more than {MOST_SMALL:,}"
    if about and n_bytes != about["bytes"]:
        return f"has {n_bytes:,} bytes, {NAME} says {about['bytes']:,}"
    if about and (thorough or n_bytes <= MOST_SMALL) and describe(path) != about:
        return f"damaged: its sha256 is not the one in {NAME}"
    return None


def check(folder: str, names: list[str], bad_file: Callable[[str, str], UserError]) -> None:
    """Raises bad_file(path, fault) for the first of these files that is there and has a fault."""
    for path in (os.path.join(folder, name) for name in names):
        if os.path.isfile(path) and (fault := find_fault(path)):
            raise bad_file(path, fault)


def show(folder: str, names: list[str], known: dict[str, str]) -> list[str]:
    """Prints what each file that is there turns out to be -> the names of those that are damaged.

    known: {name: sha256} of official files that may not be noted; a stand-in's are not these.
    """
    damaged = []
    if what := stand_in(folder):
        print(f"{folder} is a stand-in: {what}")
        known = {}
    for path in (os.path.join(folder, name) for name in names if os.path.isfile(os.path.join(folder, name))):
        name = os.path.basename(path)
        unknown = name not in noted(folder) and name not in known
        fault = find_fault(path, thorough=True)
        if not fault and name in known and describe(path)["sha256"] != known[name]:
            fault = "not the official file"
        print(f"{'DAMAGED' if fault else 'unknown' if unknown else 'ok':8} {path}{f': {fault}' if fault else ''}")
        damaged += [name] if fault else []
    return damaged
