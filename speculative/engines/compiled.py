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

import functools
import math
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
from llvmlite import ir
from numba import carray, njit, typeof, types
from numba.extending import intrinsic

from speculative.engines import kernels, team
from speculative.engines.kernels import (
    BFLOAT16,
    BLOCK,
    FLOAT32,
    INT8,
    LANES,
    PER_K,
    ROWS,
    STEP,
    TILE_BYTES,
    X_BYTES,
    multiply_tile,
    round_row,
)
from speculative.engines.packed import DTYPES, PackedWeight, aligned
from speculative.engines.team import DEAD, PATIENCE, POSTED, Team, add, meet, read, wait_for_change

CHUNK = 40  # rows in one call at most, a few times ROWS: Python hears Ctrl-C between two parts of a prefill
SMALL = 8192  # numbers: to prepare so many takes a thread about as long as a barrier would
STORE, GELU, ADD = range(3)

# ---- What a pass is given: addresses, under the names that gpt2.py has for the arrays --------------------------------


def struct(**fields):
    return np.dtype([(name, np.int64 if kind is int else kind) for name, kind in fields.items()])


WEIGHT = struct(tiles=int, scale=int, dtype=int, n_in=int, n_out=int)
LINEAR = struct(w=WEIGHT, b=int)
NORM = struct(g=int, b=int)
LAYER = struct(ln_1=NORM, attn=struct(c_attn=LINEAR, c_proj=LINEAR), ln_2=NORM, mlp=struct(c_fc=LINEAR, c_proj=LINEAR))
JOB = struct(
    **dict.fromkeys(("n_threads", "n_layer", "n_head", "n_embd", "n_ctx"), int),
    **dict.fromkeys(("tokens", "n_rows", "n_past", "n_last"), int),
    **{"blocks": int, "wte": WEIGHT, "wpe": int, "ln_f": NORM, "no_norm": NORM, "keys": int, "values": int},
    **dict.fromkeys(("x", "qkv", "a", "hidden", "prepared", "privates", "logits", "multiply"), int),
)
PRIVATE = struct(**dict.fromkeys(("sums", "row", "prepared", "queries", "scores", "totals"), int))  # of one thread


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
    deviation = F(math.sqrt(total_of_squares(out) / F(n) + F(1e-5)))
    for i in range(n):
        out[i] = g[i] * (out[i] / deviation) + b[i]


@njit(error_model="numpy")
def share(thread, n_threads, n):
    """What a thread does of n tiles, heads or numbers: from, to."""
    return thread * n // n_threads, (thread + 1) * n // n_threads


@njit(error_model="numpy")
def padded(n):
    """Numbers from one row to the next, so that each block of inputs is whole; zeros fill it up."""
    return (n + BLOCK - 1) // BLOCK * BLOCK


@njit(error_model="numpy")
def tile_bytes(w):
    return (w.n_in + STEP[w.dtype] - 1) // STEP[w.dtype] * TILE_BYTES[w.dtype]


@njit(error_model="numpy")
def embed(job, thread):
    """x = wte[tokens] + wpe[n_past :], of each thread a part of the columns."""
    wte, tokens = job.wte, carray(pointer(job.tokens), job.n_rows, np.int64)
    x = floats(job.x, (job.n_rows, padded(job.n_embd)))
    wpe = floats(job.wpe, (job.n_past + job.n_rows, job.n_embd))
    per_k = PER_K[wte.dtype]
    n = tile_bytes(wte)
    first, last = share(thread, job.n_threads, job.n_embd)
    for row in range(job.n_rows):
        token = tokens[row]
        tile, lane = wte.tiles + token // LANES * n, token % LANES
        for k in range(first, last):
            at = (k // per_k * LANES + lane) * per_k + k % per_k
            if wte.dtype == FLOAT32:
                value = carray(pointer(tile), n, np.float32)[at]
            elif wte.dtype == BFLOAT16:
                value = np.int32(np.int32(carray(pointer(tile), n, np.uint16)[at]) << 16).view(np.float32)
            else:
                scale = floats(wte.scale, token + 1)[token]
                value = F(carray(pointer(tile), n, np.int8)[at]) * scale
            x[row, k] = value + wpe[job.n_past + row, k]


@njit(error_model="numpy")
def prepare(state, job, thread, private, x, n_rows, w, norm):
    """What a product reads: rows of x after layer norm (where norm has an address), and rounded for int8 weights.

    A few rows are prepared by each thread for itself, many by all for all. -> address, bytes from row to row
    """
    rounds = w.dtype == INT8
    stride = 4 * padded(w.n_in)
    if norm.g == 0 and not rounds:
        return x, stride
    alone = job.n_threads == 1 or n_rows * w.n_in <= SMALL
    ready = private.prepared if alone else job.prepared
    ready_stride = padded(w.n_in) // BLOCK * X_BYTES[INT8] if rounds else stride
    for row in range(0 if alone else thread, n_rows, 1 if alone else job.n_threads):
        here, there = x + row * stride, ready + row * ready_stride
        if norm.g:
            normed = private.row if rounds else there
            n = w.n_in
            layer_norm(floats(here, n), floats(norm.g, n), floats(norm.b, n), floats(normed, n))
            for i in range(n, padded(n)):
                floats(normed, padded(n))[i] = 0
            here = normed
        if rounds:
            round_row(here, there, padded(w.n_in) // BLOCK)
    if not alone:
        meet(state, job.n_threads)
    return ready, ready_stride


@njit(error_model="numpy")
def linear(state, job, thread, private, x, n_rows, norm, w, b, out, out_stride, then):
    """x @ w + b for this thread's tiles; then it is written to out, or through gelu, or added to what is there."""
    ready, stride = prepare(state, job, thread, private, x, n_rows, w, norm)
    n_steps = (w.n_in + STEP[w.dtype] - 1) // STEP[w.dtype]
    sums = floats(private.sums, (n_rows, LANES))
    out = floats(out, (n_rows, out_stride))
    first, last = share(thread, job.n_threads, (w.n_out + LANES - 1) // LANES)
    for tile in range(first, last):
        sums[:] = 0
        where = w.tiles + tile * tile_bytes(w)
        multiply_tile(job.multiply, w.dtype, n_rows, ready, stride, where, private.sums, 4 * LANES, n_steps)
        channel = tile * LANES
        n = min(LANES, w.n_out - channel)
        for row in range(n_rows):
            sums_row, out_row = sums[row, :n], out[row, channel : channel + n]
            if w.dtype == INT8:
                scale = floats(w.scale + 4 * channel, n)
                for lane in range(n):
                    sums_row[lane] *= scale[lane]
            if b:
                bias = floats(b + 4 * channel, n)
                for lane in range(n):
                    sums_row[lane] += bias[lane]
            if then == ADD:
                for lane in range(n):
                    out_row[lane] += sums_row[lane]
            elif then == GELU:
                for lane in range(n):
                    out_row[lane] = gelu(sums_row[lane])
            else:
                for lane in range(n):
                    out_row[lane] = sums_row[lane]


@njit(error_model="numpy")
def softmax_without_division(scores, n_seen):
    """scores[:n_seen] -> e**(score - max), 0 beyond; returns the sum."""
    for j in range(n_seen, len(scores)):
        scores[j] = -np.inf
    most = largest(scores)
    for j in range(len(scores)):
        scores[j] = exp(scores[j] - most)
    return total(scores[:n_seen])


@njit(error_model="numpy")
def attention(job, private, layer, head):
    """One head: appends its keys and values to the cache; then each row attends to all tokens up to its own.

    keys lie as [n_ctx / LANES, d_head, LANES] and values as [d_head / LANES, n_ctx, LANES], rounded up to whole tiles,
    so both products are those of a packed weight. The slots of the cache beyond n_seen get the probability 0 and
    change no bit; they hold finite numbers.
    """
    d_head = job.n_embd // job.n_head
    n_room, d_room = padded_to_tiles(job.n_ctx), padded_to_tiles(d_head)
    at = (layer * job.n_head + head) * 4
    keys, values = job.keys + at * n_room * d_head, job.values + at * job.n_ctx * d_room
    key_tiles = floats(keys, (n_room // LANES, d_head, LANES))
    value_tiles = floats(values, (d_room // LANES, job.n_ctx, LANES))
    qkv = floats(job.qkv, (job.n_rows, padded(3 * job.n_embd)))
    a = floats(job.a, (job.n_rows, padded(job.n_embd)))
    shrink, from_head = F(1 / math.sqrt(d_head)), head * d_head
    for row in range(job.n_rows):
        slot = job.n_past + row
        k, v = qkv[row, job.n_embd + from_head :], qkv[row, 2 * job.n_embd + from_head :]
        for d in range(d_head):
            key_tiles[slot // LANES, d, slot % LANES] = k[d]
            value_tiles[d // LANES, slot, d % LANES] = v[d]

    queries, scores = floats(private.queries, (ROWS, d_head)), floats(private.scores, (ROWS, n_room))
    sums = floats(private.sums, (ROWS, LANES))
    for first in range(0, job.n_rows, ROWS):
        n_rows = min(ROWS, job.n_rows - first)
        n_seen = job.n_past + first + n_rows  # by the last of these rows
        n_slots = padded_to_tiles(n_seen)
        for row in range(n_rows):
            scores[row, :n_slots] = 0
            q = qkv[first + row, from_head : from_head + d_head]
            for d in range(d_head):
                queries[row, d] = q[d] * shrink
        for tile in range(n_slots // LANES):
            where, into = keys + tile * 4 * LANES * d_head, private.scores + tile * 4 * LANES
            multiply_tile(job.multiply, FLOAT32, n_rows, private.queries, 4 * d_head, where, into, 4 * n_room, d_head)
        totals = floats(private.totals, ROWS)
        for row in range(n_rows):
            totals[row] = softmax_without_division(scores[row, :n_slots], job.n_past + first + row + 1)
        for tile in range(d_room // LANES):
            sums[:n_rows] = 0
            where = values + tile * 4 * LANES * job.n_ctx
            multiply_tile(
                job.multiply, FLOAT32, n_rows, private.scores, 4 * n_room, where, private.sums, 4 * LANES, n_seen
            )
            for row in range(n_rows):
                for d in range(tile * LANES, min(d_head, (tile + 1) * LANES)):
                    a[first + row, from_head + d] = sums[row, d - tile * LANES] / totals[row]


@njit(error_model="numpy")
def padded_to_tiles(n):
    return (n + LANES - 1) // LANES * LANES


@njit(error_model="numpy")
def gpt2(state, job, thread):
    """This thread's share of a forward pass, with barriers where it needs what others have computed."""
    n, rows, n_embd = job.n_threads, job.n_rows, job.n_embd
    private = carray(pointer(job.privates), n, PRIVATE)[thread]
    blocks = carray(pointer(job.blocks), job.n_layer, LAYER)
    width, no_norm = padded(n_embd), job.no_norm
    first, last = share(thread, n, job.n_head)

    embed(job, thread)
    meet(state, n)
    for layer in range(job.n_layer):
        block = blocks[layer]
        w, b = block.attn.c_attn.w, block.attn.c_attn.b
        linear(state, job, thread, private, job.x, rows, block.ln_1, w, b, job.qkv, padded(3 * n_embd), STORE)
        meet(state, n)
        for head in range(first, last):
            attention(job, private, layer, head)
        meet(state, n)
        w, b = block.attn.c_proj.w, block.attn.c_proj.b
        linear(state, job, thread, private, job.a, rows, no_norm, w, b, job.x, width, ADD)
        meet(state, n)
        w, b = block.mlp.c_fc.w, block.mlp.c_fc.b
        linear(state, job, thread, private, job.x, rows, block.ln_2, w, b, job.hidden, padded(4 * n_embd), GELU)
        meet(state, n)
        w, b = block.mlp.c_proj.w, block.mlp.c_proj.b
        linear(state, job, thread, private, job.hidden, rows, no_norm, w, b, job.x, width, ADD)
        meet(state, n)
    if job.n_last:
        x, w = job.x + (rows - job.n_last) * 4 * width, job.wte
        linear(state, job, thread, private, x, job.n_last, job.ln_f, w, 0, job.logits, w.n_out, STORE)
    meet(state, n)


# ---- From Python -----------------------------------------------------------------------------------------------------


def compile_work(version: int):
    """The Team's work. numba keeps it on the disk under a key with the version: that of all files it is made from."""

    @njit(nogil=True, cache=True, error_model="numpy")
    def work(thread, state, jobs, done):
        _ = version
        if thread == 0:
            add(state, POSTED, 1)
            gpt2(state, jobs[0], thread)
            return done + 1
        while True:
            wait_for_change(state, POSTED, done, PATIENCE)
            if read(state, POSTED) == done or read(state, DEAD):
                return done
            gpt2(state, jobs[0], thread)
            done += 1

    return work


work = compile_work(
    crc32(b"".join(Path(module).read_bytes() for module in (__file__, kernels.__file__, team.__file__)))
)


@functools.cache
def make_team(n_threads: int) -> Team:
    return Team(n_threads, work, JOB)


def compile_all() -> None:
    work.compile((types.int64, types.int64, typeof(np.zeros(1, JOB)), types.int64))


def layout(dtype: str) -> tuple[int, int, int]:
    """Of tiles of a dtype: output channels; inputs that lie side by side for each; and those that fill up a step."""
    which = list(DTYPES).index(dtype)
    return LANES, PER_K[which], STEP[which]


def fill(struct, values, keep):
    """Fills a struct's fields from a dict with the same names; of arrays it takes the addresses, and keeps them alive.

    struct: a record of NumPy; keep: a list that lives as long as the struct.
    """
    for name in struct.dtype.names:
        value = values[name]
        if isinstance(value, dict):
            fill(struct[name], value, keep)
        elif isinstance(value, PackedWeight):
            n_in, n_out = value.shape
            numbers = {"dtype": list(DTYPES).index(value.dtype), "n_in": n_in, "n_out": n_out}
            scale = 0 if value.scale is None else value.scale
            fill(struct[name], {"tiles": value.tiles, "scale": scale, **numbers}, keep)
        elif isinstance(value, np.ndarray):
            keep.append(np.ascontiguousarray(value))
            struct[name] = keep[-1].ctypes.data
        else:
            struct[name] = value


class CompiledPass:
    """cached.PlainPass's twin: gpt2 with packed weights, and a cache of its own."""

    def __init__(self, params: dict, hparams: dict, team: Callable[[], Team]):
        """team() gives the threads of the next call."""
        n_embd, n_layer, n_head = (hparams[name] for name in ("n_embd", "n_layer", "n_head"))
        n_room, d_head = padded_to_tiles(hparams["n_ctx"]), n_embd // n_head
        self.n_vocab, self.n_embd, self.length, self.team, self.kept = hparams["n_vocab"], n_embd, 0, team, []
        blocks = np.zeros(n_layer, LAYER)
        for struct, block in zip(blocks, params["blocks"], strict=True):
            fill(struct, block, self.kept)
        no_norm = {"g": 0, "b": 0}
        self.x = aligned((CHUNK, padded(n_embd)), np.float32)
        self.buffers = {
            "x": self.x,
            "qkv": aligned((CHUNK, padded(3 * n_embd)), np.float32),
            "a": aligned((CHUNK, padded(n_embd)), np.float32),
            "hidden": aligned((CHUNK, padded(4 * n_embd)), np.float32),
            "prepared": aligned((CHUNK, padded(4 * n_embd)), np.float32),
            "keys": aligned((n_layer, n_head, n_room, d_head), np.float32),
            "values": aligned((n_layer, n_head, hparams["n_ctx"], padded_to_tiles(d_head)), np.float32),
        }
        self.job = np.zeros(1, JOB)
        self.fields = {
            **{name: hparams[name] for name in ("n_layer", "n_head", "n_embd", "n_ctx")},
            **{"blocks": blocks, "wte": params["wte"].T, "wpe": params["wpe"], "ln_f": params["ln_f"]},
            **{"no_norm": no_norm, "multiply": kernels.tile_product.address, **self.buffers},
        }
        self.n_threads = 0

    def share(self, n_threads: int) -> None:
        """Gives each thread memory of its own."""
        n_room, width = padded_to_tiles(self.fields["n_ctx"]), padded(4 * self.n_embd)
        shapes = {
            "sums": (CHUNK, LANES),
            "row": (width,),
            "prepared": (CHUNK, width),
            "queries": (ROWS, self.n_embd),
            "scores": (ROWS, n_room),
            "totals": (ROWS,),
        }
        privates, self.kept_private = np.zeros(n_threads, PRIVATE), []
        for private in privates:
            fill(private, {name: aligned(shape, np.float32) for name, shape in shapes.items()}, self.kept_private)
        call = dict.fromkeys(("tokens", "n_rows", "n_past", "n_last", "logits"), 0)
        fields = {**self.fields, "privates": privates, "n_threads": n_threads, **call}
        fill(self.job[0], fields, self.kept_private)
        self.n_threads = n_threads

    def __call__(self, tokens, n_last: int) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The tokens come after the first `length`, whose keys and values are known. Raises UserError where a thread
        dies. Then hidden [n_last, n_embd] is what the last block gave for the last n_last tokens."""
        team = self.team()
        if self.n_threads != team.n_threads:
            self.share(team.n_threads)
        tokens = np.ascontiguousarray(tokens, np.int64)  # [n]
        logits = np.empty((n_last, self.n_vocab), np.float32)  # [n_last, n_vocab]
        self.hidden = np.empty((n_last, self.n_embd), np.float32)  # [n_last, n_embd]
        n_before = len(tokens) - n_last  # tokens whose logits are not wanted
        n_chunks, job = -(-len(tokens) // CHUNK), self.job[0]
        for chunk in range(n_chunks):
            first, end = (len(tokens) * i // n_chunks for i in (chunk, chunk + 1))
            wanted = slice(max(0, first - n_before), max(0, end - n_before))
            job["tokens"], job["n_rows"], job["n_past"] = tokens[first:].ctypes.data, end - first, self.length
            job["n_last"], job["logits"] = wanted.stop - wanted.start, logits[wanted].ctypes.data
            team.run(self.job)
            self.hidden[wanted] = self.x[end - first - job["n_last"] : end - first, : self.n_embd]
            self.length += end - first
        return logits
