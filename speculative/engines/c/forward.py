"""engine.c from Python: its call for the rows of one text or of several."""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from speculative.engines.c.cache import Cache
from speculative.engines.c.layout import numbers, struct
from speculative.engines.c.library import lanes, library
from speculative.engines.c.packing import aligned
from speculative.engines.c.threads import pool
from speculative.engines.c.weights import Memory, address
from speculative.engines.formats import BLOCK

CHUNK = 120  # rows for which engine.c has room in a call; Python hears Ctrl-C between two
PREFETCH_BYTES = 8192  # ahead of the loops


class TextRows(NamedTuple):
    """Rows of one text, as one call computes them."""

    cache: Cache
    tokens: np.ndarray  # int64 [n]
    n_past: int  # tokens of the text before them, which the cache holds
    n_last: int  # the number of rows, from the last one up, whose logits are wanted
    sees: np.ndarray | None = None  # [n, n_past + n or more]: in a tree, the tokens that each row sees

    def fill(self, text: Any) -> None:
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
    if n <= CHUNK:
        yield rows
        return
    for first in range(0, n, CHUNK):
        end = min(first + CHUNK, n)
        first_wanted = max(first, n - rows.n_last)
        sees = None if rows.sees is None else rows.sees[first:end]
        yield TextRows(rows.cache, rows.tokens[first:end], rows.n_past + first, max(0, end - first_wanted), sees)


def calls_of(texts: Sequence[TextRows]) -> Iterator[list[TextRows]]:
    """Share texts, of at most CHUNK rows, among calls of at most CHUNK rows."""
    call: list[TextRows] = []
    n = 0
    for rows in texts:
        n += len(rows.tokens)
        if n > CHUNK:
            yield call
            call, n = [], len(rows.tokens)
        call.append(rows)
    yield call


class Outputs(NamedTuple):
    """The result for the wanted rows of a text."""

    logits: np.ndarray  # [n_last, n_vocab]
    hidden: np.ndarray  # [n_last, n_embd], the last block's output


class CompiledPass:
    """The twin of plain.PlainPass for one text: gpt2 with packed weights, and a cache of its own."""

    def __init__(self, params: dict, hparams: dict, n_threads: int):
        """n_threads: at most."""
        n_embd = hparams["n_embd"]
        n_inner = hparams.get("n_inner", 4 * n_embd)
        self.hparams = hparams
        self.n_threads = n_threads
        self.timed_layer = 0
        self.prefetch_bytes = np.zeros(4, np.intp)  # see tune
        self.texts = (struct("Text") * CHUNK)()  # of a call, which each have a row or more
        self.memory = memory = Memory()
        self.arguments: Any = struct("GPT2")(
            **{name: hparams[name] for name in ("n_embd", "n_head", "n_ctx", "n_vocab")},
            n_inner=n_inner,
            activation=numbers("activation")[hparams.get("activation_function", "gelu_new")],
            most_rows=CHUNK,
            blocks=memory.structs("Block", params["blocks"]),
            wte=memory.structs("Linear", [{"w": params["wte"]}]),
            wpe=memory.floats(params["wpe"]),
            ln_f=memory.structs("Norm", [params["ln_f"]]),
            x=memory.floats(aligned((CHUNK, n_embd))),
            qkv=memory.floats(aligned((CHUNK, 3 * n_embd))),
            a=memory.floats(aligned((CHUNK, n_embd))),
            hidden=memory.floats(aligned((CHUNK, n_inner))),
            scratch=memory.structs("Scratch", [scratch(hparams, n_inner) for _ in range(n_threads)]),
            prefetch_bytes=address(self.prefetch_bytes),
            texts=ctypes.addressof(self.texts),
        )
        self.cache = Cache(hparams)
        self.compute_beside_others: Callable | None = None  # if this text is decoded together with them
        self.hidden: np.ndarray | None = None  # [n_last, n_embd], the last block's output, after a call

    def of_another_text(self, compute: Callable) -> "CompiledPass":
        """The same weights with an empty cache. compute(rows): computes this text's rows beside those of others."""
        other = copy(self)
        other.compute_beside_others = compute
        other.cache = Cache(self.hparams)
        return other

    def __call__(self, tokens, n_last: int, n_past: int = 0, sees=None):  # [n] -> [n_last, n_vocab]
        """The same as PlainPass. In a tree, sees [n, n_past + n] says which tokens each one sees: itself, and all
        before it on its path; it is trusted. Raises ValueError as together does."""
        if sees is not None:
            sees = np.ascontiguousarray(sees, np.uint8)
        rows = TextRows(self.cache, np.ascontiguousarray(tokens, np.int64), n_past, n_last, sees)
        results = [self.compute(part) for part in parts_of(rows)]
        logits, self.hidden = results[0]
        if len(results) > 1:
            logits, self.hidden = map(np.concatenate, zip(*results, strict=True))
        return logits

    def compute(self, rows: TextRows) -> Outputs:
        """Compute at most CHUNK rows of this text."""
        return self.compute_beside_others(rows) if self.compute_beside_others else self.together([rows])[0]

    def together(self, texts: Sequence[TextRows]) -> list[Outputs]:
        """Compute at most CHUNK rows of each of these texts. A row's bits do not depend on the others. Raises
        ValueError for a token that does not exist, or a text that is too long, as compiled code looks up whatever it is
        given."""
        results = []
        for call in calls_of(texts):
            n_wanted = sum([rows.n_last for rows in call])
            logits = np.empty((n_wanted, self.hparams["n_vocab"]), np.float32)  # [n_wanted, n_vocab]
            hidden = np.empty((n_wanted, self.hparams["n_embd"]), np.float32)  # [n_wanted, n_embd]
            self.run(call, hidden, logits)
            end = 0
            for rows in call:
                first, end = end, end + rows.n_last
                results.append(Outputs(logits[first:end], hidden[first:end]))
        return results

    def output(self, x):  # [n, n_embd] -> [n, n_vocab]
        """The same as PlainPass.output: calls without texts and blocks."""
        x = np.ascontiguousarray(x, np.float32)
        logits = np.empty((len(x), self.hparams["n_vocab"]), np.float32)  # [n, n_vocab]
        for first in range(0, len(x), CHUNK):
            end = first + CHUNK
            self.run([], x[first:end], logits[first:end], (0, 0))
        return logits

    def run(self, call: Sequence[TextRows], hidden, logits, layers: tuple[int, int] | None = None) -> None:
        """Make one call of engine.c: hidden [n, n_embd] is the last block's output for the wanted rows, which it fills,
        or takes if the call has no texts; logits [n, n_vocab]. layers: from one up to another; None: all. Raises
        ValueError if C refuses."""
        arguments = self.arguments
        n_rows = 0
        for rows, text in zip(call, self.texts, strict=False):
            rows.fill(text)
            n_rows += len(rows.tokens)
        arguments.n_rows = n_rows
        arguments.n_texts = len(call)
        arguments.n_wanted = len(logits)
        arguments.last_block = address(hidden)
        arguments.logits = address(logits)
        arguments.first_layer, arguments.end_layer = layers or (0, self.hparams["n_layer"])
        pool.run(arguments, self.n_threads)

    def layer_seconds(self, n_rows: int, n_past: int = 0) -> float:
        """The time of one block for so many rows, another one in each call, so that no cache of the CPU holds it.
        Writes to the cache after n_past tokens."""
        n_ctx = self.hparams["n_ctx"]
        n_past = min(n_past, n_ctx - 1)
        tokens = np.zeros(min(n_rows, n_ctx - n_past), np.int64)
        nothing = np.empty((0, 0), np.float32)
        layer = self.timed_layer = (self.timed_layer + 1) % self.hparams["n_layer"]
        began = time.perf_counter()
        for part in parts_of(TextRows(self.cache, tokens, n_past, 0)):
            self.run([part], nothing, nothing, (layer, layer + 1))
        return time.perf_counter() - began

    def tune(self) -> None:
        """Measure on the model itself whether to ask for memory ahead of the loops, which changes no bit: with some
        CPUs, formats and row counts it is up to a third faster, with others slower. The smallest time counts, as other
        programs only add to it. It takes a tenth of a second."""
        group = library().rows_of_a_group()
        for kind, n_rows in enumerate((1, group // 2, group, 2 * group)):
            seconds = []
            for ahead in (0, PREFETCH_BYTES) * 3:
                self.prefetch_bytes[kind] = ahead
                seconds.append((self.layer_seconds(n_rows), ahead))
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
        "scores": aligned(library().rows_of_a_group() * n_row),
    }
