"""Which weights a file of packed weights was made of. (speculative/engines/packed_files.py writes and maps it.)

packed-int8.safetensors says of itself, in the metadata of its header: its own sha256; how it was packed, and so on what
CPU; and of each file that it was made of the size, the time, a sample and the sha256. A run compares all but the last,
which takes seconds; `python utils.py check` compares that too.
"""

import hashlib
import json
import os
from pathlib import Path

import numpy as np

from speculative.checkpoints.folders import config_path, weight_files
from speculative.checkpoints.tensors import bad_file
from speculative.checkpoints.weights import MOST_HEADER
from speculative.support import checksums
from speculative.support.checksums import PACKED
from speculative.support.errors import UserError, first_line

# So the file begins, after the 8 bytes that say how long the header is; the digits of its sha256 follow.
BEGINNING = b'{"__metadata__": {"sha256": "'
DAMAGED = "damaged: its sha256 is not the one that it says it is"
DIGITS = slice(8 + len(BEGINNING), 8 + len(BEGINNING) + 64)


def path_of(folder: str, dtype: str) -> str:
    return os.path.join(folder, f"{PACKED}{dtype}.safetensors")


def made_of(folder: str) -> list[str]:
    """The paths of the files that decide what packing gives: the settings and the weights."""
    return [config_path(folder), *(os.path.join(folder, name) for name in weight_files(folder))]


def origin(folder: str) -> dict[str, list]:
    """{name: [bytes, time of change, sample]} of these files."""
    files = {}
    for path in made_of(folder):
        now = os.stat(path)
        files[os.path.basename(path)] = [now.st_size, now.st_mtime_ns, sample(path)]
    return files


def state(folder: str) -> list[tuple]:
    """The marks of these files that any writing to them changes."""
    states = [os.stat(path) for path in made_of(folder)]
    return [(now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) for now in states]


def sample(path: str) -> str:
    """The sha256 of 64 places all over a file, in which other weights of the same size and time differ."""
    n_bytes = os.path.getsize(path)
    sha256 = hashlib.sha256()
    with open(path, "rb") as f:
        for i in range(64):
            f.seek(i * n_bytes // 64)
            sha256.update(f.read(4096))
    return sha256.hexdigest()


def read_file(path: str) -> tuple[np.ndarray, dict, int]:
    """A file of packed weights -> (its bytes, mapped, uint8 [n_bytes]; its header; where the tensors begin). Raises
    UserError."""
    try:
        if not os.path.isfile(path):
            raise ValueError("no file")
        file = np.asarray(np.memmap(path, np.uint8, "r"))  # [n_bytes]
        begin = 8 + int.from_bytes(file[:8], "little")
        if begin > min(8 + MOST_HEADER, len(file)):
            raise ValueError("its header does not end")
        header = json.loads(bytes(file[8:begin]))
        if not isinstance(header.setdefault("__metadata__", {}), dict):
            raise ValueError("its metadata are none")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise bad_file(path, f"damaged ({first_line(error)})") from error
    return file, header, begin


def sum_of(file: np.ndarray) -> str:  # uint8 [n_bytes]
    """The sha256 of all but the digits that say it."""
    sha256 = hashlib.sha256(file[: DIGITS.start])
    for begin in range(DIGITS.stop, len(file), 2**24):
        sha256.update(file[begin : begin + 2**24])
    return sha256.hexdigest()


def sum_noted(file: np.ndarray) -> str:  # uint8 [n_bytes]
    """The sha256 that the file states of itself."""
    return bytes(file[DIGITS]).decode("ascii", "replace")


def is_of(header: dict, folder: str) -> bool:
    """True if packed weights were made of the files of this folder, as far as can be told at once."""
    return header["__metadata__"].get("origin") == json.dumps(origin(folder))


def show(kept_in: str, folder: str) -> list[str]:
    """Prints what each file of packed weights in the folder kept_in turns out to be, after all of it and all of the
    weights was read -> the paths of those that are damaged. Those of other weights are not used by any run."""
    damaged = []
    for path in filter(os.path.isfile, sorted(map(str, Path(kept_in).glob(f"{PACKED}*.safetensors")))):
        try:
            fault = find_fault(path, folder)
        except UserError as error:
            damaged.append(path)
            print(f"DAMAGED  {error}")
        else:
            print(f"{'outdated' if fault else 'ok':8} {path}{fault}")
    return damaged


def find_fault(path: str, folder: str) -> str:
    """The reason why no run uses it, "" where one does. Raises UserError where a run would use it, and must not."""
    file, header, _ = read_file(path)
    if not is_of(header, folder):
        return ": it was made of other weights; --pack makes it anew"
    if sum_noted(file) != sum_of(file):
        raise bad_file(path, DAMAGED)
    for of in made_of(folder):
        if header["__metadata__"].get(f"sha256 of {os.path.basename(of)}") != checksums.describe(of)["sha256"]:
            raise bad_file(path, f"it was made of another {of} than this")
    return ""
