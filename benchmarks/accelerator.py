"""The JAX engine on the device that JAX has: calls of 1 to 33 rows, both loops, and the seconds that compiling takes.

    python -m benchmarks accelerator
    python -m benchmarks accelerator --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M

Rows come after a context of 64 tokens. "Over limit" is a call's time over that of reading the weights at the bandwidth
of a copy, read and written. Times are medians of rounds. Compiled programs are kept: with another XDG_CACHE_HOME, all
are compiled anew.
"""

import time
from functools import partial
from statistics import median

import numpy as np

from benchmarks import runs
from benchmarks.tables import parser_of, table, take_turns, whole

CONTEXT = 64  # tokens in the cache when rows are timed


def copy_bandwidth(gib: float, rounds: int) -> float:
    """The bytes a second that the device reads and writes in a copy."""
    import jax
    import jax.numpy as jnp

    x = jnp.zeros(int(gib * 2**28), jnp.float32)
    add = jax.jit(lambda x: x + 1)
    seconds = take_turns({"copy": lambda: jax.block_until_ready(add(x))}, rounds)["copy"]
    return 2 * x.nbytes / seconds


def time_rows(model, row_counts: list[int], bandwidth: float, rounds: int) -> list[dict]:
    """A row for each number of rows in a call of the target."""
    import jax

    network = model.forward.network
    step = jax.jit(network.forward, donate_argnames="cache")
    tokens = np.arange(CONTEXT, dtype=np.int32)
    _, cache = step(network.params, tokens, np.int32(0), network.new_cache(2 * CONTEXT))

    def call(n: int) -> None:
        nonlocal cache
        logits, cache = step(network.params, tokens[:n], np.int32(CONTEXT), cache)
        jax.block_until_ready(logits)

    seconds = take_turns({n: partial(call, n) for n in row_counts}, rounds)
    limit = model.weight_bytes / bandwidth
    return [{"rows": n, "ms": 1e3 * s, "beta": s / seconds[1], "over": s / limit} for n, s in seconds.items()]


def time_loops(session, prompt: str, N: int, rounds: int) -> dict:
    """A row for both loops, each a whole decode of N tokens, with the prompt."""
    began = time.perf_counter()
    session.ready([session.encode(prompt)], N)
    row = {"tokens": N, "compile": time.perf_counter() - began}
    found = [session.compare(prompt, N, repeats=1) for _ in range(rounds)]
    for name in ("autoregressive", "speculative"):
        row[name] = median(run.figures["seconds"][name] for run in found)
    equal = all(run.text == run.autoregressive for run in found)
    return row | {"speedup": row["autoregressive"] / row["speculative"], "texts": "equal" if equal else "not equal"}


def main(argv: list[str]) -> None:
    parser = parser_of("accelerator", __doc__)
    runs.add_models(parser.add_argument)
    parser.set_defaults(draft_dtype="auto")
    parser.add_argument("--n_tokens", nargs="+", type=whole, default=[40, 400])
    parser.add_argument("--rows", nargs="+", type=whole, default=[1, 2, 5, 9, 17, 33], help="of a call; the first is 1")
    parser.add_argument("--rounds", type=whole, default=9)
    parser.add_argument("--memory", type=float, default=2.0, help="GiB that are copied to measure the bandwidth")
    o = parser.parse_args(argv)
    session = runs.load(o, ["model"], engine="jax")
    facts = session.engine.facts()
    bandwidth = copy_bandwidth(o.memory, o.rounds)
    print(f"{facts['device_kind']}, JAX {facts['jax']}: {bandwidth / 1e9:,.0f} GB/s of a copy, read and written")
    rows = time_rows(session.models["target"], o.rows, bandwidth, o.rounds)
    print(table(rows, "rows ms:.2f over_1_row=beta:.2f over_limit=over:.2f"))
    prompt = "Alan Turing theorized that computers would one day become"
    loops = [time_loops(session, prompt, N, min(3, o.rounds)) for N in o.n_tokens]
    print(table(loops, "tokens autoregressive:.3f speculative:.3f speedup:.2f texts compile:.1f"))
