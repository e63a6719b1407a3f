"""Counts the work of the loop on a device that is not there: python -m benchmarks.ahead_of_time [--topology sm_90]

XLA compiles the loop of the two sizes for the device, from shapes alone. For one iteration on each device this counts
the kernels, the all-reduces, and the bytes that kernels read and write. Beside them stand the bytes that no program can
avoid: the weights, once for a call of the target and once for each draft. flops is XLA's own count of the whole
program, where a loop over drafts counts as one draft. --mesh and --data_parallel may be several numbers; each pair is
compiled.

--topology sm_90, a GPU with the figures of an H200, needs "jax[cuda12]". Without a topology it compiles for the devices
that are there.
"""

import math
import os
import re
import time
from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from benchmarks.common import Parser, count, write_results
from benchmarks.tables import table
from checkpoints.tensors import checkpoint_shapes
from plumbing import arguments as values
from plumbing.errors import UserError, first_line
from plumbing.exits import guarded
from speculative.engines import formats
from speculative.engines.jax import model as jax_model
from speculative.engines.jax.loop import DeviceDecoder
from speculative.engines.jax.sharding import place
from speculative.engines.memory import OFFICIAL
from utils import build_params

COLUMNS = """mesh copies B K kernels all-reduces=all_reduces GB_moved=moved:.3f GB_of_weights=weights:.3f
    flops=flops:.2e compiling_(s)=seconds:.1f"""
# What a compiled program names but does not start.
FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "call", "conditional", "after-all"}
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8}
H200 = """platform_name: "CUDA" dnn_version_info {major: 9 minor: 10} device_description_str: "H200" gpu_device_info {
    threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
    shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
    block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
    registers_per_core_limit: 65536 registers_per_block_limit: 65536 clock_rate_ghz: 1.98
    memory_bandwidth: 4800000000000 l2_cache_size: 52428800 device_memory_size: 151397597184
    cuda_compute_capability: {major: 9}}"""


def devices(topology):
    """The devices of a topology, or those that are there. Raises UserError if JAX or its plugin does not know it."""
    if not topology:
        jax_model.devices(1)  # which says so where JAX finds none
        return jax.devices()
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # which looks for a driver
    jax.config.update("jax_platforms", "cpu")
    names = {"platform": "cuda", "topology_name": "H200", "topology": "1x8x1"}
    try:
        return topologies.get_topology_desc(**names, target_config=H200).devices
    except Exception as error:  # of many kinds, by what is missing
        raise UserError(
            f"jax cannot compile for {topology} ({first_line(error)}): pip install 'jax[cuda12]'"
        ) from error


def computations(program):
    """A compiled program's text -> {name of a computation: its lines}"""
    program = re.sub(r"/\*.*?\*/", "", program)
    found = re.findall(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL)
    return {name: body.splitlines() for name, body in found}


class Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    operands: list
    line: str


def instructions(lines):
    for line in lines:
        if found := re.match(r"\s*(?:ROOT )?%?([\w.-]+) = (\([^=]*?\)|\S+) ([\w-]+)\(([^)]*)", line):
            yield Instruction(*found.groups()[:3], re.findall(r"%([\w.-]+)", found[4]), line)


def started(bodies, name):
    """(how often, Instruction) for all that a computation starts, its loops included. A fusion counts as one."""
    for one in instructions(bodies[name]):
        if inner := one.opcode == "while" and re.search(r"body=%?([\w.-]+)", one.line):
            rounds = re.search(r'"?known_trip_count"?:\{"?n"?:"?(\d+)', one.line)
            for n, of_loop in started(bodies, inner[1]):
                yield n * int(rounds[1] if rounds else 1), of_loop
        elif one.opcode not in FREE and not one.opcode.endswith("-done"):
            yield 1, one


def kernels(bodies, name):
    """How many a computation starts."""
    return sum(n for n, _ in started(bodies, name))


def size(shape):
    """Bytes of an array, or of a tuple of them."""
    arrays = [(BYTES.get(kind, 0), n.split(",")) for kind, n in re.findall(r"(\w+)\[([\d,]*)\]", shape)]
    return sum(n_bytes * math.prod(map(int, filter(None, n))) for n_bytes, n in arrays)


def moved(bodies, name):
    """Bytes that a computation reads from memory and writes to it.

    If a fusion takes only a slice of an operand, the slice counts; if it writes in place, what it writes.
    """
    shapes = {one.name: one.shape for lines in bodies.values() for one in instructions(lines)}
    total = 0
    for n, one in started(bodies, name):
        inside = [*instructions(bodies[called[1]])] if (called := re.search(r"calls=%?([\w.-]+)", one.line)) else [one]
        written = [size(shapes.get(i.operands[1], "")) for i in inside if i.opcode == "dynamic-update-slice"]
        total += n * (sum(written) if written else size(one.shape))
        for number, operand in enumerate(one.operands):
            whole = size(shapes.get(operand, ""))
            if called:
                total += n * min(whole, read_of(inside, number, whole))
            elif not written or number > 0:
                total += n * whole
    return total


def read_of(inside, number, whole):
    """Bytes that the instructions of a fusion read of its operand with that number."""
    name = next(i.name for i in inside if i.opcode == "parameter" and f"parameter({number})" in i.line)
    total = 0
    for i in inside:
        if name not in i.operands:
            continue
        if i.opcode == "dynamic-update-slice" and i.operands[0] == name:
            continue
        total += size(i.shape) if i.opcode in ("slice", "dynamic-slice", "gather") else whole
    return total


def network(size, dtype, mesh, split=None):
    """An official size without its weights: shapes, and where on the mesh they would lie."""
    n_layer, n_embd = OFFICIAL[size]
    hparams = {"n_vocab": 50257, "n_ctx": 1024, "n_embd": n_embd, "n_head": n_embd // 64, "n_layer": n_layer}
    shapes = checkpoint_shapes(hparams)
    zeros = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}  # which take no memory
    read = partial(build_params, "", shapes, zeros.get, hparams)
    return place(read, hparams, dtype, mesh, split, make_array=shape_of)


def shape_of(shape, where, part):
    dtype = part((slice(0, 1),) * len(shape)).dtype
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def share(network):
    """Bytes of the weights that a device reads for a token."""
    parts = jax.tree.leaves({**network.params, "wpe": None})
    return sum(math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in parts)


def measure(decoder, B, K):
    """Fields of a row for COLUMNS: the loop in the middle of a text, compiled."""
    chosen = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in decoder.arguments([[0]] * B, 1, 0)]
    state = jax.eval_shape(partial(decoder._prefill, K=K, capacity=256), decoder.params, *chosen)
    start = time.perf_counter()
    program = decoder.run.lower(decoder.params, state, np.bool_(False), np.int32(-1), K=K).compile()
    took = time.perf_counter() - start
    text = program.as_text()
    bodies = computations(text)
    entry = re.search(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE)[1]
    loops = re.findall(r" while\(.*body=%?([\w.-]+)", "\n".join(bodies[entry]))
    counted = [one for name in loops for one in started(bodies, name)]
    return {
        "B": B,
        "K": K,
        "kernels": sum(kernels(bodies, name) for name in loops),
        "all_reduces": sum(n for n, one in counted if one.opcode.startswith("all-reduce")),
        "moved": sum(moved(bodies, name) for name in loops) / 1e9,
        "flops": (program.cost_analysis() or {}).get("flops"),
        "weights": (share(decoder.target) + K * share(decoder.draft)) / 1e9,
        "seconds": took,
    }


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_argument("--topology", choices=["sm_90"], help="[the devices that there are]")
    parser.add_argument("--draft_model_size", default="124M", choices=OFFICIAL)
    parser.add_argument("--target_model_size", default="1558M", choices=OFFICIAL)
    parser.add_argument("--dtype", default="bfloat16", choices=formats.by_size(jax=True))
    parser.add_argument("--mesh", type=count, nargs="+", default=[1], help="devices over which the models are split")
    parser.add_argument("--data_parallel", type=count, nargs="+", default=[1], help="copies of the models")
    parser.add_argument("--K", type=values.argument(values.integer(0)), nargs="+", default=[0, 4])
    parser.add_argument("--B", type=count, nargs="+", default=[1])
    parser.add_json()
    o = parser.parse_args(argv)
    found = devices(o.topology)
    rows = []
    pairs = [(M, D) for M, D in product(o.mesh, o.data_parallel) if len(found) >= M * D]  # others are left out
    if not pairs:
        M = min(o.mesh)
        D = min(o.data_parallel)
        raise UserError(f"--mesh {M} --data_parallel {D} needs {M * D} devices, not {len(found)}")
    if all(B % D for B, (_, D) in product(o.B, pairs)):
        raise UserError(f"--B: none is a multiple of --data_parallel {min(D for _, D in pairs)}")
    for M, D in pairs:
        mesh = Mesh(np.array(found[: M * D]).reshape(D, M), ["data", "model"])
        target = network(o.target_model_size, o.dtype, mesh)
        decoder = DeviceDecoder(target, network(o.draft_model_size, o.dtype, mesh, split=False))
        rows += [{"mesh": M, "copies": D} | measure(decoder, B, K) for B in o.B for K in o.K if B % D == 0]
    print(f"{o.target_model_size} and {o.draft_model_size}, {o.dtype}, one iteration on {found[0].device_kind}")
    print(table(rows, COLUMNS))
    write_results(o.json, o, device=found[0].device_kind, jax=jax.__version__, rows=rows)


if __name__ == "__main__":
    guarded(main)
