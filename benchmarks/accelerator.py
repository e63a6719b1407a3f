"""The speed of the JAX engine on this machine's device: python -m benchmarks.accelerator [--K 2 4] [--B 1 8 32]

B prompts are decoded at a time, wholly on the device; K = 0 is autoregressive. "of limit" is the share of the measured
bandwidth that reading the weights uses. "useful" is the share of all rows that served a prompt. β is the time of a
window of K + 1 rows over that of one row. Speculation pays up to the largest β, (1 - α^(K+1)) / (1 - α) - K c. Times
are medians of rounds in which all take turns, without the prefill and without compiling.
"""

from collections import defaultdict
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp

from benchmarks.bandwidth import read_bandwidth
from benchmarks.common import PROMPTS, Parser, count, load, write_results
from benchmarks.formulas import largest_beta
from benchmarks.tables import seconds, table, take_turns
from speculative.support import arguments as values
from speculative.support import texts
from speculative.support.errors import UserError, guarded

COLUMNS = """B K ms/token=ms_per_token:.2f tokens/s=tokens_per_second:.0f speedup:.2f r:.2f of_limit:.2f
    useful:.2f α=alpha:.2f c:.2f β=beta:.2f largest_β_that_pays=largest_beta:.2f compiling_(s)=compiling:.1f"""


def device_bandwidth():
    """Bytes a second that the device reads from its memory: the best of some sums over 1 GiB."""
    if jax.default_backend() == "cpu":
        return read_bandwidth(2**30)
    a = jnp.ones((2**28,), jnp.float32)
    total = jax.jit(jnp.sum)
    return a.nbytes / min(seconds(lambda: jax.block_until_ready(total(a))) for _ in range(10))


def measure(decoder, prompts, N, Ks, B, rounds, bandwidth):
    """Rows for COLUMNS, one for each K. The prompts are decoded B at a time, and repeated if there are fewer than B."""
    xs = [prompts[i % len(prompts)] for i in range(max(B, len(prompts)))]
    calls = {}
    longest = max(map(len, xs))
    seconds_of = defaultdict(list)

    def decode(K):
        decoder.forget()
        took = seconds(lambda: calls.update({K: [*decoder.batch(xs, N, K, 0, B)]}))
        seconds_of[K].append(took - decoder.prefill_seconds)

    compiling = {K: decoder.warm_up([*map(len, xs)], N, K, B) for K in (0, *Ks)}
    costs = {K: decoder.probe(longest, N, K, B) for K in Ks}
    take_turns({K: partial(decode, K) for K in (0, *Ks)}, rounds)
    t = {K: median(took[1:]) for K, took in seconds_of.items()}
    rows = []
    for K in (0, *Ks):
        steps = [row.step for rows_of_call in calls[K] for row in rows_of_call]
        n_tokens = sum(len(step.tokens) for step in steps)
        drafted = sum(step.drafted for step in steps)
        accepted = sum(step.accepted for step in steps)
        read = len(calls[K]) * (decoder.target.weight_bytes + K * decoder.draft.weight_bytes)
        row = {"B": B, "K": K, "ms_per_token": 1e3 * t[K] * B / n_tokens, "tokens_per_second": n_tokens / t[K]}
        row |= {"r": (accepted + len(steps)) / (drafted + len(steps)), "of_limit": read / t[K] / bandwidth}
        row |= {"speedup": t[0] / t[K], "compiling": compiling[K], "useful": len(steps) / (B * len(calls[K]))}
        if K:
            t_draft, t_target = costs[K]
            alpha = accepted / sum(step.reached for step in steps)
            c = t_draft / t_target[1]
            row |= {"alpha": alpha, "c": c, "beta": t_target[K + 1] / t_target[1]}
            row |= {"largest_beta": largest_beta(alpha, K, c)}
        rows.append(row)
    return rows


def main(argv=None):
    parser = Parser(__doc__)
    parser.add_models()
    parser.set_defaults(draft_dtype="float32")
    parser.add_argument("--mesh", type=count, default=1, help="devices over which the models are split")
    parser.add_argument("--data_parallel", type=count, default=1, help="copies of the models")
    parser.add_argument("--n_prompts", type=count, default=4)
    parser.add_argument("--n_tokens", type=values.argument(values.integer(2)), default=40)
    parser.add_argument("--K", type=count, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--B", type=count, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_json()
    o = parser.parse_args(argv)
    if any(B % o.data_parallel for B in o.B):
        raise UserError(f"--B: each must be a multiple of --data_parallel, {o.data_parallel}")
    prompts = texts.read_prompts(PROMPTS["prose"], o.n_prompts)
    session = load(o, engine="jax", mesh=o.mesh, data_parallel=o.data_parallel)
    prompts = [session.encode(prompt) for prompt in prompts]
    decoder = session.pair.decoder
    device = jax.devices()[0].device_kind
    bandwidth = device_bandwidth()
    print(f"{device}: {bandwidth / 1e9:.1f} GB/s")
    rows = [row for B in o.B for row in measure(decoder, prompts, o.n_tokens, o.K, B, o.rounds, bandwidth)]
    print(table(rows, COLUMNS))
    write_results(o.json, o, device=device, jax=jax.__version__, bandwidth=bandwidth, rows=rows)


if __name__ == "__main__":
    guarded(main)
