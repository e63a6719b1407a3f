"""A weight format: all that packing, the kernels, the memory check, the flags and JAX must know of one.

The builders of kernels write LLVM's language, and all of it comes with the Words that they are given (llvm.py): a
format's file imports nothing of llvmlite, as its plain parts work without.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from speculative.engines.cpu import BLOCK, REGISTERS


class Stored(NamedTuple):
    """Some output channels of a matrix, rounded."""

    numbers: np.ndarray  # [n_in, n]
    scale: np.ndarray | None = None  # [n]; the channel's sum is multiplied by it
    block_scale: np.ndarray | None = None  # [n_in / BLOCK, n]; each block's part of that sum is multiplied by it


class Rows(NamedTuple):
    """The form that a row of inputs takes before a product."""

    name: str
    bytes: Callable  # cpu -> of a BLOCK of inputs, at most as many as they have as float32
    plain: Callable  # x [n_rows, n_in] -> [n_rows, n_in], the numbers that prepared rows stand for
    # Builds one row: (Words, address of float32s, address of prepared ones, number of blocks). None: rows stay as they
    # are.
    build: Callable | None = None


AS_THEY_ARE = Rows("float32", lambda cpu: 4 * BLOCK, lambda x: x)


class Area(NamedTuple):
    """Some rows in memory, in LLVM's language."""

    rows: list  # the address of each
    stride: Any  # bytes from one to the next


def load_sums(words, out: Area):
    """The sums as they lie: for each row REGISTERS of them."""
    return [sum_ for row in out.rows for sum_ in words.load_side_by_side(row, words.floats, align=4)]


def store_sums(words, out: Area, sums):
    places = [words.at(row, i * 4 * words.cpu.vector) for row in out.rows for i in range(REGISTERS)]
    for place, sum_ in zip(places, sums, strict=True):
        words.store(sum_, place)


class OnJax(NamedTuple):
    """The parts that the JAX engine needs. Types are named as NumPy names them."""

    stored: str  # the type that a weight has on the device
    computed: str  # that of what is multiplied by it, and of the cache
    computed_on_cpu: str  # the same where there is no accelerator
    tolerance: float  # how far apart two logits may be that its rounding alone brings into another order
    quantise: Callable | None = None  # (array, axis of the inputs) -> (numbers, scales without that axis)


@dataclass(frozen=True)
class Format:
    """A weight format. In what follows, cpu is a Cpu: tiles are laid out for its registers.

    What is annotated with words is a part that no format can do without. They follow from each other: `tile` and
    `untile` undo each other, and `widen` gives the numbers that `product` multiplies by, which registering tries; the
    kernel that `multiply` builds computes `product`, and `fill` does what `tile` does, which is tried before they are
    first used.
    """

    name: Annotated[str, "what --dtype calls it"] = None
    help: Annotated[str, "its bytes a weight, in a word or two"] = None
    weight_bytes: Annotated[float, "bytes of a weight, with its share of its block's scale"] = None
    channel_bytes: Annotated[int, "bytes of an output channel beside its weights"] = None

    round: Annotated[Callable, "[n_in, n] float32 -> Stored"] = None
    widen: Annotated[Callable, "Stored -> [n_in, n] float32, the numbers that it stands for"] = None
    product: Annotated[Callable, "x [n_rows, n_in], Stored -> [n_rows, n], summed in the kernel's order"] = None

    rows: Annotated[Rows, "what its kernel makes of a row before it reads it"] = None
    dot: Annotated[Callable, "cpu -> Dot, the instruction of its sums"] = None
    step: Annotated[
        int, "inputs that a step of the kernel takes: a divisor of BLOCK, which it is for prepared rows"
    ] = None
    step_bytes: Annotated[Callable, "cpu -> bytes of a tile that a step reads"] = None
    tile: Annotated[Callable, "(Stored of up to cpu.lanes channels, cpu) -> uint8 [n_steps, step_bytes]"] = None
    untile: Annotated[Callable, "(uint8 [n_steps, step_bytes], n_in, cpu) -> Stored, without scale"] = None
    multiply: Annotated[Callable, "builds a step: (Words, Area of x, address in the tile, sums) -> sums"] = None
    embedding: Annotated[str, "the format of the embedding: its own name where it has a lookup"] = None
    jax: Annotated[OnJax | str, "what JAX needs, or why it cannot take this format"] = None

    # round and tile in one, for speed: fill(w [n_in, lanes], tile, scale [lanes], dot) writes a tile, uint8 of zeros
    # [n_steps * step_bytes]; w has zeros where the last tile has no channel, and dot is the number of inputs that the
    # instruction takes. It is compiled (so plain loops), and gives the same bits. None: packing goes by round and tile.
    fill: Callable | None = None
    # Build what stands before the loop over the steps, (Words, Area of out) -> sums, the values that each step takes
    # and returns; and what stands after it: (Words, Area of out, sums).
    begin: Callable = load_sums
    end: Callable = store_sums
    # Rows from which on it usually pays to ask for memory ahead: with fewer there is so little to do for each weight
    # that the CPU's own loads are far ahead. tuning.py measures it for models that no cache holds.
    prefetch_from: int = 1
    # cpu -> how many rows such a loop can have at most; 32 is the most of all.
    most_rows: Callable = lambda cpu: cpu.rows
    # (cpu, this format) -> the format with a kernel that only some CPUs have, for the same tiles and prepared rows, or
    # None. It is taken where it gives what `product` gives.
    faster: Callable = lambda cpu, format: None
    # Builds what an embedding needs: (Words, address of a tile, lane, input) -> a float32, before any scale. None where
    # another format stores the embedding.
    lookup: Callable | None = None


# ---- What several formats have in common -----------------------------------------------------------------------------


def interleave(numbers, cpu, step, per_k):  # [n_in, n] -> uint8 [n_steps, step_bytes]
    """A tile that holds numbers of one size, per_k inputs side by side for each channel; zeros fill it up."""
    n_in, n = numbers.shape
    n_k = -(-n_in // step) * step
    filled = np.zeros((n_k, cpu.lanes), numbers.dtype)  # [n_k, lanes]
    filled[:n_in, :n] = numbers
    tile = filled.reshape(-1, per_k, cpu.lanes).swapaxes(1, 2)  # [n_k / per_k, lanes, per_k]
    return np.ascontiguousarray(tile).view(np.uint8).reshape(n_k // step, -1)


def separate(tile, n_in, dtype, cpu, per_k):  # uint8 [n_steps, step_bytes] -> [n_in, lanes]
    """The inverse of interleave, with the zeros that it added."""
    numbers = tile.reshape(-1).view(dtype).reshape(-1, cpu.lanes, per_k)  # [n_k / per_k, lanes, per_k]
    return numbers.swapaxes(1, 2).reshape(-1, cpu.lanes)[:n_in]


def number_at(words, tile, lane, k, itemsize, per_k):
    """The address of an interleaved number."""
    b = words.ir
    per = words.times
    outer = b.udiv(k, k.type(per_k))
    inner = b.urem(k, k.type(per_k))
    place = b.add(per(b.add(per(outer, words.cpu.lanes), lane), per_k), inner)
    return words.at(tile, per(place, itemsize))


def sum_in_order(x, w):  # [n_rows, n_in], [n_in, n_out] -> [n_rows, n_out]
    """The kernels' product, plainly: each output is summed over the inputs in order, whatever rows stand beside it.

    (They round once for each multiply-add, and NumPy, which has no such operation, twice.)
    """
    out = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for k in range(x.shape[1]):
        out += x[:, k : k + 1] * w[k]  # [n_rows, 1] * [n_out]
    return out
