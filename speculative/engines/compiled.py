"""gpt2.py once more, as one compiled call: all threads go through the layers together, without NumPy in between.

Called from NumPy, the kernels wait: between two products layer norm, GELU and additions take 20 to 60 µs, in which the
second thread goes to sleep; waking it takes as long again. That is five times a layer: more than the products of a
small model take. Here each thread executes gpt2 from the first layer to the last, with its share of the tiles,
heads and rows, and they meet at barriers of about a microsecond each (team.py): five a layer, and one more before a
product whose many rows they prepare together.

    c_attn | attention | c_proj, + x | c_fc, gelu | c_proj, + x |

The functions have gpt2.py's names. What they work on are addresses, in structs whose fields are the keys of its nested
dicts: so the weights that gpt2.py would read are read here, and gpt2.py is what the tests compare with. Each row is
computed in one order, whatever rows, threads and calls there are: its bits do not depend on them.
"""

import math
from pathlib import Path
from zlib import crc32

import numpy as np
from numba import carray, njit

from speculative.engines import elementwise, kernels, team
from speculative.engines.cpu import BLOCK
from speculative.engines.elementwise import F, compiled_only, exp, gelu, gelu_by_erf, largest, layer_norm, total
from speculative.engines.kernels import LANES, ROWS, call, pointer
from speculative.engines.team import DEAD, PATIENCE, POSTED, add, meet, read, wait_for_change

# Rows in one call at most. A prompt reads all weights once for each such part; and Python hears Ctrl-C between two.
CHUNK = 120
SMALL = 8192  # numbers: to prepare so many takes a thread about as long as a barrier would
STORE, GELU, ADD, GELU_BY_ERF, RELU = map(np.int64, range(5))  # numba would compile once more for each literal number
NO_BIAS = np.int64(0)

# ---- What a pass is given: addresses, under the names that gpt2.py has for the arrays --------------------------------


def struct(**fields):
    return np.dtype([(name, np.int64 if kind is int else kind) for name, kind in fields.items()])


# Of a weight all that its format decides: scale is 0 where channels have none; prepare, multiply and look_up are the
# addresses of its kernels, prepare 0 where rows stay as they are; row_bytes is what a row takes as multiply reads it.
WEIGHT = struct(
    **dict.fromkeys(("tiles", "tile_bytes", "scale", "n_in", "n_out", "n_steps"), int),
    **dict.fromkeys(("row_bytes", "prepare", "multiply", "look_up", "plan"), int),
)
LINEAR = struct(w=WEIGHT, b=int)
NORM = struct(g=int, b=int)
LAYER = struct(ln_1=NORM, attn=struct(c_attn=LINEAR, c_proj=LINEAR), ln_2=NORM, mlp=struct(c_fc=LINEAR, c_proj=LINEAR))
# Of these, multiply and plan are those of attention, which are float32's, and no_norm is a NORM without addresses.
JOB = struct(
    **dict.fromkeys(("n_threads", "n_layer", "n_head", "n_embd", "n_ctx", "activation"), int),
    **dict.fromkeys(("tokens", "positions", "sees", "sees_width", "n_rows", "n_past", "n_last"), int),
    **{"blocks": int, "wte": WEIGHT, "wpe": int, "ln_f": NORM, "no_norm": NORM, "keys": int, "values": int},
    **dict.fromkeys(("x", "qkv", "a", "hidden", "prepared", "privates", "logits", "multiply", "plan"), int),
)
# What each thread has for itself.
PRIVATE = struct(**dict.fromkeys(("sums", "row", "prepared", "queries", "scores", "path", "totals"), int))


@compiled_only
def floats(address, shape):
    return carray(pointer(address), shape, np.float32)


# ---- The functions of gpt2.py ----------------------------------------------------------------------------------------


@compiled_only
def share(thread, n_threads, n):
    """A thread's share of n tiles, heads or numbers: from, to."""
    return thread * n // n_threads, (thread + 1) * n // n_threads


@njit(error_model="numpy")
def padded(n):
    """Numbers from one row to the next, so that each block of inputs is whole; zeros fill it up."""
    return (n + BLOCK - 1) // BLOCK * BLOCK


@compiled_only
def embed(job, thread):
    """x = wte[tokens] + wpe[positions], of each thread a part of the columns."""
    wte = job.wte
    tokens = carray(pointer(job.tokens), job.n_rows, np.int64)
    x = floats(job.x, (job.n_rows, padded(job.n_embd)))
    positions = carray(pointer(job.positions), job.n_rows, np.int64)
    wpe = floats(job.wpe, (job.n_ctx, job.n_embd))
    first, last = share(thread, job.n_threads, job.n_embd)
    for row in range(job.n_rows):
        token = tokens[row]
        tile = wte.tiles + token // LANES * wte.tile_bytes
        call(wte.look_up, (tile, token % LANES, first, last, job.x + row * 4 * padded(job.n_embd)))
        scale = floats(wte.scale, token + 1)[token] if wte.scale else F(1)
        for k in range(first, last):
            x[row, k] = x[row, k] * scale + wpe[positions[row], k]


@compiled_only
def prepare(state, job, thread, private, x, n_rows, w, norm):
    """Prepares the rows that a product reads: x after layer norm (where norm has an address), and as w wants them.

    A few rows are prepared by each thread for itself, many by all for all. -> address, bytes from row to row
    """
    stride = 4 * padded(w.n_in)
    if norm.g == 0 and not w.prepare:
        return x, stride
    alone = job.n_threads == 1 or n_rows * w.n_in <= SMALL
    ready = private.prepared if alone else job.prepared
    for row in range(0 if alone else thread, n_rows, 1 if alone else job.n_threads):
        here = x + row * stride
        there = ready + row * w.row_bytes
        if norm.g:
            normed = private.row if w.prepare else there
            n = w.n_in
            layer_norm(floats(here, n), floats(norm.g, n), floats(norm.b, n), floats(normed, n))
            for i in range(n, padded(n)):
                floats(normed, padded(n))[i] = 0
            here = normed
        if w.prepare:
            call(w.prepare, (here, there, padded(w.n_in) // BLOCK))
    if not alone:
        meet(state, job.n_threads)
    return ready, w.row_bytes


@compiled_only
def linear(state, job, thread, private, x, n_rows, norm, w, b, out, out_stride, then):
    """x @ w + b for this thread's tiles; then it is written to out, or through the activation, or added to out."""
    ready, stride = prepare(state, job, thread, private, x, n_rows, w, norm)
    sums = floats(private.sums, (n_rows, LANES))
    out = floats(out, (n_rows, out_stride))
    first, last = share(thread, job.n_threads, (w.n_out + LANES - 1) // LANES)
    for tile in range(first, last):
        sums[:] = 0
        where = w.tiles + tile * w.tile_bytes
        call(w.multiply, (n_rows, ready, stride, where, private.sums, 4 * LANES, w.n_steps, w.plan))
        channel = tile * LANES
        n = min(LANES, w.n_out - channel)
        for row in range(n_rows):
            sums_row = sums[row, :n]
            out_row = out[row, channel : channel + n]
            if w.scale:
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
            elif then == GELU_BY_ERF:
                for lane in range(n):
                    out_row[lane] = gelu_by_erf(sums_row[lane])
            elif then == RELU:
                for lane in range(n):
                    out_row[lane] = max(sums_row[lane], F(0))
            else:
                for lane in range(n):
                    out_row[lane] = sums_row[lane]


@compiled_only
def softmax_without_division(scores, n_seen):
    """scores[:n_seen] -> e**(score - max), 0 beyond; returns the sum."""
    for j in range(n_seen, len(scores)):
        scores[j] = -np.inf
    most = largest(scores)
    for j in range(len(scores)):
        scores[j] = exp(scores[j] - most)
    return total(scores[:n_seen])


@compiled_only
def softmax_on_path(scores, sees, path):
    """The same for a row of a tree, which sees [n] some slots. What they add up to is taken in the order of the path,
    without gaps, so that its bits are those of the same text as a chain."""
    for j in range(len(scores)):
        if j >= len(sees) or not sees[j]:
            scores[j] = -np.inf
    most = largest(scores)
    n = 0
    for j in range(len(scores)):
        scores[j] = exp(scores[j] - most)
    for j in range(len(sees)):
        if sees[j]:
            path[n] = scores[j]
            n += 1
    return total(path[:n])


@compiled_only
def attention(job, private, layer, head):
    """One head: appends its keys and values to the cache; then each row attends to all tokens up to its own.

    keys lie as [n_ctx / LANES, d_head, LANES] and values as [d_head / LANES, n_ctx, LANES], rounded up to whole tiles,
    so both products are those of a packed weight. The slots of the cache that a row does not see get the probability 0
    and change no bit; they hold finite numbers.
    """
    d_head = job.n_embd // job.n_head
    n_room = padded_to_tiles(job.n_ctx)
    d_room = padded_to_tiles(d_head)
    at = (layer * job.n_head + head) * 4
    keys = job.keys + at * n_room * d_head
    values = job.values + at * job.n_ctx * d_room
    key_tiles = floats(keys, (n_room // LANES, d_head, LANES))
    value_tiles = floats(values, (d_room // LANES, job.n_ctx, LANES))
    qkv = floats(job.qkv, (job.n_rows, padded(3 * job.n_embd)))
    a = floats(job.a, (job.n_rows, padded(job.n_embd)))
    shrink = F(1 / math.sqrt(d_head))
    from_head = head * d_head
    for row in range(job.n_rows):
        slot = job.n_past + row
        k = qkv[row, job.n_embd + from_head :]
        v = qkv[row, 2 * job.n_embd + from_head :]
        for d in range(d_head):
            key_tiles[slot // LANES, d, slot % LANES] = k[d]
            value_tiles[d // LANES, slot, d % LANES] = v[d]

    queries = floats(private.queries, (ROWS, d_head))
    scores = floats(private.scores, (ROWS, n_room))
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
            where = keys + tile * 4 * LANES * d_head
            into = private.scores + tile * 4 * LANES
            call(job.multiply, (n_rows, private.queries, 4 * d_head, where, into, 4 * n_room, d_head, job.plan))
        totals = floats(private.totals, ROWS)
        for row in range(n_rows):
            if job.sees:
                sees = carray(pointer(job.sees + (first + row) * job.sees_width), job.sees_width, np.uint8)
                totals[row] = softmax_on_path(scores[row, :n_slots], sees, floats(private.path, n_room))
            else:
                totals[row] = softmax_without_division(scores[row, :n_slots], job.n_past + first + row + 1)
        for tile in range(d_room // LANES):
            sums[:n_rows] = 0
            where = values + tile * 4 * LANES * job.n_ctx
            call(job.multiply, (n_rows, private.scores, 4 * n_room, where, private.sums, 4 * LANES, n_seen, job.plan))
            for row in range(n_rows):
                for d in range(tile * LANES, min(d_head, (tile + 1) * LANES)):
                    a[first + row, from_head + d] = sums[row, d - tile * LANES] / totals[row]


@njit(error_model="numpy")
def padded_to_tiles(n):
    return (n + LANES - 1) // LANES * LANES


@compiled_only
def gpt2(state, job, thread):
    """This thread's share of a forward pass, with barriers where it needs what others have computed."""
    n = job.n_threads
    rows = job.n_rows
    n_embd = job.n_embd
    private = carray(pointer(job.privates), n, PRIVATE)[thread]
    blocks = carray(pointer(job.blocks), job.n_layer, LAYER)
    width = padded(n_embd)
    no_norm = job.no_norm
    first, last = share(thread, n, job.n_head)

    embed(job, thread)
    meet(state, n)
    for layer in range(job.n_layer):
        block = blocks[layer]
        w = block.attn.c_attn.w
        b = block.attn.c_attn.b
        linear(state, job, thread, private, job.x, rows, block.ln_1, w, b, job.qkv, padded(3 * n_embd), STORE)
        meet(state, n)
        for head in range(first, last):
            attention(job, private, layer, head)
        meet(state, n)
        w = block.attn.c_proj.w
        b = block.attn.c_proj.b
        linear(state, job, thread, private, job.a, rows, no_norm, w, b, job.x, width, ADD)
        meet(state, n)
        w = block.mlp.c_fc.w
        b = block.mlp.c_fc.b
        linear(state, job, thread, private, job.x, rows, block.ln_2, w, b, job.hidden, padded(w.n_out), job.activation)
        meet(state, n)
        w = block.mlp.c_proj.w
        b = block.mlp.c_proj.b
        linear(state, job, thread, private, job.hidden, rows, no_norm, w, b, job.x, width, ADD)
        meet(state, n)
    if job.n_last:
        x = job.x + (rows - job.n_last) * 4 * width
        w = job.wte
        linear(state, job, thread, private, x, job.n_last, job.ln_f, w, NO_BIAS, job.logits, w.n_out, STORE)
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


SOURCES = (__file__, elementwise.__file__, team.__file__, *kernels.SOURCES)
work = compile_work(crc32(b"".join(Path(source).read_bytes() for source in SOURCES)))
