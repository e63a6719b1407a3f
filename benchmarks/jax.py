"""What the JAX engine reaches on this machine's device: python benchmarks/jax.py [--json results.json] [--help]

1. One prompt at a time, the whole decode on the device: milliseconds for a token, autoregressive and for each K; beside
   it the weights' bytes over that time, as a share of the bandwidth that is measured here, which is the limit.
2. B prompts together: β, the cost of a window of K + 1 rows over that of one, and the largest β at which speculation
   still pays, (1 - α^(K+1)) / (1 - α) - K c; both change with B, and where they meet it stops paying.

Times are medians of runs that take turns; compiling is shown apart.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

sys.path.pop(0)  # this folder, where `import jax` would find this very file
sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

from speculative.cli import flags
from speculative.cli.exits import guarded
from speculative.engines.jax_engine import keep_compiled
from speculative.engines.jax_loop import DeviceDecoder, for_each_row
from speculative.engines.sharding import place
from speculative.measure.analysis import largest_beta
from speculative.measure.files import check_writable, write_json
from speculative.measure.machine import processor, read_bandwidth
from utils import load_encoder_and_hparams, load_params, model_folder

PROMPTS = [
    "It was late in the evening when my friend came into the room and sat down before the fire without a word.",
    "The old house stood at the end of the lane, and nobody in the village could remember who had lived in it last.",
    "We had hardly reached the station when the whistle blew, and the train began to move away from the platform.",
    "For a long time he looked at the machine upon the table, and then he turned to us and smiled.",
]


def device_bandwidth():
    """Bytes a second that the device reads from its memory: the best of some sums over 1 GiB."""
    if jax.default_backend() == "cpu":
        return read_bandwidth(2**30)
    a = jnp.ones((2**28,), jnp.float32)
    total = jax.jit(jnp.sum)
    return a.nbytes / min(seconds(lambda: total(a)) for _ in range(10))


def seconds(function):
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def in_turns(runs, repeats):
    """{name: function that gives seconds} -> {name: median seconds}; the first round is not counted."""
    rounds = [{name: run() for name, run in runs.items()} for _ in range(repeats + 1)]
    return {name: median(one[name] for one in rounds[1:]) for name in runs}


def one_at_a_time(decoder, prompts, N, Ks, repeats, bandwidth):
    """-> the table's rows, and (accepted, rejected) drafts over all of it."""
    compile_seconds = {K: max(decoder.warm_up(len(x), N, K) for x in prompts) for K in Ks}
    steps, drafts = {K: [] for K in Ks}, [0, 0]

    def run(K):
        def decode():
            total = 0.0
            for x in prompts:
                prefill = seconds(lambda x=x: decoder.start([x], N, K, 0))
                total += seconds(lambda x=x: steps[K].extend(decoder.speculative(x, N, K, 0))) - prefill
            return total / (len(prompts) * N)

        return decode

    for K in Ks:
        run(K)()
    measured, rows = in_turns({K: run(K) for K in Ks}, repeats), []
    for K in Ks:
        drafted = sum(step.drafted for step in steps[K])
        accepted = sum(step.accepted for step in steps[K])
        drafts[0] += accepted
        drafts[1] += sum(step.accepted < step.drafted for step in steps[K])
        calls = len(steps[K]) / (len(prompts) * N * (repeats + 2))  # of the target, for a token
        read = decoder.target.weight_bytes * calls + (decoder.draft.weight_bytes * drafted * calls / len(steps[K]))
        rows.append(
            {
                "K": K,
                "ms_per_token": 1000 * measured[K],
                "speedup": measured[0] / measured[K],
                "r": (accepted + len(steps[K])) / (drafted + len(steps[K])),
                "bytes_per_token": read,
                "share_of_bandwidth": read / measured[K] / bandwidth,
                "compile_seconds": compile_seconds[K],
            }
        )
    return rows, drafts


def together(decoder, prompts, N, K, batches, alpha, repeats, decode):
    """β, its limit and, if decode, the measured speedup for each B."""
    rows = []
    for B in batches:
        runs = {
            "draft": forward(decoder.draft, B, 1),
            "row": forward(decoder.target, B, 1),
            "window": forward(decoder.target, B, K + 1),
        }
        if decode:
            xs = [prompts[i % len(prompts)] for i in range(B)]
            for name, k in [("autoregressive", 0), ("speculative", K)]:
                decoder.warm_up(max(map(len, xs)), N, k, B)
                runs[name] = lambda xs=xs, k=k: seconds(lambda: list(decoder.batch(xs, N, k, 0)))
        t = in_turns(runs, repeats)
        limit = largest_beta(alpha, K, t["draft"] / t["row"])
        beta = t["window"] / t["row"]
        row = {"B": B, "row_ms": 1000 * t["row"], "c": t["draft"] / t["row"], "beta": beta, "largest_beta": limit}
        row["pays"] = beta <= limit
        if decode:
            for name in ("autoregressive", "speculative"):
                row[f"tokens_per_second_{name}"] = B * N / t[name]
            row["speedup"] = t["autoregressive"] / t["speculative"]
        rows.append(row)
    return rows


def forward(network, B, n_rows):
    """A function that gives the seconds that a call over B prompts takes, n_rows tokens of each."""
    step = jax.jit(
        lambda params, tokens, cache: for_each_row(lambda t, c: network.forward(params, t, 32, c)[0], tokens, cache)
    )
    tokens, cache = np.zeros((B, n_rows), np.int32), network.new_cache(64, B)
    return lambda: seconds(lambda: step(network.params, tokens, cache))


def table(rows, **formats):
    print(*(f"{name:>{max(9, len(name))}}" for name in formats))
    for row in rows:
        print(*(f"{format(row[name], spec):>{max(9, len(name))}}" for name, spec in formats.items()))


def main():
    count = flags.argument(flags.integer(1))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft_model_size", default="tiny-draft")
    parser.add_argument("--target_model_size", default="tiny-target")
    parser.add_argument("--models_dir", default=str(Path(__file__).parent.parent / "models"))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--temperature", type=flags.argument(flags.temperature), default=0.0)
    parser.add_argument("--n_tokens", type=count, default=40)
    parser.add_argument("--K", type=count, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--batch_K", type=count, default=4)
    parser.add_argument("--batches", type=count, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--forward_only", action="store_true", help="in part 2, only β; decode nothing")
    parser.add_argument("--prompts", type=count, default=len(PROMPTS), help="how many of the prompts, for part 1")
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--json", help="where to write the results")
    args = parser.parse_args()
    if args.json:
        check_writable(args.json)
    keep_compiled()

    networks = {}
    for role, size in [("target", args.target_model_size), ("draft", args.draft_model_size)]:
        encoder, hparams = load_encoder_and_hparams(size, args.models_dir)
        networks[role] = place(partial(load_params, model_folder(size, args.models_dir), hparams), hparams, args.dtype)
    prompts = [encoder.encode(prompt) for prompt in PROMPTS]
    decoder = DeviceDecoder(**networks, temperature=args.temperature)
    bandwidth = device_bandwidth()
    device = jax.devices()[0]
    report = {
        "device": f"{device.device_kind} ({device.platform})",
        "machine": processor(),
        "jax": jax.__version__,
        "bandwidth": bandwidth,
        "target": args.target_model_size,
        "draft": args.draft_model_size,
        "dtype": args.dtype,
        "temperature": args.temperature,
        "weight_bytes": {role: network.weight_bytes for role, network in networks.items()},
    }
    for name, value in report.items():
        print(f"{name:14}{value}")
    limit = networks["target"].weight_bytes / bandwidth
    print(f"{'limit':14}{1000 * limit:.3f} ms for a token of the target, weights over bandwidth")
    if device.platform != "gpu":
        print("no GPU here: only figures of this device, and no comparison with GPU programs")

    print(f"\nOne prompt at a time: {args.prompts} prompts, {args.n_tokens} tokens each; K = 0 is autoregressive")
    report["one"], (accepted, rejected) = one_at_a_time(
        decoder, prompts[: args.prompts], args.n_tokens, [0, *args.K], args.repeats, bandwidth
    )
    columns = {"K": "d", "ms_per_token": ".2f", "speedup": ".2f", "r": ".2f", "share_of_bandwidth": ".2f"}
    table(report["one"], **columns, compile_seconds=".1f")

    if args.batches:
        report["alpha"] = alpha = accepted / (accepted + rejected)
        print(f"\nB prompts together, K = {args.batch_K}; α = {alpha:.2f}, accepted / (accepted + rejected) above")
        decode = not args.forward_only
        report["batches"] = together(
            decoder, prompts, args.n_tokens, args.batch_K, args.batches, alpha, args.repeats, decode
        )
        columns = {"B": "d", "row_ms": ".2f", "c": ".2f", "beta": ".2f", "largest_beta": ".2f"}
        if decode:
            columns |= {"speedup": ".2f", "tokens_per_second_autoregressive": ".0f"}
            columns |= {"tokens_per_second_speculative": ".0f"}
        table(report["batches"], **columns)
        stops = [row["B"] for row in report["batches"] if not row["pays"]]
        print(
            f"by β, speculation stops paying at B = {stops[0]}"
            if stops
            else "by β, speculation pays at each of these B"
        )
    if args.json:
        write_json(args.json, report)


if __name__ == "__main__":
    guarded(main)
