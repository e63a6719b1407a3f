"""The kernels: a few rows times a packed weight, and attention over the cache, at the speed of the memory.

A decoding step multiplies 1 row (or the K+1 rows of a window) by every weight of the model. The weights come from
memory, a few bytes to a CPU cycle; in that cycle each core can do 32 multiply-adds. So a weight
should be read once, in the order in which it lies in memory, and used for all rows while it is in a register:

    tile    The weight is stored as [n_tiles, n_in, LANES]: LANES neighbouring output channels, all their inputs in
            order. A tile is read from front to back, LANES weights (two vector registers) at a time.
    sums    Each pair (row, channel) has one accumulator, and they all stay in registers from the first input to the
            last: ROWS rows x LANES channels fill the register file. Left to itself a compiler keeps them there for
            some row counts and spills them to memory for others; so `accumulate` is written in LLVM's own language,
            as vectors, with one loop for each row count.
    order   out[row, channel] = (((x[0] * w[0]) + x[1] * w[1]) + x[2] * w[2]) ..., each step one fused multiply-add, is
            what every such loop computes. How many rows there are decides which loop runs, but not what it computes,
            so the rows of a window equal the rows of single steps to the bit, and so do those of a prefill. The loops
            may stop after any input, store the sums and continue from there: that changes no bit either. (int8 weights
            meet rows rounded to int16; integers add up exactly in any order, and blocks of them in this one.)

Attention is the same product twice: scores = q times the keys, kept as tiles of LANES tokens, and output =
probabilities times the values, kept as tiles of LANES dimensions. Appending to these tiles is all the cache does.

packed.py has the products in plain NumPy, and gpt2.py the attention: the tests compare with them.
"""

import math

import numba
import numpy as np
from llvmlite import binding, ir
from numba import njit, prange, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

# What this CPU's vector registers hold, and how many there are. LLVM would translate any choice to any CPU; this one
# fits. Two registers of weights and one of x are left beside the accumulators, of which there are two for each row.
_has = binding.get_host_cpu_features().get
_arm = binding.get_process_triple().startswith(("aarch64", "arm64"))
VECTOR = 16 if _has("avx512f") else 8 if _has("avx") else 4  # float32s in a register
LANES = 2 * VECTOR  # output channels in a tile
ROWS = 10 if _has("avx512f") or _arm else 5  # rows in one pass over a tile: 32 registers, or 16
FEW_ROWS = ROWS // 2  # up to here two tiles are read side by side: an FMA takes 4 cycles, and 2 start in each
K_BLOCK = 512  # inputs in one pass: few enough for a core's cache to hold a tile's share while many rows go by, and for
# their products of int8 and int16, at most 127 * 32767 each, to add up in an int32
PREFETCH = 8192  # bytes ahead of the loop that memory is asked for: the CPU by itself stops at each 4 KB page
HAS_FMA = _arm or _has("fma", False)
# x86's instruction for two products of int16 and their sum. Elsewhere LLVM finds the instructions itself.
PAIR_PRODUCT = (
    "llvm.x86.avx512.pmaddw.d.512"
    if VECTOR == 16 and _has("avx512bw")
    else "llvm.x86.avx2.pmadd.wd"
    if VECTOR == 8 and _has("avx2")
    else None
)

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _INTEGERS = ir.VectorType(_F32, VECTOR), ir.VectorType(_I32, VECTOR)
_PAIRS = ir.VectorType(_I16, 2 * VECTOR)  # two inputs for each output channel
_POINTER = ir.IntType(8).as_pointer()


# ---- The inner loop, in LLVM's language ------------------------------------------------------------------------------


def _load_weights(builder, pointer, dtype):
    """pointer[:VECTOR].astype(float32), of int8 pointer[:2 * VECTOR].astype(int16). bfloat16 is half a float32."""
    if dtype == types.float32:
        return builder.load(builder.bitcast(pointer, _FLOATS.as_pointer()), align=4 * VECTOR)
    stored = ir.VectorType(ir.IntType(dtype.bitwidth), 2 * VECTOR if dtype == types.int8 else VECTOR)
    vector = builder.load(builder.bitcast(pointer, stored.as_pointer()), align=2 * VECTOR)
    if dtype == types.int8:
        return builder.sext(vector, _PAIRS)
    return builder.bitcast(builder.shl(builder.zext(vector, _INTEGERS), ir.Constant(_INTEGERS, [16] * VECTOR)), _FLOATS)


def _broadcast(builder, pointer, dtype):
    """np.full(VECTOR, pointer[0]); beside int8, pointer[0] is two int16 in one int32, and so is each place."""
    vector = _INTEGERS if dtype == types.int8 else _FLOATS
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, builder.load(pointer), _I32(0))
    full = builder.shuffle_vector(one, undefined, ir.Constant(_INTEGERS, [0] * VECTOR))
    return builder.bitcast(full, _PAIRS) if dtype == types.int8 else full


def _call(builder, name, result, *operands):
    """Calls one of LLVM's own functions."""
    signature = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(get_or_insert_function(builder.module, signature, name), operands)


def _multiply_add(builder, a, b, c):
    """a * b + c, rounded once where the CPU can do that in one instruction, else twice; always the same on one CPU."""
    if not HAS_FMA:
        return builder.fadd(builder.fmul(a, b), c)
    return _call(builder, f"llvm.fma.v{VECTOR}f32", _FLOATS, a, b, c)


def _multiply_add_pairs(builder, a, b, c):
    """a[::2] * b[::2] + a[1::2] * b[1::2] + c for int16 a and b, in int32: exact, so any instruction gives the same."""
    if PAIR_PRODUCT:
        return builder.add(_call(builder, PAIR_PRODUCT, _INTEGERS, a, b), c)
    for start in (0, 1):
        places = ir.Constant(_INTEGERS, list(range(start, 2 * VECTOR, 2)))
        parts = [builder.sext(builder.shuffle_vector(v, v, places), _INTEGERS) for v in (a, b)]
        c = builder.add(builder.mul(*parts), c)
    return c


def _prefetch(builder, pointer):
    """Asks for a cache line that will be read soon; changes nothing else."""
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), builder.bitcast(pointer, _POINTER), _I32(0), _I32(3), _I32(1))


def _loop(builder, rows, tiles, x, x_stride, w, tile_stride, out, out_stride, n_k, dtype):
    """The loop for one number of rows and tiles: out[rows, tiles * LANES] += x[rows, n_k] @ w."""
    exact = dtype == types.int8  # sums in int32, which are added to out at the end; else the sums continue out's
    per_k = 2 if exact else 1  # weights for each output channel in one step
    halves = [(tile, half) for tile in range(tiles) for half in (0, VECTOR)]
    x_rows = [builder.gep(x, [builder.mul(_I64(row), x_stride)]) for row in range(rows)]
    starts = [
        builder.gep(w, [builder.add(builder.mul(_I64(tile), tile_stride), _I64(half * per_k))]) for tile, half in halves
    ]
    cells = [
        builder.bitcast(
            builder.gep(out, [builder.add(builder.mul(_I64(row), out_stride), _I64(tile * LANES + half))]),
            _FLOATS.as_pointer(),
        )
        for row in range(rows)
        for tile, half in halves
    ]
    before, body, after = builder.block, *(builder.append_basic_block() for _ in range(2))
    stored = [builder.load(cell, align=4) for cell in cells]
    begin = [ir.Constant(_INTEGERS, [0] * VECTOR)] * len(cells) if exact else stored
    builder.branch(body)

    builder.position_at_end(body)
    k = builder.phi(_I64)
    sums = [builder.phi(value.type) for value in begin]
    at_k = builder.mul(k, _I64(LANES * per_k))
    weights = [_load_weights(builder, builder.gep(start, [at_k]), dtype) for start in starts]
    for start in starts[::2]:
        for byte in range(0, LANES * per_k * dtype.bitwidth // 8, 64):
            ahead = builder.add(at_k, _I64((PREFETCH + byte) * 8 // dtype.bitwidth))
            _prefetch(builder, builder.gep(start, [ahead]))
    xs = [_broadcast(builder, builder.gep(x_row, [k]), dtype) for x_row in x_rows]
    step = _multiply_add_pairs if exact else _multiply_add
    products = [(x, weight) for x in xs for weight in weights]
    new = [step(builder, x, weight, sum_) for (x, weight), sum_ in zip(products, sums, strict=True)]
    next_k = builder.add(k, _I64(1))
    for phi, first, later in zip([k, *sums], [_I64(0), *begin], [next_k, *new], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, body)
    builder.cbranch(builder.icmp_signed("<", next_k, n_k), body, after)

    builder.position_at_end(after)
    if exact:
        new = [builder.fadd(old, builder.sitofp(value, _FLOATS)) for old, value in zip(stored, new, strict=True)]
    for cell, value in zip(cells, new, strict=True):
        builder.store(value, cell, align=4)


@intrinsic
def accumulate(typing, rows, tiles, x, x_at, x_stride, w, w_at, tile_stride, out, out_at, out_stride, n_k):
    """out[:rows, :tiles * LANES] += x[:rows, :n_k] @ w[:n_k], with the sum over k in order; n_k >= 1.

    Where w is int8, each k stands for two inputs: x holds pairs of int16 as int32, and n_k is at most K_BLOCK / 2.
    rows is 1 to ROWS, tiles 1 or (up to FEW_ROWS rows) 2. x, w and out are the memory of arrays of any shape; *_at is
    the element where the part in question begins, *_stride how many elements lie between its rows or tiles.
    """
    signature = types.void(rows, tiles, x, x_at, x_stride, w, w_at, tile_stride, out, out_at, out_stride, n_k)

    def codegen(context, builder, signature, arguments):
        rows, tiles, _, x_at, x_stride, _, w_at, tile_stride, _, out_at, out_stride, n_k = arguments

        def begin(i, at):
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            return builder.gep(array.data, [at])

        x, w, out = begin(2, x_at), begin(5, w_at), begin(8, out_at)
        end = builder.append_basic_block()
        switch = builder.switch(builder.add(builder.mul(tiles, _I64(ROWS + 1)), rows), end)
        for n_tiles in (1, 2):
            for n_rows in range(1, (ROWS if n_tiles == 1 else FEW_ROWS) + 1):
                block = builder.append_basic_block()
                switch.add_case(_I64(n_tiles * (ROWS + 1) + n_rows), block)
                builder.position_at_end(block)
                dtype = signature.args[5].dtype
                _loop(builder, n_rows, n_tiles, x, x_stride, w, tile_stride, out, out_stride, n_k, dtype)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, codegen


# ---- A matrix product ------------------------------------------------------------------------------------------------


@njit(error_model="numpy")
def rows_times_tiles(n_rows, n_tiles, x, x_at, x_stride, w, w_at, tile_stride, out, out_at, out_stride, n_k):
    """accumulate, for any number of rows and tiles."""
    for row in range(0, n_rows, ROWS):
        rows = min(ROWS, n_rows - row)
        tile = 0
        while tile < n_tiles:
            tiles = 2 if rows <= FEW_ROWS and tile + 1 < n_tiles else 1
            accumulate(
                rows,
                tiles,
                x,
                x_at + row * x_stride,
                x_stride,
                w,
                w_at + tile * tile_stride,
                tile_stride,
                out,
                out_at + row * out_stride + tile * LANES,
                out_stride,
                n_k,
            )
            tile += tiles


@njit(error_model="numpy")
def multiply_tiles(x, w, out, first, last):
    """The output channels of tiles first to last."""
    n_rows, n_k = x.shape
    per_k = w.shape[3]
    together = 2 if n_rows <= FEW_ROWS else 1
    block = K_BLOCK // per_k
    for tile in range(first, last, together):
        for k in range(0, n_k, block):
            rows_times_tiles(
                n_rows,
                min(together, last - tile),
                x,
                k,
                n_k,
                w,
                (tile * n_k + k) * LANES * per_k,
                n_k * LANES * per_k,
                out,
                tile * LANES,
                out.shape[1],
                min(block, n_k - k),
            )


@njit(parallel=True, cache=True, error_model="numpy")
def multiply(x, w, out, n_threads):
    """out += x @ w; each thread takes a run of tiles.

    x [n_rows, n_in] float32, w [n_tiles, n_in, LANES, 1] float32 or uint16 (bfloat16), out [n_rows, n_tiles * LANES]
    float32, which holds zeros.
    """
    for thread in prange(n_threads):
        multiply_tiles(x, w, out, thread * len(w) // n_threads, (thread + 1) * len(w) // n_threads)


@njit(error_model="numpy")
def round_row(x, rounded):
    """A row as int16 and a scale, x = scale * rounded, as far as 16 bits reach. The zero behind an odd row stays."""
    largest = np.int32(0)
    bits = x.view(np.int32)
    for i in range(len(x)):  # without their sign, floats are in the order of their bits
        largest = max(largest, np.int32(bits[i] & 0x7FFFFFFF))
    scale = np.int32(largest).view(np.float32) / _F(32767)
    if scale == 0:
        scale = _F(1)
    for i in range(len(x)):
        rounded[i] = np.int16(np.rint(x[i] / scale))
    return scale


@njit(parallel=True, cache=True, error_model="numpy")
def multiply_int8(x, w, scale, out, n_threads):
    """multiply for int8: w [n_tiles, n_in / 2 rounded up, LANES, 2], scale [n_tiles * LANES].

    Each row of x is first rounded to 16 bits, 250 times finer than the weights are; the products of K_BLOCK inputs at a
    time are added up in int32, exactly, and these sums in float32. One instruction so does two inputs, and a window of
    rows is done in the time in which int8 weights come from memory; for float32 multiply-adds that time is too short.
    """
    n_rows = len(x)
    rounded = np.zeros((n_rows, 2 * w.shape[1]), np.int16)
    row_scale = np.empty(n_rows, np.float32)
    for row in range(n_rows):
        row_scale[row] = round_row(x[row], rounded[row])
    pairs = rounded.view(np.int32)
    for thread in prange(n_threads):
        first, last = thread * len(w) // n_threads, (thread + 1) * len(w) // n_threads
        multiply_tiles(pairs, w, out, first, last)
        for row in range(n_rows):
            for channel in range(first * LANES, last * LANES):
                out[row, channel] *= row_scale[row] * scale[channel]


# ---- Attention over the cache ----------------------------------------------------------------------------------------

_F = np.float32
_LOG2_E = _F(1 / math.log(2))
_LN_2_HIGH = _F(355 / 512)  # ln 2 in two parts: a whole number up to 2**15 times this one is exact,
_LN_2_LOW = _F(math.log(2) - 355 / 512)  # and this one is small


@njit(error_model="numpy")
def exp(x):
    """e**x for float32 x <= 0, to 3 in 10 million; 0 below -87. The same steps for every x, so loops vectorise.

    x = n ln 2 + r with a whole n and |r| <= ln 2 / 2: e**r by its series, 2**n by writing n into the exponent's bits.
    """
    n = np.floor(x * _LOG2_E + _F(0.5))
    r = x - n * _LN_2_HIGH - n * _LN_2_LOW
    series = _F(1 / 720) + r * _F(1 / 5040)
    series = _F(1 / 120) + r * series
    series = _F(1 / 24) + r * series
    series = _F(1 / 6) + r * series
    series = _F(0.5) + r * series
    series = _F(1) + r * series
    series = _F(1) + r * series
    power = np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return _F(0) if x < _F(-87) else series * power


@njit(error_model="numpy")
def exp_row(row, n_seen, lanes):
    """row[:n_seen] -> e**(row - max), 0 beyond; returns the sum. lanes [LANES] is scratch.

    Maximum and sum go over the row in LANES interleaved strands, so n_seen alone decides the order of the sum.
    """
    for j in range(n_seen, len(row)):
        row[j] = -np.inf
    for lane in range(LANES):
        lanes[lane] = row[lane]
    for j in range(LANES, len(row), LANES):
        strand = row[j : j + LANES]
        for lane in range(LANES):
            lanes[lane] = strand[lane] if strand[lane] > lanes[lane] else lanes[lane]
    largest = lanes.max()
    lanes[:] = 0
    for j in range(0, len(row), LANES):
        strand = row[j : j + LANES]
        for lane in range(LANES):
            strand[lane] = exp(strand[lane] - largest)
            lanes[lane] += strand[lane]
    total = _F(0)
    for lane in range(LANES):
        total += lanes[lane]
    return total


@njit(error_model="numpy")
def attend_head(q, k, v, keys, values, n_past, out):
    """One head of attend."""
    n_new, d_head = q.shape
    n_dims = values.shape[0] * LANES  # d_head, filled up to whole tiles
    n_room = keys.shape[0] * LANES
    for i in range(n_new):
        n = n_past + i
        for d in range(d_head):
            keys[n // LANES, d, n % LANES] = k[i, d]
            values[d // LANES, n, d % LANES] = v[i, d]
    queries = np.empty((ROWS, d_head), np.float32)
    scores = np.empty((ROWS, n_room), np.float32)
    sums = np.empty((ROWS, n_dims), np.float32)
    totals = np.empty(ROWS, np.float32)
    lanes = np.empty(LANES, np.float32)
    shrink = _F(1 / math.sqrt(d_head))
    for first in range(0, n_new, ROWS):
        n_rows = min(ROWS, n_new - first)
        n_seen = n_past + first + n_rows  # by the last of these rows
        n_tiles = (n_seen + LANES - 1) // LANES
        for row in range(n_rows):
            scores[row, : n_tiles * LANES] = 0
            sums[row] = 0
            for d in range(d_head):
                queries[row, d] = q[first + row, d] * shrink
        rows_times_tiles(n_rows, n_tiles, queries, 0, d_head, keys, 0, d_head * LANES, scores, 0, n_room, d_head)
        for row in range(n_rows):
            totals[row] = exp_row(scores[row, : n_tiles * LANES], n_past + first + row + 1, lanes)
        rows_times_tiles(
            n_rows, values.shape[0], scores, 0, n_room, values, 0, values.shape[1] * LANES, sums, 0, n_dims, n_seen
        )
        for row in range(n_rows):
            for d in range(d_head):
                out[first + row, d] = sums[row, d] / totals[row]


@njit(parallel=True, cache=True, error_model="numpy")
def attend(q, k, v, keys, values, n_past, out):
    """Appends k and v to the n_past tokens of the cache; out = causal attention of q to them all; heads in parallel.

    q, k, v [n_head, n_new, d_head] float32, out [n_new, n_head, d_head]; the cache's keys [n_head, n_ctx / LANES,
    d_head, LANES] and values [n_head, d_head / LANES, n_ctx, LANES], both rounded up to whole tiles. Tokens beyond
    those that a row sees have probability 0 and change none of its bits; but what the cache holds there must be finite.
    """
    for head in prange(len(q)):
        attend_head(q[head], k[head], v[head], keys[head], values[head], n_past, out[:, head])


# ---- How fast memory can be read -------------------------------------------------------------------------------------


@njit(error_model="numpy")
def read_part(memory):
    total = 0
    for i in range(len(memory)):
        total += memory[i]
    return total


@njit(parallel=True, cache=True, error_model="numpy")
def read_parts(memory, n_threads):
    total = 0
    for thread in prange(n_threads):
        total += read_part(memory[thread * len(memory) // n_threads : (thread + 1) * len(memory) // n_threads])
    return total


def read(memory):  # [n] int64 -> their sum
    """Reads memory once, with all threads and nothing else to do: the limit that the other kernels are held against."""
    return read_parts(memory, numba.get_num_threads())
