"""A TensorFlow checkpoint, read without TensorFlow, whose import takes seconds and half a gigabyte.

model.ckpt.index says where each tensor lies in model.ckpt.data-00000-of-00001. It is a table as LevelDB writes it:
blocks of sorted keys, of each of which only what differs from the key before is there; a block that lists the blocks;
and at the end where that one is. A value is a protocol buffer. Blocks and tensors each have a CRC32C.

Source: LevelDB's doc/table_format.md; TensorFlow's tensor_bundle.proto.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from checkpoints.crc32c import masked_crc32c
from checkpoints.memory import Parts
from checkpoints.tensors import bad_file
from plumbing.checksums import MOST_SMALL
from plumbing.errors import first_line

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER = 48  # bytes
TRAILER = 5  # bytes after each block: whether it is compressed, and the CRC32C
# By TensorFlow's numbers.
TYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16", 25: "float8_e4m3fn"}


class Entry(NamedTuple):
    """A tensor, as the index has it."""

    dtype: int
    shape: tuple[int, ...]
    begin: int
    n_bytes: int
    crc: int  # of its bytes, masked


@contextlib.contextmanager
def open_bundle(prefix: str) -> Iterator[tuple[dict[str, tuple], Callable]]:
    """prefix: models/124M/model.ckpt, for example -> ({name: shape}, read), read(name) being a float32 array [*shape].

    Raises UserError where the index is damaged; read raises ValueError.
    """
    index, data = f"{prefix}.index", f"{prefix}.data-00000-of-00001"
    try:
        with open(index, "rb") as f:
            entries = read_index(f.read(MOST_SMALL + 1))
    except (OSError, ValueError, IndexError) as error:
        raise bad_file(index, f"damaged ({first_line(error)})") from error
    try:
        f = open(data, "rb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise bad_file(data, f"cannot be read ({error.strerror})") from error
    with f:
        parts = Parts(f)

        def read(name):
            entry = entries[name]
            dtype = TYPES.get(entry.dtype, f"of TensorFlow's type {entry.dtype}")
            if dtype != "float32":
                raise ValueError(f"it is {dtype}, not float32")
            if entry.n_bytes != 4 * math.prod(entry.shape):
                raise ValueError(f"it has {entry.n_bytes} bytes")
            content = parts.read(entry.begin, entry.n_bytes)  # uint8 [n_bytes]
            if masked_crc32c(content) != entry.crc:
                raise ValueError("its CRC32C is not the one that the index has")
            return content.view(np.float32).reshape(entry.shape)

        yield {name: entry.shape for name, entry in entries.items()}, read


def read_index(table: bytes) -> dict[str, Entry]:
    """{name: Entry} of all tensors. Raises ValueError or IndexError."""
    if len(table) > MOST_SMALL or len(table) < FOOTER or table[-len(MAGIC) :] != MAGIC:
        raise ValueError("it is no table")
    _, at = place(table, len(table) - FOOTER)  # that of a block that is empty here
    (begin, end), _ = place(table, at)
    entries = {}
    n_bytes = 0
    for _, handle in block(table, begin, end):
        (begin, end), _ = place(handle, 0)
        n_bytes += end - begin
        if n_bytes > len(table):
            raise ValueError("its blocks overlap")
        for key, value in block(table, begin, end):
            if key:
                entries[key.decode()] = entry(value)
            elif fields(value).get(1) != [1]:
                raise ValueError("its data are in several files")
    return entries


def place(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """((where a block begins, where it ends), what comes after that)."""
    begin, at = varint(content, at)
    n_bytes, at = varint(content, at)
    return (begin, begin + n_bytes), at


def block(table: bytes, begin: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value)s of a block."""
    if end + TRAILER > len(table):
        raise ValueError("a block is not in it")
    if int.from_bytes(table[end + 1 : end + TRAILER], "little") != masked_crc32c(table[begin : end + 1]):
        raise ValueError("the CRC32C of a block is wrong")
    if table[end]:
        raise ValueError("a block is compressed")
    n_restarts = int.from_bytes(table[end - 4 : end], "little")  # keys that are there as a whole, to be searched
    end -= 4 * (n_restarts + 1)
    key = b""
    while begin < end:
        n_shared, begin = varint(table, begin)
        n_new, begin = varint(table, begin)
        n_value, begin = varint(table, begin)
        key = key[:n_shared] + table[begin : begin + n_new]
        begin += n_new
        yield key, table[begin : begin + n_value]
        begin += n_value


def entry(message: bytes) -> Entry:
    found = fields(message)
    if 7 in found:
        raise ValueError("a tensor is in slices")
    shape = []
    for dimensions in found.get(2, []):
        for dimension in fields(dimensions).get(2, []):
            shape += fields(dimension).get(1, [0])
    one = {number: values[-1] for number, values in found.items()}
    return Entry(one.get(1, 0), tuple(shape), one.get(4, 0), one.get(5, 0), one.get(6, 0))


def fields(message: bytes) -> dict[int, list]:
    """{number of a field: its values}, numbers or bytes, of a protocol buffer."""
    found = {}
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = divmod(tag, 8)
        if kind == 0:
            value, at = varint(message, at)
        elif kind in (1, 5):
            n_bytes = 8 if kind == 1 else 4
            value = int.from_bytes(message[at : at + n_bytes], "little")
            at += n_bytes
        elif kind == 2:
            n_bytes, at = varint(message, at)
            value = message[at : at + n_bytes]
            at += n_bytes
        else:
            raise ValueError(f"a field of kind {kind}")
        found.setdefault(number, []).append(value)
    return found


def varint(content: bytes, at: int) -> tuple[int, int]:
    """(a number of 7 bits a byte, the lowest first; where it ends)."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number does not end")
