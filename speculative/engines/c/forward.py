"""engine.c from Python: its call for the rows of one text or of several."""

import ctypes
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np

from speculative.engines.c.arguments import Memory, address
from speculative.engines.c.cache import Cache
from speculative.engines.c.library import lanes, library, numbers, struct
from speculative.engines.c.packing import aligned
from speculative.engines.c.threads import pool
from speculative.engines.formats import BLOCK
from speculative.engines.plain import Outputs

CHUNK = 120  # rows for which engine.c has room in a call; Python hears Ctrl-C between two
PREFETCH_BYTES = 8192  # ahead of the loops


class TextRows(NamedTuple):
    """Rows of one text, as one call computes them."""

    cache: Cache
    tokens: np.ndarray  # int64 [n]
    n_past: int  # tokens of the text before them, which the cache holds
    n_last: int  # the number of rows, from the last one up, whose logits are wanted
    sees: np.ndarray | None = None  # [n, n_past + n or more]: in a tree, the tokens that each row sees

    def fill(self, text: ctypes.Structure) -> None:
        """Write them to a struct Text of engine.c."""
        text.n_rows = len(self.tokens)
        text.n_past = self.n_past
        text.n_last = self.n_last
        text.tokens = address(self.tokens)
        text.keys, text.values = self.cache.addresses
        text.sees = 0
        if self.sees is not None:
            text.sees, text.sees_width = address(self.sees), self.sees.strides[0]


def parts_of(rows: TextRows) -> Iterator[TextRows]:
    """Cut the rows of a text into parts of CHUNK rows, of which each is computed after those before it."""
    n = len(rows.tokens)
    for first in range(0, n, CHUNK):
        end = min(first + CHUNK, n)
        first_wanted = max(first, n - rows.n_last)
        sees = None if rows.sees is None else rows.sees[first:end]
        yield TextRows(rows.cache, rows.tokens[first:end], rows.n_past + first, max(0, end - first_wanted), sees)


def calls_of(texts: Sequence[TextRows]) -> Iterator[list[TextRows]]:
    """Share the parts of texts among calls of at most CHUNK rows. Two parts of a text are never in one call."""
    call: list[TextRows] = []
    n = 0
    for rows in texts:
        for part in parts_of(rows):
            n += len(part.tokens)
            if n > CHUNK:
                yield call
                call, n = [], len(part.tokens)
            call.append(part)
    yield call


class CompiledPass:
    """The twin of plain.PlainPass: gpt2 with packed weights."""

    takes_trees = True

    def __init__(self, params: dict, hparams: dict, n_threads: int):
        """n_threads: at most."""
        n_embd = hparams["n_embd"]
        n_inner = hparams.get("n_inner", 4 * n_embd)
        activation = hparams.get("activation_function", "gelu_new")
        self.hparams = hparams
        self.n_threads = n_threads
        self.prefetch_bytes = np.zeros(4, np.intp)  # see tune
        self.group = library().rows_of_a_group(numbers("format")[params["wte"].format.name])
        self.texts = (struct("Text") * CHUNK)()  # the texts of a call, which each have a row or more
        self.memory = memory = Memory()
        self.arguments = struct("GPT2")(  # in the order of arguments.h
            n_head=hparams["n_head"],
            n_embd=n_embd,
            n_inner=n_inner,
            n_ctx=hparams["n_ctx"],
            n_vocab=hparams["n_vocab"],
            activation=numbers("activation")[activation],
            blocks=memory.structs("Block", params["blocks"]),
            wte=memory.structs("Linear", [{"w": params["wte"]}]),
            wpe=memory.floats(params["wpe"]),
            ln_f=memory.structs("Norm", [params["ln_f"]]),
            prefetch_bytes=address(self.prefetch_bytes),
            most_rows=CHUNK,
            x=memory.floats(aligned((CHUNK, n_embd))),
            qkv=memory.floats(aligned((CHUNK, 3 * n_embd))),
            a=memory.floats(aligned((CHUNK, n_embd))),
            hidden=memory.floats(aligned((CHUNK, n_inner))),
            scratch=memory.structs("Scratch", [scratch(hparams, n_inner) for _ in range(n_threads)]),
            texts=ctypes.addressof(self.texts),
        )
        self.layers_in_turn = cycle(range(hparams["n_layer"]))  # that layer_seconds times

    def new_cache(self) -> Cache:
        return Cache(self.hparams)

    def __call__(self, tokens, n_last: int, n_past: int, cache: Cache, sees=None) -> Outputs:  # [n]
        """The same as PlainPass. In a tree, sees [n, n_past + n] says which tokens each one sees: itself, and all
        before it on its path; it is trusted. Raises ValueError as run does."""
        [outputs] = self.together([self.rows_of(tokens, n_last, n_past, cache, sees)])
        return outputs

    def rows_of(self, tokens, n_last: int, n_past: int, cache: Cache, sees=None) -> TextRows:  # [n]
        """The rows of a text, as together takes them."""
        if sees is not None:
            sees = np.ascontiguousarray(sees, np.uint8)
        return TextRows(cache, np.ascontiguousarray(tokens, np.int64), n_past, n_last, sees)

    def together(self, texts: Sequence[TextRows]) -> list[Outputs]:
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
            results.append(Outputs(logits[first:end], hidden[first:end]))
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
        for rows, text in zip(call, self.texts, strict=False):
            rows.fill(text)
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
        rows = TextRows(cache, tokens, n_past, n_last=0)
        layer = next(self.layers_in_turn)
        began = time.perf_counter()
        for part in parts_of(rows):
            self.run([part], range(layer, layer + 1))
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


def scratch(hparams: dict, n_inner: int) -> dict[str, np.ndarray]:
    """A thread's own memory."""
    n_embd = hparams["n_embd"]
    longest = max(n_embd, n_inner, hparams["n_ctx"] + lanes() + n_embd // hparams["n_head"])
    n_row = BLOCK * -(-longest // BLOCK)
    return {
        "prepared": aligned(CHUNK * n_row),
        "row": aligned(n_row),
        "sums": aligned(library().floats_of_sums()),
        "scores": aligned(library().rows_of_a_group(numbers("format")["float32"]) * n_row),
    }
