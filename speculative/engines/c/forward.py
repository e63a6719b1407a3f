"""The C engine from Python: its call for the rows of one text or of several."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from speculative.engines.c.cache import Cache
from speculative.engines.c.library import library
from speculative.engines.c.packing import PackedWeight, address, aligned
from speculative.engines.c.threads import pool
from speculative.engines.formats import BLOCK
from speculative.engines.network import Rows, TextRows

CHUNK = 120  # most rows of one call; Ctrl-C is noticed between calls
PREFETCH_BYTES = 8192  # distance in bytes at which a loop prefetches


def as_field(kind: Any, value: Any, kept: list) -> Any:
    """Return a value as a field of this kind in C: a number; an array, by its address; a dict, as a struct with the
    fields of these names; a list of dicts, as an array of structs. kept: gets the arrays, which have to live as long as
    the field.

    For example [{"g": g, "b": b}], the value of ln_f, becomes an array of one Norm, whose fields are the addresses of g
    and b. A dict with a matrix w is a Linear (see linear).
    """
    if isinstance(value, list):
        structs = [as_field(kind._type_, fields, kept) for fields in value]
        return (kind._type_ * len(value))(*structs)
    if isinstance(value, dict):
        fields = linear(**value) if "w" in value else value
        kinds = dict(kind._fields_)
        return kind(**{name: as_field(kinds[name], field, kept) for name, field in fields.items()})
    if isinstance(value, np.ndarray):
        array = value if value.dtype == np.uint8 else np.ascontiguousarray(value, np.float32)  # uint8: tiles
        kept.append(array)
        return address(array)
    return value


def linear(w: PackedWeight | np.ndarray, b: np.ndarray | None = None) -> dict:
    """The fields of a struct Linear. w: tiles, or a matrix of float32 that is used where it lies (packing.pack)."""
    n_in, n_out = w.shape
    fields: dict[str, Any] = {"n_in": n_in, "n_out": n_out}
    if b is not None:
        fields["b"] = b
    if isinstance(w, PackedWeight):
        fields["format"] = library().numbers["format"][w.format.name]
        fields["tiles"] = w.tiles
    else:
        fields["format"] = library().numbers["format"]["float32"]
        fields["tiles"] = w
        fields["row_bytes"] = w.strides[0]
    return fields


def calls_of(texts: Sequence[TextRows]) -> Iterator[list[TextRows]]:
    """Cut the rows of each text into parts, and share these among calls of at most CHUNK rows. Two parts of a text are
    never in one call, as each is computed after those before it."""
    call: list[TextRows] = []
    n_rows = 0
    for tokens, n_last, n_past, cache, sees in texts:
        n = len(tokens)
        tokens = np.ascontiguousarray(tokens, np.int64)  # [n]
        for first in range(0, n, CHUNK):
            end = min(first + CHUNK, n)
            n_wanted = max(0, end - max(first, n - n_last))
            seen = None if sees is None else np.ascontiguousarray(sees[first:end], np.uint8)
            n_rows += end - first
            if n_rows > CHUNK:
                yield call
                call, n_rows = [], end - first
            call.append(TextRows(tokens[first:end], n_wanted, n_past + first, cache, seen))
    yield call


class CompiledPass:
    """The twin of plain.PlainPass: gpt2 with packed weights."""

    takes_trees = True

    def __init__(self, params: dict, hparams: dict, n_threads: int):
        """n_threads: at most."""
        n_embd = hparams["n_embd"]
        n_inner = hparams.get("n_inner", 4 * n_embd)
        activation = hparams.get("activation_function", "gelu_new")
        n_keys = hparams["n_ctx"] + library().lanes() + n_embd // hparams["n_head"]
        n_row = BLOCK * -(-max(n_embd, n_inner, n_keys) // BLOCK)  # numbers of the longest row
        formats = library().numbers["format"]
        self.hparams = hparams
        self.n_threads = n_threads
        self.prefetch_bytes = np.zeros(4, np.intp)  # see tune
        self.group = library().rows_of_a_group(formats[params["wte"].format.name])
        self.texts = (library().structs["Text"] * CHUNK)()  # the texts of a call, which each have a row or more
        self.kept: list[np.ndarray] = []  # the arrays whose addresses C has
        values = {  # fields of the struct GPT2 in arguments.h
            "n_head": hparams["n_head"],
            "n_embd": n_embd,
            "n_inner": n_inner,
            "n_ctx": hparams["n_ctx"],
            "n_vocab": hparams["n_vocab"],
            "activation": library().numbers["activation"][activation],
            "blocks": params["blocks"],
            "wte": [{"w": params["wte"]}],
            "wpe": params["wpe"],
            "ln_f": [params["ln_f"]],
            "prefetch_bytes": address(self.prefetch_bytes),
            "most_rows": CHUNK,
            "x": aligned((CHUNK, n_embd)),
            "qkv": aligned((CHUNK, 3 * n_embd)),
            "a": aligned((CHUNK, n_embd)),
            "hidden": aligned((CHUNK, n_inner)),
            "scratch": [
                {
                    "prepared": aligned(CHUNK * n_row),
                    "row": aligned(n_row),
                    "sums": aligned(library().floats_of_sums()),
                    "scores": aligned(library().rows_of_a_group(formats["float32"]) * n_row),
                }
                for _ in range(n_threads)
            ],
            "texts": self.texts,
        }
        self.arguments = as_field(library().structs["GPT2"], values, self.kept)
        self.new_cache = partial(Cache, hparams)  # makes the cache of one text
        self.layers_in_turn = cycle(range(hparams["n_layer"]))  # the layers that layer_seconds times

    def __call__(self, tokens, n_last: int, n_past: int, cache: Cache, sees=None) -> Rows:  # [n]
        """The same as PlainPass. In a tree, sees [n, n_past + n] says which tokens each one sees: itself, and all
        before it on its path; it is trusted. Raises ValueError as run does."""
        [rows] = self.together([TextRows(tokens, n_last, n_past, cache, sees)])
        return rows

    def together(self, texts: Sequence[TextRows]) -> list[Rows]:
        """Compute rows of each of these texts. A row's bits do not depend on the others. Raises ValueError as run
        does."""
        outputs = []
        for call in calls_of(texts):
            outputs.append(self.run(call))
        logits, hidden = outputs[0]  # [n_wanted, n_vocab], [n_wanted, n_embd]
        if len(outputs) > 1:
            logits, hidden = map(np.concatenate, zip(*outputs, strict=True))
        results = []
        end = 0
        for rows in texts:
            first, end = end, end + rows.n_last
            results.append(Rows(logits[first:end], hidden[first:end]))
        return results

    def output(self, x):  # [n, n_embd] -> [n, n_vocab]
        """The same as PlainPass.output: calls without texts and layers."""
        x = np.ascontiguousarray(x, np.float32)
        parts = [x[first : first + CHUNK] for first in range(0, len(x), CHUNK)]
        return np.concatenate([self.run([], range(0), hidden=part)[0] for part in parts])

    def run(self, call: Sequence[TextRows], layers: range | None = None, hidden=None) -> tuple[np.ndarray, np.ndarray]:
        """Make one call of engine.c, for at most CHUNK rows -> their logits [n, n_vocab], and the last block's output
        [n, n_embd], which a call without texts is given as hidden. layers: None for all. Raises ValueError for a token
        that does not exist, or a text that is too long, as compiled code looks up whatever it is given."""
        for (tokens, n_last, n_past, cache, sees), text in zip(call, self.texts, strict=False):
            text.n_rows = len(tokens)
            text.n_past = n_past
            text.n_last = n_last
            text.tokens = address(tokens)
            text.keys, text.values = cache.addresses
            text.sees = 0
            if sees is not None:
                text.sees, text.sees_width = address(sees), sees.strides[0]
        if hidden is None:
            n_wanted = sum([rows.n_last for rows in call])
            hidden = np.empty((n_wanted, self.hparams["n_embd"]), np.float32)  # [n_wanted, n_embd]
        logits = np.empty((len(hidden), self.hparams["n_vocab"]), np.float32)  # [n_wanted, n_vocab]
        if layers is None:
            layers = range(self.hparams["n_layer"])
        arguments = self.arguments
        arguments.n_texts = len(call)
        arguments.n_rows = sum([len(rows.tokens) for rows in call])
        arguments.n_wanted = len(hidden)
        arguments.first_layer = layers.start
        arguments.end_layer = layers.stop
        arguments.last_block = address(hidden)
        arguments.logits = address(logits)
        pool.run(arguments, self.n_threads)
        return logits, hidden

    def layer_seconds(self, n_rows: int, cache: Cache, n_past: int = 0) -> float:
        """The time of one layer for so many rows, another layer in each call, so that no cache of the CPU holds it.
        Writes to the KV cache after n_past tokens."""
        n_ctx = self.hparams["n_ctx"]
        n_past = min(n_past, n_ctx - 1)
        n_rows = min(n_rows, n_ctx - n_past)
        tokens = np.zeros(n_rows, np.int64)  # [n_rows]
        layer = next(self.layers_in_turn)
        began = time.perf_counter()
        for call in calls_of([TextRows(tokens, 0, n_past, cache)]):
            self.run(call, range(layer, layer + 1))
        return time.perf_counter() - began

    def tune(self, cache: Cache) -> None:
        """Measure on the model itself whether to ask for memory ahead of the loops, which changes no bit: with some
        CPUs, formats and row counts it is up to a third faster, with others slower. The smallest time counts, as other
        programs only add to it. It takes a tenth of a second."""
        for kind, n_rows in enumerate((1, self.group // 2, self.group, 2 * self.group)):
            seconds = []
            for ahead in (0, PREFETCH_BYTES) * 3:
                self.prefetch_bytes[kind] = ahead
                seconds.append((self.layer_seconds(n_rows, cache), ahead))
            self.prefetch_bytes[kind] = min(seconds)[1]
