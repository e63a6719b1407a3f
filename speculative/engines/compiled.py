"""gpt2.py once more, as one compiled call: all threads go through the layers together, without NumPy in between.

Called from NumPy, the kernels wait: between two products layer norm, GELU and additions take 20 to 60 µs, in which the
second thread goes to sleep; waking it takes as long again. That is five times a layer: more than the products of a
small model take. Here each thread executes forward_pass from the first layer to the last, with its share of the tiles,
heads and rows, and they meet at five barriers a layer, of about a microsecond each (team.py):

    c_attn | attention | c_proj, + x | c_fc, gelu | c_proj, + x |

The functions have gpt2.py's names. What they work on are addresses, in structs whose fields are the keys of its nested
dicts: so the weights that gpt2.py would read are read here, and gpt2.py is what the tests compare with. Each row is
computed in one order, whatever rows, threads and calls there are: its bits do not depend on them.
"""

import math
from pathlib import Path
from zlib import crc32

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from speculative.engines import kernels, team
from speculative.engines.kernels import BLOCK, FLOAT32, INT8, LANES, PER_K, ROUNDED, ROWS, STEP, TILE_BYTES, X_BYTES
from speculative.engines.kernels import UNSIGNED, multiply_tile
from speculative.engines.team import DEAD, PATIENCE, POSTED, add, meet, read, wait_for_change

CHUNK = 64  # rows in one call: few enough for a core's cache, and for Ctrl-C to be heard between two parts of a prefill
SMALL = 8192  # numbers: to prepare so many takes a thread about as long as a barrier would

# ---- What a pass is given: addresses, under the names that gpt2.py has for the arrays --------------------------------


def struct(**fields):
    return np.dtype([(name, np.int64 if kind is int else kind) for name, kind in fields.items()])


WEIGHT = struct(tiles=int, scale=int, dtype=int, n_in=int, n_out=int)
LINEAR = struct(w=WEIGHT, b=int)
NORM = struct(g=int, b=int)
LAYER = struct(
    ln_1=NORM, attn=struct(c_attn=LINEAR, c_proj=LINEAR), ln_2=NORM, mlp=struct(c_fc=LINEAR, c_proj=LINEAR)
)
JOB = struct(
    **dict.fromkeys(("n_threads", "n_layer", "n_head", "n_embd", "n_ctx"), int),
    **dict.fromkeys(("tokens", "n_rows", "n_past", "n_last"), int),
    **dict(blocks=int, wte=LINEAR, wpe=int, ln_f=NORM, keys=int, values=int),
    **dict.fromkeys(("x", "y", "a", "normed", "rounded", "private", "private_bytes", "logits"), int),
)


@intrinsic
def pointer(typing, address):
    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@njit(error_model="numpy")
def floats(address, shape):
    return carray(pointer(address), shape, np.float32)


# ---- The functions of gpt2.py ----------------------------------------------------------------------------------------

F = np.float32
LOG2_E = F(1 / math.log(2))
LN_2_HIGH = F(355 / 512)  # ln 2 in two parts: a whole number up to 2**15 times this one is exact,
LN_2_LOW = F(math.log(2) - 355 / 512)  # and this one is small
SQRT_2_OVER_PI = F(math.sqrt(2 / math.pi))


@njit(error_model="numpy")
def exp(x):
    """e**x for float32 x <= 0, to 3 in 10 million; 0 below -87. The same steps for every x, so loops vectorise.

    x = n ln 2 + r with a whole n and |r| <= ln 2 / 2: e**r by its series, 2**n by writing n into the exponent's bits.
    """
    n = np.floor(x * LOG2_E + F(0.5))
    r = x - n * LN_2_HIGH - n * LN_2_LOW
    series = F(1 / 720) + r * F(1 / 5040)
    series = F(1 / 120) + r * series
    series = F(1 / 24) + r * series
    series = F(1 / 6) + r * series
    series = F(0.5) + r * series
    series = F(1) + r * series
    series = F(1) + r * series
    power = np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return F(0) if x < F(-87) else series * power


@njit(error_model="numpy")
def gelu(x):
    """0.5 (1 + tanh(z)) is 1 / (1 + e**(-2z)), or e**(2z) / (1 + e**(2z)): of these, that with the exponent below 0."""
    z = SQRT_2_OVER_PI * (x + F(0.044715) * x * x * x)
    e = exp(F(-2) * abs(z))
    return x * (F(1) if z > 0 else e) / (F(1) + e)


@njit(error_model="numpy", fastmath={"reassoc", "nsz"})
def total(x):
    """The sum, in an order that the length alone decides."""
    result = F(0)
    for i in range(len(x)):
        result += x[i]
    return result


@njit(error_model="numpy", fastmath={"reassoc", "nsz"})
def total_of_squares(x):
    result = F(0)
    for i in range(len(x)):
        result += x[i] * x[i]
    return result


@njit(error_model="numpy", fastmath={"nnan", "nsz"})
def largest(x):
    result = F(-np.inf)
    for i in range(len(x)):
        result = max(result, x[i])
    return result


@njit(error_model="numpy")
def layer_norm(x, g, b, out):
    """One row."""
    n = len(x)
    mean = total(x) / F(n)
    for i in range(n):
        out[i] = x[i] - mean
    deviation = math.sqrt(total_of_squares(out) / F(n) + F(1e-5))
    for i in range(n):
        out[i] = g[i] * (out[i] / deviation) + b[i]


@njit(error_model="numpy")
def round_row(x, out):
    """One row for an int8 product. Each BLOCK of it becomes whole numbers up to 127; what to multiply them by, 4 bytes;
    and where the CPU's instruction has 128 added to all weights, what that adds to the sum, negated.

    out: the address of ceil(len(x) / BLOCK) * X_BYTES[INT8] bytes. packed.round_rows is this in NumPy.
    """
    n_blocks = (len(x) + BLOCK - 1) // BLOCK
    whole = carray(pointer(out), (n_blocks, X_BYTES[INT8] // ROUNDED_BYTES), ROUNDED)
    scales = carray(pointer(out), (n_blocks, X_BYTES[INT8] // 4), np.float32)
    offsets = carray(pointer(out), (n_blocks, X_BYTES[INT8] // 4), np.int32)
    for block in range(n_blocks):
        part = x[block * BLOCK : (block + 1) * BLOCK]
        most = F(0)
        for i in range(len(part)):
            most = max(most, abs(part[i]))
        inverse = F(127) / most if most > F(1e-30) else F(0)
        sum_ = np.int32(0)
        for i in range(len(part)):
            rounded = np.int32(np.rint(part[i] * inverse))
            whole[block, i] = rounded
            sum_ += rounded
        for i in range(len(part), BLOCK):
            whole[block, i] = 0
        scales[block, X_BYTES[INT8] // 4 - 2] = most / F(127)
        offsets[block, X_BYTES[INT8] // 4 - 1] = -128 * sum_
