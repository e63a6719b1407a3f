"""What the kernels reach on this machine: python benchmarks/kernels.py [--json results.json]

For models of official shape with synthetic weights (speed does not depend on their values) and each dtype: the time of
a forward pass over 1, 2, 3, 5, 9 and 17 rows after a short context, of a prefill of 512 tokens, and the share of a
one-row step that NumPy spends outside the kernels. Beside them, in the same run, what they are judged by: how fast this
machine reads memory, and NumPy alone: its prefill, its rows with a cache, and a pass over the whole sequence, which is
what the blog's code computes for each token (here in float32). Figures are medians; row counts take turns, so that a
busy moment meets all of them.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import peers
from gpt2 import gpt2
from speculative.cli import flags
from speculative.cli.exits import guarded
from speculative.engines import packed
from speculative.engines.cached import KVCache, n_bytes
from speculative.engines.memory import BYTES
from speculative.measure.files import check_writable, write_json
from speculative.measure.machine import processor

SHAPES = {  # size: n_layer, n_embd, n_head
    "tiny": (12, 192, 6),
    "124M": (12, 768, 12),
    "355M": (24, 1024, 16),
    "774M": (36, 1280, 20),
    "1558M": (48, 1600, 25),
}
N_VOCAB, N_CTX = 50257, 1024
ROWS = (1, 2, 3, 5, 9, 17)
CONTEXT = 64  # tokens in the cache before the rows that are timed
PREFILL = 512
BLOG_LENGTH = 30  # tokens: the mean of the blog's run, whose prompt has 10 and which adds 40


def synthetic_params(size, convert=None):
    """The parameters of a model of that shape. Each layer packs the same values, but into memory of its own."""
    n_layer, n_embd, _ = SHAPES[size]
    rng = np.random.default_rng(0)
    convert = convert or (lambda name, array: array)
    drawn = {}

    def tensor(name, *shape):
        if shape not in drawn:
            drawn[shape] = rng.standard_normal(shape, dtype=np.float32) * 0.02
        return convert(name, drawn[shape])

    def norm():
        return {"g": np.ones(n_embd, np.float32), "b": np.zeros(n_embd, np.float32)}

    def layer(n_in, n_out):
        return {"w": tensor("h0/w", n_in, n_out), "b": np.zeros(n_out, np.float32)}

    def block():
        return {
            "ln_1": norm(),
            "attn": {"c_attn": layer(n_embd, 3 * n_embd), "c_proj": layer(n_embd, n_embd)},
            "ln_2": norm(),
            "mlp": {"c_fc": layer(n_embd, 4 * n_embd), "c_proj": layer(4 * n_embd, n_embd)},
        }

    return {
        "wte": tensor("wte", N_VOCAB, n_embd),
        "wpe": tensor("wpe", N_CTX, n_embd),
        "blocks": [block() for _ in range(n_layer)],
        "ln_f": norm(),
    }


def seconds(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def take_turns(tasks, rounds):
    """{name: function} -> {name: median seconds}, after a round that is not counted."""
    times = {name: [] for name in tasks}
    for i in range(rounds + 1):
        for name, task in tasks.items():
            t = seconds(task)
            if i:
                times[name].append(t)
    return {name: float(np.median(t)) for name, t in times.items()}


def measure(size, dtype, memory, rounds):
    """One model's figures, as they go into the JSON."""
    n_layer, n_embd, n_head = SHAPES[size]
    params = synthetic_params(size, packed.packer(dtype))
    cache = packed.PackedKVCache(n_layer, n_head, N_CTX, n_embd // n_head)

    def forward(n_rows, n_past=CONTEXT, n_last=None):
        cache.length = n_past
        gpt2(np.arange(n_rows), **params, n_head=n_head, cache=cache, n_last=n_last)

    tasks = {n: lambda n=n: forward(n) for n in ROWS}
    weight_bytes = n_bytes(params)
    times = take_turns({"read": lambda: packed.kernels().read(memory), **tasks}, rounds)
    bandwidth = memory.nbytes / times.pop("read")
    outside = outside_share(lambda: forward(1), rounds)
    prefill = take_turns({"prefill": lambda: forward(PREFILL, 0, 1)}, 3)["prefill"]
    return {
        "bytes": weight_bytes,
        "read_bytes_per_s": bandwidth,
        "rows_s": times,
        "prefill_s": prefill,
        "bandwidth_share": weight_bytes / times[1] / bandwidth,
        "outside_kernels": outside,
    }


def measure_numpy(size, rounds):
    """The same forward pass without kernels: {what: seconds}."""
    n_layer, n_embd, n_head = SHAPES[size]
    params = synthetic_params(size)
    cache = KVCache(n_layer, n_head, N_CTX, n_embd // n_head)

    def rows(n):
        cache.length = CONTEXT
        gpt2(np.arange(n), **params, n_head=n_head, cache=cache)

    tasks = {
        "prefill": lambda: gpt2(np.arange(PREFILL), **params, n_head=n_head, n_last=1),
        "no cache": lambda: gpt2(np.arange(BLOG_LENGTH), **params, n_head=n_head),
        "1 row": lambda: rows(1),
        "5 rows": lambda: rows(5),
    }
    return take_turns(tasks, rounds)


def outside_share(step, rounds):
    """The share of a step that goes by outside the kernels, calling them included."""
    module = packed.kernels()
    names = ("multiply", "multiply_int8", "attend")
    kept, inside = [getattr(module, name) for name in names], [0.0]

    def timed(kernel):
        def call(*arguments):
            inside[0] += seconds(lambda: kernel(*arguments))

        return call

    for name, kernel in zip(names, kept, strict=True):
        setattr(module, name, timed(kernel))
    try:
        shares = []
        for _ in range(rounds):
            inside[0] = 0.0
            total = seconds(step)
            shares.append(1 - inside[0] / total)
    finally:
        for name, kernel in zip(names, kept, strict=True):
            setattr(module, name, kernel)
    return float(np.median(shares))


def list_of(known):
    def parse(value):
        if unknown := [name for name in value.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return value.split(",")

    return parse


def table(results):
    """The results as lines of a table."""
    yield (
        "size    dtype      GB read/s  of limit  " + "".join(f"{n:>5} row" + "s" * (n > 1) for n in ROWS) + "  prefill"
    )
    for size, dtypes in results["models"].items():
        alone = results["numpy_s"][size]
        without, row = f"{alone['no cache'] * 1e3:.1f} ms", f"{alone['1 row'] * 1e3:.1f} ms"
        window = f"5 rows {alone['5 rows'] / alone['1 row']:.2f} times as much"
        yield f"{size:<7} NumPy alone: {BLOG_LENGTH} rows without a cache {without}; with one, 1 row {row}, {window}"
        for dtype, r in dtypes.items():
            ms = "".join(f"{r['rows_s'][n] * 1e3:>7.1f}ms" for n in ROWS)
            yield (
                f"{size:<7} {dtype:<9} {r['bytes'] / r['rows_s'][1] / 1e9:>9.1f} {r['bandwidth_share']:>9.2f}  {ms}"
                f" {r['prefill_s']:>7.2f}s = {r['prefill_s'] / alone['prefill']:.2f} x NumPy"
            )
            ratios = "".join(f"{r['rows_s'][n] / r['rows_s'][1]:>9.2f}" for n in ROWS)
            over = ""
            if "float32" in dtypes:
                over = f"; 1 row = {r['rows_s'][1] / dtypes['float32']['rows_s'][1]:.2f} x float32's"
            yield f"{'':<17} {'over 1 row':>19}  {ratios}  outside kernels {r['outside_kernels']:.0%}{over}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=list_of(SHAPES), default=["124M", "1558M"])
    parser.add_argument("--dtypes", type=list_of(BYTES), default=list(BYTES))
    parser.add_argument("--rounds", type=flags.argument(flags.integer(1)), default=9)
    parser.add_argument("--threads", type=flags.argument(flags.integer(1)))
    parser.add_argument(
        "--peers", type=Path, help="a models_dir with 124M and 1558M: what others need for the same work"
    )
    parser.add_argument("--json", help="where to write the results")
    options = parser.parse_args()
    if options.json:
        check_writable(options.json)
    results = run(options)
    print("\n".join(table(results)))
    if options.peers:
        folders = options.peers / "124M", options.peers / "1558M"
        results["peers"] = peers.measure(*folders, packed.kernels().numba.get_num_threads(), options.rounds)
    if options.json:
        write_json(options.json, results)


def run(options):
    packed.set_threads(options.threads)
    memory = np.ones(2**28, np.int64)  # 2 GiB, far more than any cache holds
    results = {
        "machine": f"{processor()}, {packed.kernels().numba.get_num_threads()} threads",
        "models": {},
        "numpy_s": {},
    }
    for size in options.sizes:
        results["numpy_s"][size] = measure_numpy(size, 3)
        results["models"][size] = {}
        for dtype in options.dtypes:
            packed.warm_up(dtype)
            results["models"][size][dtype] = measure(size, dtype, memory, options.rounds)
            print(f"measured {size} {dtype}", file=sys.stderr)
    return results


if __name__ == "__main__":
    guarded(main)
