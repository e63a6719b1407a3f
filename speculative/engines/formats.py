"""The weight formats: all that packing, the memory check, the flags and JAX must know of each.

engine.c packs a matrix [n_in, n_out] as tiles of some `lanes` output channels with all their inputs in order, and has a
loop for each format. Here is the same in NumPy: the rounding of a weight, and of the rows that it multiplies.
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
    computed: str  # the type of the rows that it multiplies, and of the cache
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
    round: Callable  # w [n_in, n_out] float32 -> [n_in, n_out] float32, the numbers that are stored
    rows: Callable  # x [n_rows, n_in] -> [n_rows, n_in], the numbers that the engine multiplies by in place of x
    unpack: Callable  # (tiles uint8 [m / lanes, n_bytes], scale [m] or None, lanes) -> [n_in padded, m] float32
    jax: OnJax | str  # the parts that JAX needs, or the reason why it cannot take this format

    def tile_bytes(self, n_in: int, lanes: int) -> int:
        return int(self.weight_bytes * padded(n_in, self.step) * lanes)


def padded(n: int, step: int) -> int:
    return -(-n // step) * step


def as_matrix(tiles, dtype, lanes):  # uint8 [m / lanes, n_bytes] -> [n, m]
    """Join tiles [m / lanes, n, lanes]."""
    n = int(np.prod(tiles.shape[1:])) // (lanes * np.dtype(dtype).itemsize)
    words = np.ascontiguousarray(tiles).view(dtype).reshape(len(tiles), n, lanes)
    return words.swapaxes(0, 1).reshape(n, len(tiles) * lanes)


def in_blocks(w):  # [n_in, m] -> [n_blocks, BLOCK, m], with zeros where the last has no input
    return np.pad(w, ((0, -len(w) % BLOCK), (0, 0))).reshape(-1, BLOCK, w.shape[1])


# ---- float32: weights as they come -----------------------------------------------------------------------------------

FLOAT32 = Format(
    name="float32",
    help="4 bytes",
    weight_bytes=4,
    channel_bytes=0,
    step=1,
    embedding="float32",
    round=lambda w: w,
    rows=lambda x: x,
    unpack=lambda tiles, scale, lanes: as_matrix(tiles, np.float32, lanes),
    # The distance of two logits of the bundled target changes by up to 5e-5 over the bundled prompts.
    jax=OnJax("float32", "float32", "float32", tolerance=1e-3),
)


# ---- bfloat16: the upper 16 bits of a float32. Rows are rounded to it as well, as PyTorch and JAX do -----------------


def to_bfloat16(w):  # [...] float32 -> [...] float32
    """Rounds to nearest, and ties to even."""
    bits = np.ascontiguousarray(w).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def unpack_bfloat16(tiles, scale, lanes):
    """Two inputs share a word of 32 bits, the first in its lower half."""
    words = as_matrix(tiles, np.uint32, lanes)  # [n_in padded / 2, m]
    return np.stack([words << 16, words & 0xFFFF0000], axis=1).reshape(2 * len(words), words.shape[1]).view(np.float32)


BFLOAT16 = Format(
    name="bfloat16",
    help="2",
    weight_bytes=2,
    channel_bytes=0,
    step=2,
    embedding="bfloat16",
    round=to_bfloat16,
    rows=to_bfloat16,
    unpack=unpack_bfloat16,
    # The distance of two logits changes by up to 0.26.
    jax=OnJax("bfloat16", "bfloat16", "bfloat16", tolerance=0.3),
)


# ---- int8: whole numbers from -127 to 127 and a scale for each output channel ----------------------------------------


def round_rows(x):  # [n_rows, n_in] -> [n_rows, n_in]
    """The numbers that rounded rows stand for: whole ones up to 127 times a scale for each block of inputs. The sum
    over a block is then one of whole numbers, exact in any order, and CPUs have an instruction for it."""
    blocks = in_blocks(x.T)  # [n_blocks, BLOCK, n_rows]
    most = np.max(np.abs(blocks), axis=1, keepdims=True)  # [n_blocks, 1, n_rows]
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 1e-30)
    return (np.rint(blocks * inverse) * (most / np.float32(127))).reshape(-1, len(x)).T[:, : x.shape[1]]


def quantise(w, axis: int):  # [...] float32 -> [...] int8, float32 scales [...] without the axis
    """Symmetric: the largest weight along the axis becomes 127 or -127."""
    scale = np.max(np.abs(w), axis=axis, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.rint(w / scale).astype(np.int8), np.squeeze(scale, axis)


def round_int8(w):
    numbers, scale = quantise(w, 0)
    return numbers * scale


def bytes_of(words):  # [n, m] uint32 -> [4 n, m]
    """Four inputs of a channel share a word, the first in its lowest bits."""
    return np.stack([words >> i & 255 for i in (0, 8, 16, 24)], axis=1).reshape(4 * len(words), words.shape[1])


INT8 = Format(
    name="int8",
    help="1",
    weight_bytes=1,
    channel_bytes=4,
    step=BLOCK,
    embedding="int8",
    round=round_int8,
    rows=round_rows,
    # 128 is added to each number, as the instruction of x86 wants it
    unpack=lambda tiles, scale, lanes: (bytes_of(as_matrix(tiles, np.uint32, lanes)).astype(np.float32) - 128) * scale,
    jax=OnJax("int8", "bfloat16", "float32", 1e-3, quantise),
)


# ---- int4: whole numbers from -8 to 7 and a scale of 16 bits for each block of inputs of each output channel ---------


def round_int4(w):
    """Each block's extreme weight becomes -8, whatever its sign: the scale takes that. Scales are bfloat16s, and the
    weights are rounded to multiples of the scale as it is stored."""
    blocks = in_blocks(w)  # [n_blocks, BLOCK, m]
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)  # [n_blocks, 1, m]
    scale = to_bfloat16(extreme / np.float32(-8))  # [n_blocks, 1, m]
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=np.abs(scale) > 1e-30)  # [n_blocks, 1, m]
    return (np.clip(np.rint(blocks * inverse), -8, 7) * scale).reshape(-1, w.shape[1])[: len(w)]


def unpack_int4(tiles, scale, lanes):
    """Inputs k and k + 16 of a block share a byte; its scales lie behind its weights."""
    blocks = tiles.reshape(len(tiles), -1, (BLOCK // 2 + 2) * lanes)  # [m / lanes, n_blocks, n_bytes]
    scales = as_matrix(blocks[..., BLOCK // 2 * lanes :], np.uint16, lanes)  # [n_blocks, m]
    pairs = bytes_of(as_matrix(blocks[..., : BLOCK // 2 * lanes], np.uint32, lanes))  # [n_blocks * 16, m]
    pairs = pairs.reshape(len(scales), BLOCK // 2, -1)  # [n_blocks, 16, m]
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=1)  # [n_blocks, BLOCK, m]
    scale = (scales.astype(np.uint32) << 16).view(np.float32)  # [n_blocks, m]
    return ((codes.astype(np.float32) - 8) * scale[:, None]).reshape(-1, scale.shape[1])


INT4 = Format(
    name="int4",
    help="9/16",
    weight_bytes=0.5 + 2 / BLOCK,
    channel_bytes=0,
    step=BLOCK,
    embedding="int8",
    round=round_int4,
    rows=round_rows,
    unpack=unpack_int4,
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
