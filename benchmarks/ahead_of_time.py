"""What the loop becomes on a device that is not at hand: python -m benchmarks.ahead_of_time [--topology v5e:2x2]

XLA compiles the loop of the two sizes for the device, from shapes alone. This counts the kernels that one iteration
starts, and the bytes that XLA expects a program of one iteration to read and write, what it does before and after the
loop included; beside them those that nothing can do without: the weights, once for a call of the target and once for
each draft. The plugin of the device must be installed (for a TPU: pip install libtpu), the device not; without a
topology it compiles for the devices that there are.
"""

import re
import time
from functools import partial

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from benchmarks.common import Parser, count, table, write_results
from speculative.cli import values
from speculative.cli.exits import guarded
from speculative.engines.jax_engine import DTYPES
from speculative.engines.jax_loop import DeviceDecoder
from speculative.engines.memory import OFFICIAL
from speculative.engines.sharding import place
from speculative.errors import UserError, first_line
from utils import build_params, checkpoint_shapes

COLUMNS = "B K kernels GB_moved=moved:.2f GB_of_weights=weights:.2f flops=flops:.2e compiling_(s)=seconds:.1f"
# What a compiled program names but does not start.
FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "call", "conditional", "after-all"}


def computations(program):
    """A compiled program's text -> {name of a computation: its lines}"""
    found = re.findall(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL)
    return {name: body.splitlines() for name, body in found}


def kernels(bodies, name):
    """How many a computation starts, those of its loops as often as they go round; what is fused counts as one."""
    n = 0
    for line in bodies[name]:
        opcode = re.search(r" = (?:\([^=]*\)|\S+) ([\w-]+)\(", line)
        if not opcode or opcode[1] in FREE or opcode[1].endswith("-done"):
            if inner := re.search(r" while\(.*body=%?([\w.-]+)", line):
                rounds = re.search(r'"?known_trip_count"?:\{"?n"?:"?(\d+)', line)
                n += int(rounds[1] if rounds else 1) * kernels(bodies, inner[1])
            continue
        n += 1
    return n


def network(size, dtype, mesh, n_ctx=1024):
    """An official size without its weights: shapes, and where on the mesh they would lie."""
    n_layer, n_embd = OFFICIAL[size]
    hparams = {"n_vocab": 50257, "n_ctx": n_ctx, "n_embd": n_embd, "n_head": n_embd // 64, "n_layer": n_layer}
    shapes = checkpoint_shapes(hparams)
    zeros = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}  # which take no memory
    read = partial(build_params, "", shapes, zeros.get, hparams)
    return place(read, hparams, dtype, mesh, make_array=shape_of)


def shape_of(shape, where, part):
    dtype = part((slice(0, 1),) * len(shape)).dtype
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def measure(decoder, B, K):
    """A row for COLUMNS: the loop in the middle of a text, compiled."""
    chosen = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in decoder.arguments([[0]] * B, 1, 0)]
    state = jax.eval_shape(partial(decoder._prefill, K=K, capacity=256), decoder.params, *chosen)
    start = time.perf_counter()
    program = decoder.run.lower(decoder.params, state, np.bool_(False), np.int32(-1), K=K).compile()
    took, text = time.perf_counter() - start, program.as_text()
    bodies, entry = computations(text), re.search(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE)[1]
    loops = re.findall(r" while\(.*body=%?([\w.-]+)", "\n".join(bodies[entry]))
    cost = program.cost_analysis()
    return {
        "B": B,
        "K": K,
        "kernels": sum(kernels(bodies, name) for name in loops),
        "moved": cost.get("bytes accessed", 0) / 1e9,
        "flops": cost.get("flops", 0),
        "weights": (decoder.target.weight_bytes + K * decoder.draft.weight_bytes) / 1e9,
        "seconds": took,
    }


def main():
    parser = Parser(__doc__)
    parser.add_argument("--topology", help="as v5e:2x2, of TPUs [the devices that there are]")
    parser.add_argument("--draft_model_size", default="124M", choices=OFFICIAL)
    parser.add_argument("--target_model_size", default="1558M", choices=OFFICIAL)
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--mesh", type=count, default=1, help="devices over which the models are split")
    parser.add_argument("--K", type=values.argument(values.integer(0)), nargs="+", default=[0, 4])
    parser.add_argument("--B", type=count, nargs="+", default=[1])
    parser.add_json()
    o = parser.parse_args()
    try:
        found = topologies.get_topology_desc(o.topology, "tpu").devices if o.topology else jax.devices()
    except Exception as error:  # of many kinds, by what is missing
        raise UserError(f"jax cannot compile for {o.topology} ({first_line(error)}): pip install libtpu") from error
    if len(found) < o.mesh:
        raise UserError(f"--mesh {o.mesh} needs {o.mesh} devices, and there are {len(found)}")
    mesh = Mesh(np.array(found[: o.mesh]).reshape(1, -1), ["data", "model"])
    decoder = DeviceDecoder(*(network(size, o.dtype, mesh) for size in (o.target_model_size, o.draft_model_size)))
    rows = [measure(decoder, B, K) for B in o.B for K in o.K]
    print(f"{o.target_model_size} and {o.draft_model_size}, {o.dtype}, one iteration on {found[0].device_kind}")
    print(table(rows, COLUMNS))
    write_results(o.json, o, device=found[0].device_kind, jax=jax.__version__, rows=rows)


if __name__ == "__main__":
    guarded(main)
