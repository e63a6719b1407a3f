"""What a weight format is: all that packing, the kernels, the memory check, the flags and JAX must know of one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np


class Stored(NamedTuple):
    """Some output channels of a matrix, rounded."""

    numbers: np.ndarray  # [n_in, n]
    scale: np.ndarray | None = None  # [n], which each sum over the inputs is multiplied by
    block_scale: np.ndarray | None = None  # [n_in / BLOCK, n], which those over each block of inputs are multiplied by


class OnJax(NamedTuple):
    """What the JAX engine needs. Types are named as NumPy names them."""

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

    rounds_rows: Annotated[bool, "whether its kernel reads rows that are rounded to 8 bits"] = None
    step: Annotated[Callable, "cpu -> inputs that a step of the kernel takes, a divisor of BLOCK"] = None
    tile_bytes: Annotated[Callable, "cpu -> bytes of a tile that a step reads"] = None
    tile: Annotated[Callable, "(Stored of up to cpu.lanes channels, cpu) -> uint8 [n_steps, tile_bytes]"] = None
    untile: Annotated[Callable, "(uint8 [n_steps, tile_bytes], n_in, cpu) -> Stored, without scale"] = None
    multiply: Annotated[Callable, "builds a step: (Words, addresses of rows and tile, sums) -> sums"] = None
    embedding: Annotated[str, "the format of the embedding: its own name where it has a lookup"] = None
    jax: Annotated[OnJax | str, "what JAX needs, or why it cannot take this format"] = None

    # round and tile in one, for speed: fill(w [n_in, lanes], tile, scale [lanes], dot) writes a tile, uint8 of zeros
    # [n_steps * tile_bytes]; w has zeros where the last tile has no channel. It is compiled (so plain loops), and gives
    # the same bits. None: packing goes by round and tile.
    fill: Callable | None = None
    # Builds what an embedding needs: (Words, address of a tile, lane, input) -> a float32, before any scale. None where
    # another format stores the embedding.
    lookup: Callable | None = None
    # Rows from which on it pays to ask for memory ahead. With fewer there is so little to do for each weight that the
    # CPU's own loads are far ahead; to ask as well makes an int8 row take 1.4 times as long.
    prefetch_from: int = 1


# ---- What several formats have in common -----------------------------------------------------------------------------


def interleave(numbers, cpu, step, per_k):  # [n_in, n] -> uint8 [n_steps, tile_bytes]
    """A tile that holds numbers of one size, per_k inputs side by side for each channel; zeros fill it up."""
    n_in, n = numbers.shape
    n_k = -(-n_in // step) * step
    filled = np.zeros((n_k, cpu.lanes), numbers.dtype)  # [n_k, lanes]
    filled[:n_in, :n] = numbers
    tile = filled.reshape(-1, per_k, cpu.lanes).swapaxes(1, 2)  # [n_k / per_k, lanes, per_k]
    return np.ascontiguousarray(tile).view(np.uint8).reshape(n_k // step, -1)


def separate(tile, n_in, dtype, cpu, per_k):  # uint8 [n_steps, tile_bytes] -> [n_in, lanes]
    """What interleave was given, and the zeros beside it."""
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
    """What the kernels compute, plainly: each output is summed over the inputs in order, whatever rows stand beside it.

    (They round once for each multiply-add, and NumPy, which has no such operation, twice.)
    """
    out = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for k in range(x.shape[1]):
        out += x[:, k : k + 1] * w[k]  # [n_rows, 1] * [n_out]
    return out


def multiply_floats(words, xs, halves, sums, k: int):
    """sums + x[k] * w for each row, where halves are the two registers of float32 weights of input k."""
    inputs = [words.load_float(words.at(x, 4 * k)) for x in xs]
    pairs = [(x, half) for x in inputs for half in halves]
    return [words.multiply_add(x, half, sum_) for (x, half), sum_ in zip(pairs, sums, strict=True)]
