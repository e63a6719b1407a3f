"""The time of 1 row and of a window by part: the linear layers, attention, the logits, and the rest.

This is what python -m benchmarks.assumption parts measures, on gpt2.py itself, in one thread, with NumPy's products and
with those of the kernels. Chen et al. 2023, section 2, argue for each part that K + 1 tokens cost what one does.
"""

import time
from functools import partial
from itertools import product
from statistics import median

import numpy as np

from benchmarks.experts import OneThread
from benchmarks.tables import seconds
from gpt2 import gpt2
from speculative.engines import packed, plain, runtime

CONTEXTS = (64, 1000)
WEIGHTS = {"NumPy": "NumPy's products", "kernels": "the kernels' products"}


class Timed:
    """A weight whose products add their seconds to spent[part]."""

    __array_ufunc__ = None  # makes NumPy leave x @ self to __rmatmul__

    def __init__(self, weight, part, spent):
        self.weight = weight
        self.part = part
        self.spent = spent

    def __getitem__(self, ids):
        return self.weight[ids]

    @property
    def T(self):
        return Timed(self.weight.T, self.part, self.spent)

    def __rmatmul__(self, x):
        start = time.perf_counter()
        out = x @ self.weight
        self.spent[self.part] += time.perf_counter() - start
        return out


def timed_model(model, weights, spent):
    """gpt2.py itself with such a model -> forward(n_rows, n_past), which adds seconds to spent[part]"""

    def convert(name, array):
        if name != "wte" and not name.endswith("/w"):
            return array
        if weights != "NumPy":
            array = packed.PackedEmbedding(OneThread.packed(array.T)) if name == "wte" else OneThread.packed(array)
        return Timed(array, "logits" if name == "wte" else "linear layers", spent)

    def attend(attend, q, k, v):
        start = time.perf_counter()
        x = attend(q, k, v)
        spent["attention"] += time.perf_counter() - start
        return x

    params, hparams = model("1558M", 12, convert)
    n_head = hparams["n_head"]
    cache = plain.KVCache(hparams["n_layer"], n_head, hparams["n_ctx"], hparams["n_embd"] // n_head)
    cache.keys[:] = cache.values[:] = 0  # of a text that was never read
    cache.layers = [partial(attend, layer) for layer in cache.layers]

    def forward(n_rows, n_past):
        cache.length = n_past
        gpt2(np.arange(n_rows), **params, n_head=n_head, cache=cache)

    return forward


def measure_parts(o, model):
    found = []
    n_rows = (1, o.K + 1)
    runtime.set_threads(1)
    for weights in WEIGHTS:
        spent = dict.fromkeys(("linear layers", "attention", "logits"), 0.0)
        forward = timed_model(model, weights, spent)
        times = {}
        for _, n, past in product(range(o.rounds + 1), n_rows, CONTEXTS):
            spent.update(dict.fromkeys(spent, 0.0))
            total = seconds(partial(forward, n, past))
            each = spent | {"rest": total - sum(spent.values()), "all": total}
            for part, took in each.items():
                times.setdefault((past, part, n), []).append(took)
        for past, part in product(CONTEXTS, each):
            one, window = (1e3 * median(times[past, part, n][1:]) for n in n_rows)
            row = {"weights": weights, "context": past, "part": part, "one": one, "window": window}
            found.append(row | {"beta": window / one})
    runtime.set_threads()
    return found, f"weights context part 1_row_(ms)=one:.2f {o.K + 1}_rows=window:.2f β=beta:.2f"


def plot_parts(rows, o, axes):
    longest = max(row["window"] for row in rows)
    for weights, panel in zip(WEIGHTS, axes, strict=True):
        for context, name in product(CONTEXTS, ("one", "window")):
            of = [row for row in rows if (row["weights"], row["context"]) == (weights, context)][:-1]  # without "all"
            bar = "1 row" if name == "one" else f"{o.K + 1} rows"
            left = 0.0
            is_first = not panel.patches
            for i, row in enumerate(of):
                label = row["part"] if is_first else None
                panel.barh(f"{bar}, context {context}", row[name], left=left, color=f"C{i}", label=label)
                left += row[name]
        panel.invert_yaxis()
        panel.set(xlabel="ms", xlim=(0, 1.05 * longest), title=f"gpt2.py with {WEIGHTS[weights]}")
    axes[1].legend(fontsize=9)


if __name__ == "__main__":
    from plumbing import exits

    exits.fail("error: this is measured by python -m benchmarks.assumption parts", 2)
