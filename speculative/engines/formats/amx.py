"""bfloat16's kernel for CPUs with tiles as registers (Intel's AMX): one instruction multiplies 16 rows by 16 channels.

A tile register holds up to 16 rows of 64 bytes. Prepared rows and packed weights lie as they have to: a block of inputs
is 64 bytes of a row; in a packed tile it is 16 pairs of inputs, of which 16 channels are 64 bytes. A single row is the
same instruction with one row, so no bit depends on how many there are. For 16 rows or fewer the registers are

    sums    0 and 1     rows x 16 channels, of the packed tile's left and right half
    x       4           rows x a block of inputs
    weights 6 and 7     pairs of inputs x 16 channels

and the next 16 rows have the sums 2 and 3, and x in 5. It was tested over an emulation of the instructions, and never
run on such a CPU: there it is taken only after it has given what the plain product gives.
"""

import ctypes
import functools
import sys
from dataclasses import replace
from typing import NamedTuple

from speculative.engines.cpu import BLOCK, Cpu
from speculative.engines.formats.base import Area, Format

HEIGHT = 16  # rows of a tile register
WIDTH = 64  # bytes of each
SUMS = ((0, 1), (2, 3))  # of the first and the next HEIGHT rows
X = (4, 5)
WEIGHTS = (6, 7)


class Instructions(NamedTuple):
    """Builders. A register is a number, an address is LLVM's, and so is a stride: bytes from row to row."""

    configure: object  # (Words, the 64 bytes of a configuration)
    load: object  # (Words, register, address, stride)
    multiply: object  # (Words, register of sums, of x, of weights): sums += x @ weights
    store: object  # (Words, register, address, stride)
    release: object  # (Words): tiles are not used for now


def intrinsic(words, name, *operands):
    """Calls an intrinsic function of LLVM. Numbers are registers, which are a part of the instruction."""
    register = words.integer(8)
    operands = [register(o) if isinstance(o, int) else o for o in operands]
    words.call(f"llvm.x86.{name}", words.nothing, *operands)


AMX = Instructions(
    configure=lambda words, layout: intrinsic(words, "ldtilecfg", words.bytes_at(layout)),
    load=lambda words, register, address, stride: intrinsic(words, "tileloadd64", register, address, stride),
    multiply=lambda words, sums, x, weights: intrinsic(words, "tdpbf16ps", sums, x, weights),
    store=lambda words, register, address, stride: intrinsic(words, "tilestored64", register, address, stride),
    release=lambda words: intrinsic(words, "tilerelease"),
)


def configuration(n_rows: int) -> bytes:
    """The registers' configuration for so many rows: the palette, then the bytes of a row and the rows of each."""
    parts = heights(n_rows)
    rows = dict.fromkeys(WEIGHTS, HEIGHT)
    for height, sums, x in zip(parts, SUMS, X, strict=False):
        rows |= dict.fromkeys((*sums, x), height)
    widths = b"".join((WIDTH if i in rows else 0).to_bytes(2, "little") for i in range(16))
    return bytes([1]) + bytes(15) + widths + bytes(rows.get(i, 0) for i in range(16))


def heights(n_rows: int) -> list[int]:
    """The heights of the tiles that so many rows take."""
    return [min(HEIGHT, n_rows - first) for first in range(0, n_rows, HEIGHT)]


def by_tiles(format: Format, instructions: Instructions) -> Format:
    """The format with this kernel."""

    def each_sum(out: Area):
        for part, registers in zip(range(0, len(out.rows), HEIGHT), SUMS, strict=False):
            for half, register in enumerate(registers):
                yield register, out.rows[part], half * WIDTH

    def begin(words, out):
        instructions.configure(words, configuration(len(out.rows)))
        for register, row, place in each_sum(out):
            instructions.load(words, register, words.at(row, place), out.stride)
        return []

    def multiply(words, x, tile, sums):
        stride = words.number(2 * WIDTH)
        for half, register in enumerate(WEIGHTS):
            instructions.load(words, register, words.at(tile, half * WIDTH), stride)
        for part, sums_of_part, register in zip(range(0, len(x.rows), HEIGHT), SUMS, X, strict=False):
            instructions.load(words, register, x.rows[part], x.stride)
            for sums_register, weights in zip(sums_of_part, WEIGHTS, strict=True):
                instructions.multiply(words, sums_register, register, weights)
        return sums

    def end(words, out, sums):
        for register, row, place in each_sum(out):
            instructions.store(words, register, words.at(row, place), out.stride)
        instructions.release(words)

    name = f"{format.name} by tiles"
    most_rows = len(X) * HEIGHT
    return replace(format, name=name, begin=begin, multiply=multiply, end=end, most_rows=lambda cpu: most_rows)


def where_there_is(cpu: Cpu, format: Format) -> Format | None:
    """The format with this kernel on such a CPU, whose system lets this process use it; else None."""
    has = {"amx-tile", "amx-bf16", "avx512bf16"} <= cpu.features and cpu.vector == WIDTH // 4
    return by_tiles(format, AMX) if has and permitted() else None


@functools.cache
def permitted() -> bool:
    """Asks Linux, which keeps room for the registers only then."""
    if sys.platform != "linux":
        return False
    ARCH_PRCTL = 158
    REQUEST_PERMISSION = 0x1023
    TILE_DATA = 18
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0


assert 2 * BLOCK == WIDTH
