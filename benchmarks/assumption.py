"""Where scoring a window stops costing what scoring a token costs: β, the ratio of the two, by cause.

    python -m benchmarks.assumption [experts router batch context operations parts] [--out FOLDER]

experts     a mixture of experts with random routing: how many a window touches, and what that costs
router      how many it touches with a trained router, on what the bundled target writes
batch       B sequences at once, by weight format, and where speculation stops paying
context     the KV cache's share of what a step reads, from 64 to 1,000 tokens
operations  Leviathan et al.'s growth of the arithmetic, beside the speedup
parts       what 1 and 5 rows cost in linear layers, attention, logits and the rest

Without names, all of them: about five minutes on two idle cores, of which router takes two. Times are medians of rounds
in which all take turns. All but router use models with random weights, in the shapes of 1558M (the target) and 124M
(the draft), cut to a twelfth of their layers and vocabulary. That is still far more than a cache holds. Such models
agree on nothing, so --alpha says how often a draft is accepted. --out is a folder for the pictures.
"""

from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from benchmarks import experts, parts
from benchmarks.common import Parser, count, write_results, writing
from benchmarks.full_size import cut_model
from benchmarks.sweep import INK, draw
from benchmarks.tables import table, take_turns
from plumbing import arguments as values
from plumbing.errors import UserError
from plumbing.exits import guarded
from speculative.engines import formats, packed, plain, runtime
from speculative.measure.analysis import largest_beta, leviathan_operations, leviathan_speedup, leviathan_tokens
from speculative.measure.machine import machine

CUT = 12  # of the layers and of the vocabulary, one in so many stays
CONTEXT = 64  # tokens in the cache
DTYPES = [*formats.FORMATS]


def forward_of(model, size, dtype):
    """-> (forward(n_rows, n_past) of such a model, its hparams, bytes of its weights)"""
    params, hparams = model(size, CUT, packed.packer(dtype))
    run = runtime.new_pass(params, hparams)

    def forward(n_rows, n_past=CONTEXT):
        run.length = n_past
        run(np.arange(n_rows), n_rows)

    return forward, hparams, plain.n_bytes(params)


# ---- Batch, context, operations --------------------------------------------------------------------------------------


def where_it_crosses(Bs, speedups, level=1.0):
    """The B at which a speedup falls to a level, on a straight line between two points; None if it never does."""
    for (a, high), (b, low) in pairwise(zip(Bs, speedups, strict=True)):
        if high >= level > low:
            return a + (b - a) * (high - level) / (high - low)
    return None


def roofline(row_seconds, arithmetic, n_rows):
    """Seconds for n rows, if reading takes row_seconds once, and each row's arithmetic so many."""
    return max(row_seconds, n_rows * arithmetic)


def measure_batch(o, model):
    found = []
    for dtype in DTYPES:
        target, draft = (forward_of(model, size, dtype)[0] for size in ("1558M", "124M"))
        n_rows = {1} | {B * n for B in o.B for n in (1, o.K + 1)}
        tasks = {("target", n): partial(target, n) for n in n_rows} | {("draft", B): partial(draft, B) for B in o.B}
        t = take_turns(tasks, o.rounds)
        arithmetic = min(t["target", n] / n for n in n_rows)  # of a row, at best
        for B in o.B:
            c = t["draft", B] / t["target", B]
            beta = t["target", B * (o.K + 1)] / t["target", B]
            window, rows = (roofline(t["target", 1], arithmetic, B * n) for n in (o.K + 1, 1))
            row = {"dtype": dtype, "B": B, "ms": 1e3 * t["target", B], "c": c, "beta": beta, "roofline": window / rows}
            row["speedup"] = leviathan_speedup(o.alpha, o.K, c, beta)
            row["predicted"] = leviathan_speedup(o.alpha, o.K, c, window / rows)
            found.append(row | {"largest_beta": largest_beta(o.alpha, o.K, c)})
        of = [row for row in found if row["dtype"] == dtype]
        for name in ("speedup", "predicted"):
            of[-1][f"{name}_ends"] = where_it_crosses(o.B, [row[name] for row in of])
    columns = (
        "dtype B ms:.1f c:.2f β=beta:.2f roofline:.2f largest=largest_beta:.2f speedup:.2f pays_to_B=speedup_ends:.0f"
    )
    return found, f"{columns} predicted:.2f pays_to_B=predicted_ends:.0f"


def plot_batch(rows, o, axes):
    for panel, measured, predicted in zip(axes, ("beta", "speedup"), ("roofline", "predicted"), strict=True):
        for i, dtype in enumerate(DTYPES):
            of = [row for row in rows if row["dtype"] == dtype]
            panel.plot(o.B, [row[measured] for row in of], color=f"C{i}", label=dtype)
            panel.plot(o.B, [row[predicted] for row in of], color=f"C{i}", marker="", linestyle=":")
        panel.set_xscale("log", base=2)
        panel.set(xlabel="B, sequences at once", xticks=o.B, xticklabels=o.B, ylim=(0, None))
    axes[1].axhline(1, color=INK, linewidth=1, linestyle="--")
    axes[0].set(ylabel="β", title=f"A window of {o.K + 1} rows over one row")
    axes[1].set(ylabel="speedup (×)", title=f"Speedup at α = {o.alpha:g}, K = {o.K}")
    axes[0].plot([], [], color=INK, marker="", linestyle=":", label="predicted: reading or arithmetic")
    axes[0].legend(fontsize=8)


def measure_context(o, model):
    found = []
    for dtype in DTYPES:
        (target, hparams, n_bytes), (draft, *_) = (forward_of(model, size, dtype) for size in ("1558M", "124M"))
        contexts = [64, 250, 500, 1000]
        held = 2 * 4 * hparams["n_layer"] * hparams["n_embd"]
        tasks = {(n, past): partial(target, n, past) for n, past in product((1, o.K + 1), contexts)}
        t = take_turns(tasks | {("draft", past): partial(draft, 1, past) for past in contexts}, 2 * o.rounds)
        for past in contexts:
            c = t["draft", past] / t[1, past]
            beta = t[o.K + 1, past] / t[1, past]
            row = {"dtype": dtype, "context": past, "share": held * past / (held * past + n_bytes), "c": c}
            row |= {"ms": 1e3 * t[1, past], "beta": beta, "speedup": leviathan_speedup(o.alpha, o.K, c, beta)}
            found.append(row)
    return found, "dtype context cache's_share=share:.1% ms:.1f c:.2f β=beta:.2f speedup:.2f"


def plot_context(rows, o, axes):
    for name, panel in zip(("share", "beta", "speedup"), axes, strict=True):
        for dtype in DTYPES:
            of = [row for row in rows if row["dtype"] == dtype]
            panel.plot([row["context"] for row in of], [row[name] for row in of], label=dtype)
        panel.set(xlabel="context (tokens)", ylim=(0, None))
    axes[0].set(ylabel="of the bytes of a step", title="The cache's share")
    axes[1].set(ylabel="β", title=f"A window of {o.K + 1} rows over one row")
    axes[2].set(ylabel="speedup (×)", title=f"Speedup at α = {o.alpha:g}, K = {o.K}")
    axes[0].legend(fontsize=9)


def measure_operations(o, model):
    (target, _, n_target), (draft, _, n_draft) = (forward_of(model, size, "float32") for size in ("1558M", "124M"))
    t = take_turns({n: partial(target, n) for n in range(1, 12)} | {"draft": partial(draft, 1)}, o.rounds)
    found = []
    c = t["draft"] / t[1]
    for K in range(11):
        row = {"K": K, "tokens": leviathan_tokens(o.alpha, K), "beta": t[K + 1] / t[1], "c": c}
        row["operations"] = leviathan_operations(o.alpha, K, n_draft / n_target)
        row["theory"], row["speedup"] = (leviathan_speedup(o.alpha, K, c, beta) for beta in (1, row["beta"]))
        found.append(row)
    return found, "K tokens:.2f operations:.2f c:.2f β=beta:.2f speedup_at_β=1=theory:.2f at_this_β=speedup:.2f"


def plot_operations(rows, o, axes):
    [panel] = axes
    for name, label in (("theory", "β = 1"), ("speedup", "β as measured")):
        panel.plot([row[name] for row in rows], [row["operations"] for row in rows], label=f"K = 0 to 10, {label}")
    panel.set(xlabel=f"speedup (×) at α = {o.alpha:g}", ylabel="operations (×)", title="What the speedup is paid with")
    panel.legend(fontsize=9)


# ---- The command -----------------------------------------------------------------------------------------------------

EXPERIMENTS = {  # name: (what measures it, what draws it, how many panels, title)
    "experts": (experts.measure_experts, experts.plot_experts, 1, "Experts: what a window reads"),
    "router": (experts.measure_router, experts.plot_router, 2, "Experts: where a router has learned"),
    "batch": (measure_batch, plot_batch, 2, "Batch: where speculation stops paying"),
    "context": (measure_context, plot_context, 3, "Context: what the KV cache changes"),
    "operations": (measure_operations, plot_operations, 1, "Arithmetic beside speedup"),
    "parts": (parts.measure_parts, parts.plot_parts, 2, "One row and a window, by part"),
}


def main(argv=None, model=cut_model):
    """model: as cut_model, from a size, how much is cut, and convert."""
    parser = Parser(__doc__)
    one = values.argument(values.one_of(*EXPERIMENTS))
    parser.add_argument("experiments", nargs="*", type=one, metavar="NAME", help="[all]")
    parser.add_argument("--alpha", type=values.argument(values.share), default=0.8, help="the chance of acceptance")
    parser.add_argument("--K", type=values.argument(values.integer(1, 10)), default=4)
    parser.add_argument("--B", nargs="+", type=values.argument(values.integer(1, 32)), default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--out", help="a folder for a picture of each")
    parser.add_json()
    o = parser.parse_args(argv)
    if not runtime.compiled_pass():
        raise UserError("there is nothing to measure without numba: pip install numba")
    if o.out:
        with writing(o.out):
            Path(o.out).mkdir(parents=True, exist_ok=True)
    runtime.set_threads()
    results = {}
    for name in o.experiments or EXPERIMENTS:
        measure, plot, n_panels, title = EXPERIMENTS[name]
        results[name], columns = measure(o, model)
        print(f"{title}\n\n{table(results[name], columns)}\n", flush=True)
        if o.out:
            caption = f"python -m benchmarks.assumption {name}; {machine()['processor']}, {machine()['cpus']} CPUs"
            with writing(o.out):
                draw(f"{o.out}/{name}.png", title, caption, n_panels, partial(plot, results[name], o))
    write_results(o.json, o, **results)


if __name__ == "__main__":
    guarded(main)
