"""The weight formats: all that packing, the memory check, the flags and JAX must know of each.

A matrix [n_in, n_out] is packed as tiles of some `lanes` output channels with all their inputs in order; engine.c has a
loop for each format, in the order in which they stand below.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from speculative.support.errors import UserError

BLOCK = 32  # inputs that share a scale where rows are rounded to 8 bits, and in int4


class OnJax(NamedTuple):
    """The parts that the JAX engine needs. Types are named as NumPy names them."""

    stored: str  # the type that a weight has on the device
    computed: str  # the type of what is multiplied by it, and of the cache
    computed_on_cpu: str  # the same on a CPU
    tolerance: float  # how far apart two logits may be that its rounding alone brings into another order
    quantise: Callable | None = None  # (array, axis of the inputs) -> (numbers, scales without that axis)


@dataclass(frozen=True)
class Format:
    name: str  # as --dtype calls it
    help: str  # bytes of a weight, in a word or two
    weight_bytes: float  # bytes of a weight, with its share of its block's scale
    channel_bytes: int  # bytes of an output channel beside its weights
    step: int  # inputs of a tile that are stored together; zeros fill up the last step
    embedding: str  # the format of the embedding, which must be able to look up one weight
    pack: Callable  # (w [n_in, m] float32, lanes) -> tiles uint8 [m / lanes, n_bytes], scale [m] or None
    unpack: Callable  # (tiles, lanes, scale) -> [n_in padded, m] float32, the numbers that they stand for
    rows: Callable  # x [n_rows, n_in] -> [n_rows, n_in], the numbers that the engine multiplies by in place of x
    jax: OnJax | str  # what JAX needs, or why it cannot take this format

    def tile_bytes(self, n_in: int, lanes: int) -> int:
        return int(self.weight_bytes * padded(n_in, self.step) * lanes)


def padded(n: int, step: int) -> int:
    return -(-n // step) * step


def in_tiles(words, lanes):  # [n, m] -> uint8 [m / lanes, n_bytes]
    """Numbers that lie as a matrix, tile after tile."""
    tiles = np.ascontiguousarray(words.reshape(len(words), -1, lanes).swapaxes(0, 1))  # [m / lanes, n, lanes]
    return tiles.view(np.uint8).reshape(len(tiles), -1)


def from_tiles(tiles, lanes, dtype):  # uint8 [m / lanes, n_bytes] -> [n, m]
    words = tiles.view(dtype).reshape(len(tiles), -1, lanes)  # [m / lanes, n, lanes]
    return words.swapaxes(0, 1).reshape(words.shape[1], -1)


def with_zeros(w, step):  # [n_in, m] -> [n_in padded, m]
    n_more = -len(w) % step
    return np.pad(w, ((0, n_more), (0, 0))) if n_more else w


# ---- float32: weights as they come -----------------------------------------------------------------------------------

FLOAT32 = Format(
    name="float32",
    help="4 bytes",
    weight_bytes=4,
    channel_bytes=0,
    step=1,
    embedding="float32",
    pack=lambda w, lanes: (in_tiles(w, lanes), None),
    unpack=lambda tiles, lanes, scale: from_tiles(tiles, lanes, np.float32),
    rows=lambda x: x,
    # The distance of two logits of the bundled target changes by up to 5e-5 over the bundled prompts.
    jax=OnJax("float32", "float32", "float32", tolerance=1e-3),
)


# ---- bfloat16: the upper 16 bits of a float32. Rows are rounded to it as well, as PyTorch and JAX do -------------------


def upper_half(w):  # [...] float32 -> [...] uint32 below 2**16
    """Rounds to nearest, and ties to even."""
    bits = np.ascontiguousarray(w).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def from_upper_half(bits):  # [...] -> [...] float32
    return (bits.astype(np.uint32) << 16).view(np.float32)


def pack_bfloat16(w, lanes):
    """Two inputs share a word of 32 bits, the first in its lower half."""
    bits = upper_half(with_zeros(w, 2))  # [n_in padded, m]
    return in_tiles(bits[::2] | bits[1::2] << 16, lanes), None


def unpack_bfloat16(tiles, lanes, scale):
    words = from_tiles(tiles, lanes, np.uint32)  # [n_in padded / 2, m]
    return from_upper_half(np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1, words.shape[1]))


BFLOAT16 = Format(
    name="bfloat16",
    help="2",
    weight_bytes=2,
    channel_bytes=0,
    step=2,
    embedding="bfloat16",
    pack=pack_bfloat16,
    unpack=unpack_bfloat16,
    rows=lambda x: from_upper_half(upper_half(x)),
    # The distance of two logits changes by up to 0.26.
    jax=OnJax("bfloat16", "bfloat16", "bfloat16", tolerance=0.3),
)


# ---- int8: whole numbers from -127 to 127 and a scale for each output channel ------------------------------------------


def round_rows(x):  # [n_rows, n_in] -> [n_rows, n_in]
    """The numbers that rounded rows stand for: whole ones up to 127 times a scale for each block of inputs. The sum over
    a block is then one of whole numbers, exact in any order, and CPUs have an instruction for it."""
    n_in = x.shape[1]
    blocks = np.pad(x, ((0, 0), (0, -n_in % BLOCK))).reshape(len(x), -1, BLOCK)  # [n_rows, n_blocks, BLOCK]
    most = np.max(np.abs(blocks), axis=-1, keepdims=True)  # [n_rows, n_blocks, 1]
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 1e-30)
    return (np.rint(blocks * inverse) * (most / np.float32(127))).reshape(len(x), -1)[:, :n_in]


def quantise(w, axis: int):  # [...] float32 -> [...] int8, float32 scales [...] without the axis
    """Symmetric: the largest weight along the axis becomes 127 or -127."""
    scale = np.max(np.abs(w), axis=axis, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.rint(w / scale).astype(np.int8), np.squeeze(scale, axis)


def fours(codes):  # [4 n, m] uint8 -> [n, m] uint32
    """Four inputs of a channel in one word, the first in its lowest bits."""
    a, b, c, d = (codes[i::4].astype(np.uint32) for i in range(4))
    return a | b << 8 | c << 16 | d << 24


def from_fours(words):  # [n, m] uint32 -> [4 n, m] uint8
    return np.stack([words >> i & 0xFF for i in (0, 8, 16, 24)], axis=1).reshape(-1, words.shape[1]).astype(np.uint8)


def pack_int8(w, lanes):
    """128 is added to each number, as the instruction of x86 wants it."""
    scale = np.maximum(w.max(axis=0), -w.min(axis=0)) / np.float32(127)  # [m]
    scale[scale == 0] = 1
    codes = (np.rint(w / scale) + np.float32(128)).astype(np.uint8)  # [n_in, m]
    return in_tiles(fours(with_zeros(codes, BLOCK)), lanes), scale


def unpack_int8(tiles, lanes, scale):
    codes = from_fours(from_tiles(tiles, lanes, np.uint32))  # [n_in padded, m]
    return (codes.astype(np.float32) - 128) * scale


INT8 = Format(
    name="int8",
    help="1",
    weight_bytes=1,
    channel_bytes=4,
    step=BLOCK,
    embedding="int8",
    pack=pack_int8,
    unpack=unpack_int8,
    rows=round_rows,
    jax=OnJax("int8", "bfloat16", "float32", 1e-3, quantise),
)


# ---- int4: whole numbers from -8 to 7 and a scale of 16 bits for each block of inputs of each output channel -----------


def pack_int4(w, lanes):
    """Each block's extreme weight becomes -8, whatever its sign: the scale takes that. Scales are bfloat16s, and the
    weights are rounded to multiples of the scale as it is stored. Inputs k and k + 16 of a block share a byte."""
    blocks = with_zeros(w, BLOCK).reshape(-1, BLOCK, w.shape[1])  # [n_blocks, BLOCK, m]
    most, least = blocks.max(axis=1), blocks.min(axis=1)  # [n_blocks, m]
    bits = upper_half(np.where(most > -least, most, least) / np.float32(-8))  # [n_blocks, m]
    scale = from_upper_half(bits)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=np.abs(scale) > 1e-30)  # [n_blocks, m]
    codes = blocks * inverse[:, None]  # [n_blocks, BLOCK, m]
    np.rint(codes, out=codes)
    np.clip(codes, -8, 7, out=codes)
    codes += 8
    codes = codes.astype(np.uint8)
    pairs = (codes[:, : BLOCK // 2] | codes[:, BLOCK // 2 :] << 4).reshape(-1, w.shape[1])  # [n_blocks * 16, m]
    words = in_tiles(fours(pairs), lanes).reshape(-1, len(bits), BLOCK // 2 * lanes)  # [m / lanes, n_blocks, n_bytes]
    scales = in_tiles(bits.astype(np.uint16), lanes).reshape(-1, len(bits), 2 * lanes)  # [m / lanes, n_blocks, n_bytes]
    return np.concatenate([words, scales], axis=2).reshape(len(words), -1), None


def unpack_int4(tiles, lanes, scale):
    parts = tiles.reshape(len(tiles), -1, (BLOCK // 2 + 2) * lanes)  # [m / lanes, n_blocks, n_bytes]
    words = np.ascontiguousarray(parts[..., : BLOCK // 2 * lanes])
    scales = from_tiles(np.ascontiguousarray(parts[..., BLOCK // 2 * lanes :]), lanes, np.uint16)  # [n_blocks, m]
    pairs = from_fours(from_tiles(words, lanes, np.uint32)).reshape(len(scales), BLOCK // 2, -1)  # [n_blocks, 16, m]
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=1)  # [n_blocks, BLOCK, m]
    return ((codes.astype(np.float32) - 8) * from_upper_half(scales)[:, None]).reshape(-1, scales.shape[1])


INT4 = Format(
    name="int4",
    help="9/16",
    weight_bytes=0.5 + 2 / BLOCK,
    channel_bytes=0,
    step=BLOCK,
    embedding="int8",
    pack=pack_int4,
    unpack=unpack_int4,
    rows=round_rows,
    jax="JAX has no product of 4-bit numbers with a scale for each block",
)

FORMATS = {format.name: format for format in (FLOAT32, BFLOAT16, INT8, INT4)}  # in the order that engine.c numbers them


def find(name: str) -> Format:
    """Raises UserError if there is none of that name."""
    if name not in FORMATS:
        raise UserError(f"there is no weight format {name!r:.80}: it is one of {', '.join(FORMATS)}")
    return FORMATS[name]


def on_jax(name: str) -> OnJax:
    """The parts that JAX needs of this format. Raises UserError if JAX cannot take it."""
    needs = find(name).jax
    if isinstance(needs, str):
        raise UserError(f"weights in {name} are for --engine numpy: {needs}")
    return needs


def described() -> str:
    """For --help."""
    return ", ".join(f"{name} ({format.help})" for name, format in FORMATS.items())


def by_size(jax: bool = False) -> list[str]:
    """Names, the largest first, of all formats, or of those that JAX takes."""
    taken = [name for name, format in FORMATS.items() if not jax or isinstance(format.jax, OnJax)]
    return sorted(taken, key=lambda name: -FORMATS[name].weight_bytes)


def n_bytes(name: str, n_in: int, n_out: int) -> int:
    """The bytes of a matrix in that format."""
    return int(find(name).weight_bytes * n_in * n_out) + find(name).channel_bytes * n_out


def model_bytes(name: str, shapes: dict[str, tuple[int, ...]]) -> int:
    """The bytes of a model whose matrices are in that format, of {name of a parameter: shape}."""
    total = 0
    for parameter, shape in shapes.items():
        if parameter == "wte":
            n_vocab, n_embd = shape
            total += n_bytes(find(name).embedding, n_embd, n_vocab)
        elif parameter.endswith("/w"):
            total += n_bytes(name, *shape)
        else:
            total += n_bytes("float32", 1, int(np.prod(shape)))
    return total
