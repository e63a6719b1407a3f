"""OpenAI's checkpoints, as TensorFlow writes them: model.ckpt.index and model.ckpt.data-00000-of-00001.

The data file is all tensors, one after the other. The index is a table as LevelDB writes it: sorted keys, the tensors'
names, of which each stores only how it differs from the key before; and for each a protocol buffer with the tensor's
type, shape, place and CRC32C.

Source: LevelDB's doc/table_format.md; TensorFlow's tensor_bundle.proto; Protocol Buffers' encoding.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from threading import Lock

import numpy as np

from speculative.checkpoints.disk import MappedFile, bad_file, mapped
from speculative.checkpoints.weights import Index, Tensor
from speculative.support.files import naming

FOOTER = 48  # bytes at the end of the index: the places of its blocks
BYTES, FIXED = 2, 5  # kinds of a protocol buffer's field; the third one here is a varint, 0
TYPES = {1: "float32", 2: "float64", 14: "bfloat16", 19: "float16"}  # TensorFlow's numbers

SECONDS_PER_BYTE = 1 / 3.5e6  # seconds of a CRC32C in Python: 1558M takes half an hour
PATIENCE = 5.0  # seconds after which a line says why it takes so long
LOCK = Lock()  # held by the one thread that may print that line

in_c: Callable[[np.ndarray], int] | None = None  # engine.c's CRC32C, which the loader sets if it is needed and there


@dataclass(frozen=True)
class SummedTensor(Tensor):
    """A tensor for which the index stores a CRC32C, masked."""

    crc32c: int

    def check_sum(self, name: str, content: np.ndarray) -> None:  # uint8 [n_bytes]
        with LOCK:
            warn_about(self.file.path, len(self.file.content))
        if masked_crc32c(content) != self.crc32c:
            raise bad_file(self.file.path, f"tensor {name} is damaged: its CRC32C is not the one in the index")


def latest_checkpoint(folder: str) -> str:
    """Return the prefix that the file `checkpoint` names, as tf.train.latest_checkpoint does; "" if there is none."""
    path = Path(folder, "checkpoint")
    with naming(path):
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    named = re.search(r"^\s*model_checkpoint_path\s*:\s*([\"'])(.+?)\1", text, re.MULTILINE)
    return named[2] if named else ""


def read_index(paths: Sequence[str]) -> Index:
    """Return {name: Tensor}, the names without "model/". Raises UserError if the index is damaged."""
    path, data_path = paths
    data = mapped(data_path)
    tensors: Index = {}
    for key, value in read_table(path):
        folder, _, name = key.decode().partition("/")
        if folder == "model":  # outside of it a training run keeps its own numbers, the optimizer's for example
            tensors[name] = tensor_of(data, value)
    return tensors


def tensor_of(data: MappedFile, message: bytes) -> SummedTensor:
    """Return a tensor from TensorFlow's BundleEntryProto: field 1 is the type, 2 the shape, 4 the first byte, 6 the
    CRC32C."""
    entry = dict(fields(message))
    shape = tuple(dict(fields(dimension))[1] for _, dimension in fields(entry[2]))
    dtype = TYPES.get(entry[1], f"TensorFlow's type {entry[1]}")
    return SummedTensor(data, dtype, shape, entry.get(4, 0), entry[6])


def read_table(path: str) -> Iterator[tuple]:
    """Yield the (key, value)s of a table of one block. TensorFlow's blocks have up to 256 KB; a GPT-2 needs 20."""
    block = read_block(path)
    f = BytesIO(block)
    key = b""
    while f.tell() < len(block):
        n_shared = varint(f)
        n_new = varint(f)
        n_value = varint(f)
        key = key[:n_shared] + f.read(n_new)
        yield key, f.read(n_value)


def read_block(path: str) -> bytes:
    """Return the entries of a table of one block. Raises UserError if their CRC32C is wrong.

    A block ends with the places of some of its keys and their number (4 bytes each), a byte that says whether it is
    compressed (these are not), and the CRC32C of all that.
    """
    table = mapped(path).content[:]
    end = varint(BytesIO(table[-FOOTER:]))  # the footer begins with the place of the block that follows
    checksum = number_of(table[end - 4 : end])
    if masked_crc32c(table[: end - 4]) != checksum:
        raise bad_file(path, "damaged")
    n_places = number_of(table[end - 9 : end - 5])
    return table[: end - 9 - 4 * n_places]


def fields(message: bytes) -> Iterator[tuple]:
    """Yield the (number, value) of each field of a protocol buffer; a value is an int or bytes."""
    f = BytesIO(message)
    while f.tell() < len(message):
        number, kind = divmod(varint(f), 8)
        if kind == FIXED:
            yield number, number_of(f.read(4))
        elif kind == BYTES:
            yield number, f.read(varint(f))
        else:
            yield number, varint(f)


def number_of(content: bytes) -> int:
    return int.from_bytes(content, "little")


def varint(f: BytesIO) -> int:
    """Read a number of 7 bits a byte, the lowest first; 0 at the end of a file that was cut."""
    byte = number_of(f.read(1))
    return byte if byte < 128 else byte - 128 + 128 * varint(f)


# ---- Checksums -------------------------------------------------------------------------------------------------------


def masked_crc32c(content: bytes | np.ndarray) -> int:  # uint8 [n]
    """Return the CRC32C as TensorFlow stores it: rotated, since a sum over data that hold sums has too many zeros."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def crc32c(content: bytes | np.ndarray) -> int:  # uint8 [n]
    if in_c:
        return in_c(np.frombuffer(content, np.uint8))
    from google_crc32c import value  # imported here, as few runs need it

    return value(content)


def is_slow() -> bool:
    """Return True if the sums are computed in Python, because google-crc32c has no C for this system."""
    import google_crc32c

    return google_crc32c.implementation == "python" and in_c is None


@cache
def warn_about(path: str, n_bytes: int) -> None:
    """Say once of a file how long it takes to check its bytes, if it takes long."""
    seconds = n_bytes * SECONDS_PER_BYTE
    if is_slow() and seconds > PATIENCE:
        print(
            f"checking the weights takes about {seconds / 60:.0f} min, once: google-crc32c has no C here, and there is "
            "no C compiler; pip install ziglang, or a system's gcc or clang, helps",
            file=sys.stderr,
        )
