"""OpenAI's checkpoints, read without TensorFlow, whose import takes seconds and half a gigabyte.

TensorFlow calls the format a tensor bundle. model.ckpt.data-00000-of-00001 has the bytes of all tensors, and
model.ckpt.index says where each of them lies. That is a table as LevelDB writes it: blocks of sorted keys, of each of
which only what differs from the key before is there; a block that lists the blocks; and at the end where that one is.
The keys are the tensors' names, the values protocol buffers. Each block and each tensor has a CRC32C.

Nothing that the index says is used before it is known to fit: it may come from a stranger.

Source: LevelDB's doc/table_format.md; TensorFlow's tensor_bundle.proto.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from speculative.checkpoints.ranges import Ranges
from speculative.checkpoints.tensors import bad_file
from speculative.support.errors import first_line

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER = 48  # bytes
TRAILER = 5  # bytes after each block: whether it is compressed, and the CRC32C
MOST_INDEX = 2**20  # bytes: some 30,000 tensors; the official ones have 5,000 to 20,000
MOST_NAME = 255  # bytes
NUMBER, EIGHT_BYTES, TEXT, FOUR_BYTES = 0, 1, 2, 5  # kinds of a protocol buffer's fields
# By TensorFlow's numbers.
TYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16", 25: "float8_e4m3fn"}


class Entry(NamedTuple):
    """A tensor, as the index has it."""

    dtype: int
    shape: tuple[int, ...]
    begin: int
    n_bytes: int
    crc: int  # of its bytes, masked


def has_crc32c() -> bool:
    """True if google-crc32c is installed and compiled: where it is plain Python, it would take hours."""
    try:
        import google_crc32c
    except ImportError:
        return False
    return google_crc32c.implementation == "c"


@contextlib.contextmanager
def open_bundle(prefix: str) -> Iterator[tuple[dict[str, tuple], Callable]]:
    """prefix: models/124M/model.ckpt, for example -> ({name: shape}, read), read(name) being a float32 array [*shape].

    Raises UserError where the index is damaged; read raises ValueError.
    """
    index, data = f"{prefix}.index", f"{prefix}.data-00000-of-00001"
    with contextlib.ExitStack() as stack:
        try:
            with open(index, "rb") as f:
                table = f.read(MOST_INDEX + 1)
            ranges = Ranges(stack.enter_context(open(data, "rb", buffering=0)))
        except OSError as error:
            raise bad_file(error.filename or index, f"cannot be read ({error.strerror})") from error
        try:
            entries = read_index(table)
        except ValueError as error:
            raise bad_file(index, f"damaged ({first_line(error)})") from error

        def read(name):
            entry = entries[name]
            dtype = TYPES.get(entry.dtype, f"of TensorFlow's type {entry.dtype}")
            if dtype != "float32":
                raise ValueError(f"it is {dtype}, not float32")
            if entry.n_bytes != 4 * math.prod(entry.shape):
                raise ValueError(f"it has {entry.n_bytes} bytes")
            content = ranges.read(entry.begin, entry.n_bytes)  # uint8 [n_bytes]
            if masked_crc32c(content) != entry.crc:
                raise ValueError("its CRC32C is not the one that the index has")
            return content.view(np.float32).reshape(entry.shape)

        yield {name: entry.shape for name, entry in entries.items()}, read


def masked_crc32c(content: bytes | np.ndarray) -> int:  # uint8 [n]
    """As it stands in the files, where a sum of what holds sums would have too many zeros."""
    from google_crc32c import value

    crc = value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


# ---- The table -------------------------------------------------------------------------------------------------------


def read_index(table: bytes) -> dict[str, Entry]:
    """{name: Entry} of all tensors. Raises ValueError."""
    if len(table) > MOST_INDEX:
        raise ValueError(f"it has more than {MOST_INDEX:,} bytes")
    if len(table) < FOOTER or not table.endswith(MAGIC):
        raise ValueError("it is no table")
    _, _, at = place(table, len(table) - FOOTER)  # that of a block which is empty here
    begin, n_bytes, _ = place(table, at)
    pairs = []
    n_together = 0
    for _, listed in block(table, begin, n_bytes):
        begin, n_bytes, _ = place(listed, 0)
        n_together += n_bytes
        if n_together > len(table):
            raise ValueError("its blocks overlap")
        pairs += block(table, begin, n_bytes)
    keys = [key for key, _ in pairs]
    if keys[:1] != [b""] or keys != sorted({*keys}):
        raise ValueError("its names are not in order")
    check_header(pairs[0][1])
    return {key.decode(): read_entry(value) for key, value in pairs[1:]}


def block(table: bytes, begin: int, n_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value)s of a block. Raises ValueError."""
    content = part(table, begin, n_bytes + TRAILER)
    if int.from_bytes(content[-4:], "little") != masked_crc32c(content[:-4]):
        raise ValueError("the CRC32C of a block is wrong")
    if content[n_bytes]:
        raise ValueError("a block is compressed")
    # At the end of a block stand the places of some keys that are there as a whole, to be searched, and their number.
    n_whole = int.from_bytes(part(content, n_bytes - 4, 4), "little")
    pairs = part(content, 0, n_bytes - 4 * (n_whole + 1))
    key = b""
    at = 0
    while at < len(pairs):
        n_shared, at = varint(pairs, at)
        n_new, at = varint(pairs, at)
        n_value, at = varint(pairs, at)
        if n_shared > len(key) or n_shared + n_new > MOST_NAME:
            raise ValueError("a name is too long")
        key = key[:n_shared] + part(pairs, at, n_new)
        at += n_new
        yield key, part(pairs, at, n_value)
        at += n_value


def place(content: bytes, at: int) -> tuple[int, int, int]:
    """(where a block begins, how many bytes it has, what comes after that). Raises ValueError."""
    begin, at = varint(content, at)
    n_bytes, at = varint(content, at)
    return begin, n_bytes, at


def part(content: bytes, begin: int, n_bytes: int) -> bytes:
    """content[begin : begin + n_bytes]. Raises ValueError where that is not in it."""
    if begin < 0 or n_bytes < 0 or begin + n_bytes > len(content):
        raise ValueError("it ends too early")
    return content[begin : begin + n_bytes]


def varint(content: bytes, at: int) -> tuple[int, int]:
    """(a number of 7 bits a byte, the lowest first; where it ends). Raises ValueError."""
    value = 0
    for i, byte in enumerate(content[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError("a number does not end")


# ---- Its values ------------------------------------------------------------------------------------------------------


def check_header(message: bytes) -> None:
    """The BundleHeaderProto. Raises ValueError."""
    found = fields(message)
    if last(found, 1) != 1:
        raise ValueError("its data are in several files")
    if last(found, 2):
        raise ValueError("its numbers are those of a big-endian computer")


def read_entry(message: bytes) -> Entry:
    """A BundleEntryProto. Raises ValueError."""
    found = fields(message)
    if last(found, 3):
        raise ValueError("its data are in several files")
    if (7, TEXT) in found:
        raise ValueError("a tensor is in slices")
    shape = fields(last(found, 2, TEXT))
    dimensions = [fields(dimension) for dimension in shape.get((2, TEXT), [])]
    return Entry(
        dtype=last(found, 1),
        shape=tuple(last(dimension, 1) for dimension in dimensions),
        begin=last(found, 4),
        n_bytes=last(found, 5),
        crc=last(found, 6, FOUR_BYTES),
    )


def fields(message: bytes) -> dict[tuple[int, int], list]:
    """{(number of a field, its kind): its values}, numbers or bytes, of a protocol buffer. Raises ValueError."""
    found = {}
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = divmod(tag, 8)
        if kind == NUMBER:
            value, at = varint(message, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            n_bytes = 8 if kind == EIGHT_BYTES else 4
            value = int.from_bytes(part(message, at, n_bytes), "little")
            at += n_bytes
        elif kind == TEXT:
            n_bytes, at = varint(message, at)
            value = part(message, at, n_bytes)
            at += n_bytes
        else:
            raise ValueError(f"a field is of kind {kind}")
        found.setdefault((number, kind), []).append(value)
    return found


def last(found: dict[tuple[int, int], list], number: int, kind: int = NUMBER) -> int | bytes:
    """A field's value, the last where there are several; where there is none, 0 or nothing."""
    return found.get((number, kind), [b"" if kind == TEXT else 0])[-1]
