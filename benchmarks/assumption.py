"""The point where scoring a window stops costing what scoring a token costs: β, the ratio of the two, by cause.

    python -m benchmarks.assumption [batch context] [--out FOLDER]

batch    B sequences at once, by weight format, and where speculation stops paying
context  the KV cache's share of what a step reads, from 64 to 1,000 tokens

Times are medians of rounds in which all take turns. The models have random weights, in the shapes of 1558M (the target)
and 124M (the draft), cut to a twelfth of their layers and vocabulary. That is still far more than a cache holds. Such
models agree on nothing, so --alpha says how often a draft is accepted. --out is a folder for the pictures.
"""

from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from benchmarks.common import Parser, count, write_results, writing
from benchmarks.formulas import largest_beta
from benchmarks.pictures import INK, draw
from benchmarks.tables import forward, table, take_turns
from speculative.checkpoints.official import HPARAMS
from speculative.checkpoints.tensors import checkpoint_shapes, nested
from speculative.engines import formats, packed, plain, runtime
from speculative.engines.library import library
from speculative.measure.analysis import leviathan_speedup
from speculative.measure.machine import machine
from speculative.support import arguments as values
from speculative.support.errors import UserError, guarded

CUT = 12  # of the layers and of the vocabulary, one in so many stays
DTYPES = [*formats.FORMATS]
BATCH = """dtype B ms:.1f c:.2f β=beta:.2f roofline:.2f largest=largest_beta:.2f speedup:.2f
    pays_to_B=speedup_ends:.0f predicted:.2f pays_to_B=predicted_ends:.0f"""
CONTEXT = "dtype context cache's_share=share:.1% ms:.1f c:.2f β=beta:.2f speedup:.2f"


def cut_model(size, convert):
    """-> (params, hparams) of an official shape, cut, with random weights."""
    hparams = HPARAMS[size] | {"n_vocab": 50257 // CUT, "n_layer": HPARAMS[size]["n_layer"] // CUT}
    rng = np.random.default_rng(0)
    shapes = checkpoint_shapes(hparams)

    def random(shape):
        return rng.random(shape, np.float32) * np.float32(0.04) - np.float32(0.02)

    return nested({name: convert(name, random(shape)) for name, shape in shapes.items()}), hparams


def forward_of(model, size, dtype):
    """-> (forward(n_rows, n_past) of such a model, its hparams, bytes of its weights)"""
    params, hparams = model(size, packed.packer(dtype))
    return partial(forward, runtime.new_pass(params, hparams)), hparams, plain.n_bytes(params)


def where_it_ends(Bs, speedups):
    """The B at which a speedup falls to 1, on a straight line between two points; None if it never does."""
    for (a, high), (b, low) in pairwise(zip(Bs, speedups, strict=True)):
        if high >= 1 > low:
            return a + (b - a) * (high - 1) / (high - low)
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
            of[-1][f"{name}_ends"] = where_it_ends(o.B, [row[name] for row in of])
    return found


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
    return found


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


# ---- The command -----------------------------------------------------------------------------------------------------

EXPERIMENTS = {  # name: (what measures it, columns, what draws it, how many panels, title)
    "batch": (measure_batch, BATCH, plot_batch, 2, "Batch: where speculation stops paying"),
    "context": (measure_context, CONTEXT, plot_context, 3, "Context: what the KV cache changes"),
}


def main(argv=None, model=cut_model):
    """model: as cut_model."""
    parser = Parser(__doc__)
    one = values.argument(values.one_of(*EXPERIMENTS))
    parser.add_argument("experiments", nargs="*", type=one, metavar="NAME", help="[all]")
    parser.add_argument("--alpha", type=values.argument(values.share), default=0.8, help="the chance of acceptance")
    parser.add_argument("--K", type=values.argument(values.integer(1, 10)), default=4)
    parser.add_argument("--B", nargs="+", type=values.argument(values.integer(1, 32)), default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=count, default=11)
    parser.add_argument("--out", help="a folder for a picture of each")
    parser.add_json()
    o = parser.parse_args(argv)
    if not library():
        raise UserError("there is nothing to measure without numba: pip install numba")
    if o.out:
        with writing(o.out):
            Path(o.out).mkdir(parents=True, exist_ok=True)
    runtime.set_threads()
    results = {}
    for name in o.experiments or EXPERIMENTS:
        measure, columns, plot, n_panels, title = EXPERIMENTS[name]
        results[name] = measure(o, model)
        print(f"{title}\n\n{table(results[name], columns)}\n", flush=True)
        if o.out:
            caption = f"python -m benchmarks.assumption {name}; {machine()['processor']}, {machine()['cpus']} CPUs"
            with writing(o.out):
                draw(f"{o.out}/{name}.png", title, caption, n_panels, partial(plot, results[name], o))
    write_results(o.json, o, **results)


if __name__ == "__main__":
    guarded(main)
