"""The weight formats: all that packing, the memory check and JAX must know of each.

The C engine has a loop for each format. Here is the rounding of its weights in NumPy, for a machine without a compiler.

To add one: an entry here; a line of FORMATS in c/arguments.h with its prepare_, times_, weight_ and pack_; and its name
in the help of --dtype.
"""

import math
import mmap
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from speculative.checkpoints.weights import Shape, Shapes
from speculative.support.errors import Option, UserError

INFINITE_IN_FLOAT16 = 65520  # the least number that rounds to infinity
BLOCK = 32  # inputs that share a scale in int4, and in rows that are rounded to 8 bits


class OnJax(NamedTuple):
    """The parts that the JAX engine needs. Types are named as NumPy names them."""

    stored: str  # the type of a weight on the device
    computed: str  # the type of the rows that it multiplies, and of the cache
    computed_on_cpu: str  # the same on a CPU
    quantise: Callable | None = None  # (array, axis of the inputs) -> (numbers, scales without that axis)


class Format(NamedTuple):
    name: str  # its name for --dtype and in the C engine
    weight_bytes: float  # bytes of a weight, with its share of its block's scale
    round: Callable[
        [np.ndarray], np.ndarray
    ]  # w [n_in, n_out] float32 -> [n_in, n_out] float32, the numbers that are stored
    jax: OnJax | str  # the parts that JAX needs, or the reason why it cannot take this format
    channel_bytes: int = 0  # bytes of an output channel beside its weights
    tolerance: float = 1e-3  # the distance of two logits up to which rounding may change their order
    embedding: str | None = None  # the format of the embedding, if one of its weights cannot be looked up in this one


def to_bfloat16(w):  # [...] float32 -> [...] float32
    """Keep the upper 16 bits: round to nearest, and ties to even."""
    bits = np.ascontiguousarray(w).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def to_float16(w):  # [...] float32 -> [...] float32
    """Round to nearest, and ties to even; numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(w, np.float16).astype(np.float32)


def quantise(w, axis: int):  # [...] float32 -> [...] int8, float32 scales [...] without the axis
    """Round to whole numbers from -127 to 127, times a scale: the largest weight along the axis becomes 127 or -127."""
    scale = np.max(np.abs(w), axis=axis, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.rint(w / scale).astype(np.int8), np.squeeze(scale, axis)


def round_int8(w):  # [n_in, n_out] -> [n_in, n_out]
    """Each output channel has a scale."""
    numbers, scale = quantise(w, 0)
    return numbers * scale


def round_int4(w):  # [n_in, n_out] -> [n_in, n_out]
    """Round to whole numbers from -8 to 7, times a bfloat16 scale for each block of inputs of each output channel. A
    block's extreme weight becomes -8, whatever its sign: the scale takes that."""
    n_in, n_out = w.shape
    padded = np.pad(w, ((0, -n_in % BLOCK), (0, 0)))
    blocks = padded.reshape(-1, BLOCK, n_out)  # [n_blocks, BLOCK, n_out]
    largest = np.abs(blocks).argmax(axis=1, keepdims=True)  # [n_blocks, 1, n_out]
    extreme = np.take_along_axis(blocks, largest, axis=1)  # [n_blocks, 1, n_out]
    scale = to_bfloat16(extreme / np.float32(-8))  # [n_blocks, 1, n_out]
    is_tiny = np.abs(scale) <= 1e-30
    inverse = np.where(is_tiny, 0, 1 / np.where(is_tiny, 1, scale))  # [n_blocks, 1, n_out]
    numbers = np.rint(blocks * inverse).clip(-8, 7)  # [n_blocks, BLOCK, n_out]
    rounded = (numbers * scale).reshape(-1, n_out)
    return rounded[:n_in]


# The tolerances are those of the bundled target: over its prompts, distances of two logits change by up to 5e-5 in
# float32, and by up to 0.26 in bfloat16.
ENTRIES = (
    Format(
        name="float32",
        weight_bytes=4,
        round=lambda w: w,
        jax=OnJax("float32", computed="float32", computed_on_cpu="float32"),
    ),
    Format(
        name="float16",
        weight_bytes=2,
        round=to_float16,
        jax=OnJax("float16", computed="float16", computed_on_cpu="float32"),
        tolerance=0.03,
    ),
    Format(
        name="bfloat16",
        weight_bytes=2,
        round=to_bfloat16,
        jax=OnJax("bfloat16", computed="bfloat16", computed_on_cpu="bfloat16"),
        tolerance=0.3,
    ),
    Format(
        name="int8",
        weight_bytes=1,
        round=round_int8,
        jax=OnJax("int8", computed="bfloat16", computed_on_cpu="float32", quantise=quantise),
        channel_bytes=4,
    ),
    Format(
        name="int4",
        weight_bytes=0.5 + 2 / BLOCK,
        round=round_int4,
        jax="JAX has no 4-bit numbers with a scale for each block",
        embedding="int8",
    ),
)
# The most exact first: a copy's rank in the shared cache is its place here. float32 has to be first.
FORMATS = {format.name: format for format in ENTRIES}


def on_jax(name: str) -> OnJax:
    """The parts that JAX needs of this format. Raises UserError if JAX cannot take it."""
    needs = FORMATS[name].jax
    if isinstance(needs, str):
        raise UserError(f"weights in {name} are for ", Option("engine"), f" c or numpy: {needs}")
    return needs


def matrix_of(name: str, shape: Shape, dtype: str) -> tuple[Shape, Format] | None:
    """The shape [n_in, n_out] and the format of a tensor such as h0/mlp/c_fc/w, whose model is in the format dtype.
    None if it is not a matrix that rows are multiplied by: it is then stored in float32."""
    format = FORMATS[dtype]
    if name == "wte":  # as x is multiplied by wte.T
        return shape[::-1], FORMATS[format.embedding or dtype]
    return (shape, format) if name.endswith("/w") else None


def check_range(name: str, array: np.ndarray, dtype: str) -> None:
    """Raise UserError if a number of this tensor would become infinite in float16."""
    if dtype == "float16" and max(array.max(), -array.min()) >= INFINITE_IN_FLOAT16:
        raise UserError(
            f"tensor {name} has numbers beyond 65,504, the last of float16: ", Option("dtype"), " bfloat16 holds them"
        )


def format_of(name: str, array: np.ndarray, dtype: str) -> Format | None:
    """Return the format in which a tensor is stored; None if it is a copy in float32, which no longer depends on the
    file. Raises UserError if a number would become infinite in it."""
    matrix = matrix_of(name, array.shape, dtype)
    if matrix is None:
        return None
    check_range(name, array, matrix[1].name)
    return matrix[1]


def model_bytes(dtype: str, shapes: Shapes) -> int:
    """The bytes of a model whose matrices are in that format. shapes: of its tensors, by their names."""
    total = 0
    for name, shape in shapes.items():
        matrix = matrix_of(name, shape, dtype)
        if matrix:
            (n_in, n_out), format = matrix
            total += int((format.weight_bytes * n_in + format.channel_bytes) * n_out)
        else:
            total += 4 * math.prod(shape)
    return total


# ---- The parameters of a network -------------------------------------------------------------------------------------


def arrays_of(params) -> Iterator:
    """Yield every array in a nested dict of parameters; of a packed weight its tiles."""
    array = getattr(params, "tiles", params)
    if hasattr(array, "nbytes"):
        yield array
        return
    for part in params.values() if isinstance(params, dict) else params:
        yield from arrays_of(part)


def is_mapped(params) -> bool:
    """Return True if some weights lie in a file that is mapped."""
    for memory in arrays_of(params):
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, memoryview) and isinstance(memory.obj, mmap.mmap):
            return True
    return False


def n_bytes(params) -> int:
    return sum([array.nbytes for array in arrays_of(params)])
