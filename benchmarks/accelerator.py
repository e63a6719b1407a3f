"""What the JAX engine reaches on this machine's device: python -m benchmarks.accelerator [--K 2 4] [--B 1 8 32]

B prompts are decoded together, all of it on the device; K = 0 is autoregressive. "of limit" is the share of
the measured bandwidth at which weights are read. β is the cost of a window of K + 1 rows over that of one; speculation
pays up to the largest β, (1 - α^(K+1)) / (1 - α) - K c; both change with B. Times are medians of rounds in which all
take turns, without the prefill; compiling is shown apart.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import PROMPTS, Parser, count, load, seconds, table, take_turns, write_results
from speculative.cli import texts, values
from speculative.cli.exits import guarded
from speculative.engines import jax_loop
from speculative.measure.analysis import largest_beta
from speculative.measure.machine import read_bandwidth

COLUMNS = """B K ms/token=ms_per_token:.2f tokens/s=tokens_per_second:.0f speedup:.2f r:.2f of_limit:.2f α=alpha:.2f
    c:.2f β=beta:.2f largest_β_that_pays=largest_beta:.2f compiling_(s)=compiling:.1f"""


def device_bandwidth():
    """Bytes a second that the device reads from its memory: the best of some sums over 1 GiB."""
    if jax.default_backend() == "cpu":
        return read_bandwidth(2**30)
    a, total = jnp.ones((2**28,), jnp.float32), jax.jit(jnp.sum)
    return a.nbytes / min(seconds(lambda: jax.block_until_ready(total(a))) for _ in range(10))


def forward(network, B, n_rows):
    """A function that passes n_rows tokens of each of B prompts."""
    rows = np.zeros((B, n_rows), np.int32), network.new_cache(64, B)
    step = jax.jit(
        lambda params, t, c: jax_loop.for_each_row(jax.vmap, lambda t, c: network.forward(params, t, 32, c)[0], t, c)
    )
    return lambda: jax.block_until_ready(step(network.params, *rows))


def measure(decoder, prompts, N, Ks, B, rounds, bandwidth):
    """Rows for COLUMNS: each K. The prompts are taken B at a time; where B is more, they are repeated."""
    xs = [prompts[i % len(prompts)] for i in range(max(B, len(prompts) // B * B))]
    batches, calls = [xs[i : i + B] for i in range(0, len(xs), B)], {}

    def prefill(K):
        for batch in batches:
            jax.block_until_ready(decoder.start(batch, N, K, 0))

    def decode(K):
        calls[K] = [steps for batch in batches for steps in decoder.batch(batch, N, K, 0)]  # of the target

    compiling = {K: seconds(lambda K=K: (prefill(K), decode(K))) for K in (0, *Ks)}
    tasks = {K: forward(decoder.target, B, K + 1) for K in (0, *Ks)} | {"draft": forward(decoder.draft, B, 1)}
    tasks |= {(task, K): partial(task, K) for K in (0, *Ks) for task in (prefill, decode)}
    t, rows = take_turns(tasks, rounds), []
    for K in (0, *Ks):
        took, steps = t[decode, K] - t[prefill, K], [step for row in calls[K] for step in row if step]
        drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
        read = len(calls[K]) * (decoder.target.weight_bytes + K * decoder.draft.weight_bytes)
        row = {"B": B, "K": K, "ms_per_token": 1e3 * took * B / (len(xs) * N), "tokens_per_second": len(xs) * N / took}
        row |= {"r": (accepted + len(steps)) / (drafted + len(steps)), "of_limit": read / took / bandwidth}
        row |= {"speedup": (t[decode, 0] - t[prefill, 0]) / took, "compiling": compiling[K]}
        if K:
            alpha, c = accepted / (accepted + sum(s.accepted < s.drafted for s in steps)), t["draft"] / t[0]
            row |= {"alpha": alpha, "c": c, "beta": t[K] / t[0], "largest_beta": largest_beta(alpha, K, c)}
        rows.append(row)
    return rows


def main():
    parser = Parser(__doc__)
    parser.add_models(dtypes=("float32", "bfloat16"))
    parser.add_argument("--n_tokens", type=values.argument(values.integer(2)), default=40)
    parser.add_argument("--K", type=count, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--B", type=count, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_json()
    o = parser.parse_args()
    _, prompts, target, draft = load(o, texts.read_prompts(PROMPTS["prose"], 4), engine="jax")
    decoder = jax_loop.DeviceDecoder(target.network, draft.network, temperature=0.0)
    device, bandwidth = jax.devices()[0].device_kind, device_bandwidth()
    print(f"{device}: {bandwidth / 1e9:.1f} GB/s")
    rows = [row for B in o.B for row in measure(decoder, prompts, o.n_tokens, o.K, B, o.rounds, bandwidth)]
    print(table(rows, COLUMNS))
    write_results(o.json, o, device=device, jax=jax.__version__, bandwidth=bandwidth, rows=rows)


if __name__ == "__main__":
    guarded(main)
