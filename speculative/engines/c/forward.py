"""engine.c from Python: gpt2.py's nested dicts in its structs, and its call for the rows of one text or of several."""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from speculative.engines.c.cache import Cache, address
from speculative.engines.c.layout import numbers, struct
from speculative.engines.c.library import lanes, library
from speculative.engines.c.packing import PackedWeight, aligned
from speculative.engines.c.threads import pool
from speculative.engines.formats import BLOCK

CHUNK = 120  # rows for which engine.c has room in a call; Python hears Ctrl-C between two
PREFETCH_BYTES = 8192  # ahead of the loops


class Rows(NamedTuple):
    """Rows of one text, as one call computes them."""

    cache: Cache
    tokens: np.ndarray  # [n]
    n_past: int  # tokens of the text before them, which the cache holds
    n_last: int  # the number of rows, from the last one up, whose logits are wanted
    sees: np.ndarray | None = None  # [n, n_past + n]: in a tree, the tokens that each row sees

    def part(self, first: int, end: int) -> "Rows":
        """Rows first to end - 1, after the others before them were computed."""
        n = len(self.tokens)
        if (first, end) == (0, n):
            return self
        first_wanted = max(first, n - self.n_last)
        n_last = max(0, end - first_wanted)
        tokens = self.tokens[first:end]
        sees = None if self.sees is None else self.sees[first:end]
        return Rows(self.cache, tokens, self.n_past + first, n_last, sees)

    def positions(self) -> np.ndarray:  # -> [n]
        """The place of each token in its text, or on its path of a tree."""
        if self.sees is None:
            return np.arange(self.n_past, self.n_past + len(self.tokens))
        return self.sees.sum(axis=1, dtype=np.int64) - 1

    def struct(self) -> ctypes.Structure:
        """The rows as engine.c takes them."""
        keys, values = self.cache.addresses
        text = struct("Text")(n_rows=len(self.tokens), n_past=self.n_past, keys=keys, values=values)
        if self.sees is not None:
            text.sees, text.sees_width = address(self.sees), self.sees.strides[0]
        return text


def calls_of(texts: Sequence[Rows]) -> Iterator[list[Rows]]:
    """Share the rows of several texts among calls, of at most CHUNK rows and of about the same size."""
    n = sum([len(text.tokens) for text in texts])
    if n <= CHUNK:
        yield wanted_last(texts) if len(texts) > 1 else list(texts)
        return
    n_calls = -(-n // CHUNK)
    for i in range(n_calls):
        first, end = n * i // n_calls, n * (i + 1) // n_calls
        parts = []
        for text in texts:
            n_rows = len(text.tokens)
            if first < n_rows and end > 0:
                parts.append(text.part(max(0, first), min(end, n_rows)))
            first, end = first - n_rows, end - n_rows
        yield wanted_last(parts) if len(parts) > 1 else parts


def wanted_last(texts: Sequence[Rows]) -> list[Rows]:
    """The rows whose logits are wanted behind those of which only keys and values are."""
    unwanted, wanted = [], []
    for text in texts:
        n = len(text.tokens)
        if text.n_last < n:
            unwanted.append(text.part(0, n - text.n_last))
        if text.n_last:
            wanted.append(text.part(n - text.n_last, n))
    return unwanted + wanted


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:  # [n] each -> int64 [sum of n]
    """The arrays one after the other; a single one is not copied, as the smallest models take no longer than that."""
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0], np.int64)
    return np.concatenate([np.empty(0, np.int64), *arrays], dtype=np.int64)


class CompiledGPT2:
    """The twin of gpt2.gpt2: packed weights and the memory of a call, which all texts use in turn or together."""

    def __init__(self, params: dict, hparams: dict, n_threads: int):
        """n_threads: at most."""
        n_embd = hparams["n_embd"]
        n_inner = hparams.get("n_inner", 4 * n_embd)
        self.hparams = hparams
        self.n_threads = n_threads
        self.timed_layer = 0
        self.kept: list[Any] = []  # memory whose addresses engine.c has
        self.prefetch_bytes = np.zeros(4, np.intp)  # see tune
        self.x = aligned((CHUNK, n_embd))
        self.call: Any = struct("GPT2")(
            **{name: hparams[name] for name in ("n_embd", "n_head", "n_ctx", "n_vocab")},
            n_inner=n_inner,
            activation=numbers("activation")[hparams.get("activation_function", "gelu_new")],
            most_rows=CHUNK,
            blocks=self.array_of("Block", map(self.block, params["blocks"])),
            wte=self.array_of("Linear", [self.linear(params["wte"])]),
            wpe=self.keep(params["wpe"]),
            ln_f=self.array_of("Norm", [self.norm(params["ln_f"])]),
            x=address(self.x),
            qkv=self.keep(aligned((CHUNK, 3 * n_embd))),
            a=self.keep(aligned((CHUNK, n_embd))),
            hidden=self.keep(aligned((CHUNK, n_inner))),
            scratch=self.array_of("Scratch", [self.scratch(n_inner) for _ in range(n_threads)]),
            prefetch_bytes=address(self.prefetch_bytes),
        )

    def keep(self, array: np.ndarray) -> int:
        """The address of an array of float32 for engine.c, which is kept as long as the weights."""
        self.kept.append(np.ascontiguousarray(array, np.float32))
        return address(self.kept[-1])

    def array_of(self, name: str, values) -> int:
        """The address of an array of engine.c's structs of this name."""
        values = [*values]
        self.kept.append((struct(name) * len(values))(*values))
        return ctypes.addressof(self.kept[-1])

    def linear(self, w: PackedWeight | np.ndarray, b: np.ndarray | None = None) -> ctypes.Structure:
        """w: tiles, or a matrix of float32 that is used where it lies (packing.packer)."""
        n_in, n_out = w.shape
        linear = struct("Linear")(n_in=n_in, n_out=n_out, b=0 if b is None else self.keep(b))
        weights = w if isinstance(w, np.ndarray) else w.tiles
        self.kept.append(weights)
        linear.tiles = address(weights)
        if isinstance(w, np.ndarray):
            linear.format = numbers("format")["float32"]
            linear.row_bytes = w.strides[0]
        else:
            linear.format = numbers("format")[w.format.name]
        return linear

    def norm(self, params: dict) -> ctypes.Structure:
        return struct("Norm")(g=self.keep(params["g"]), b=self.keep(params["b"]))

    def block(self, params: dict) -> ctypes.Structure:
        attn, mlp = params["attn"], params["mlp"]
        return struct("Block")(
            attn=struct("Attn")(c_attn=self.linear(**attn["c_attn"]), c_proj=self.linear(**attn["c_proj"])),
            mlp=struct("Mlp")(c_fc=self.linear(**mlp["c_fc"]), c_proj=self.linear(**mlp["c_proj"])),
            ln_1=self.norm(params["ln_1"]),
            ln_2=self.norm(params["ln_2"]),
        )

    def scratch(self, n_inner: int) -> ctypes.Structure:
        """A thread's own memory."""
        n_embd, n_ctx = self.hparams["n_embd"], self.hparams["n_ctx"]
        longest = max(n_embd, n_inner, n_ctx + lanes() + n_embd // self.hparams["n_head"])
        n_row = BLOCK * -(-longest // BLOCK)
        return struct("Scratch")(
            prepared=self.keep(aligned(CHUNK * n_row)),
            row=self.keep(aligned(n_row)),
            sums=self.keep(aligned(library().floats_of_sums())),
            scores=self.keep(aligned(library().rows_of_a_group() * n_row)),
        )

    def together(self, texts: Sequence[Rows]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Compute the rows of these texts -> for each its logits [n_last, n_vocab] and the last block's output
        [n_last, n_embd]. A row's bits do not depend on the others. Raises ValueError for a token that does not exist,
        or a text that is too long, as compiled code looks up whatever it is given."""
        n_wanted = sum([text.n_last for text in texts])
        logits = np.empty((n_wanted, self.hparams["n_vocab"]), np.float32)  # [n_wanted, n_vocab]
        hidden = np.empty((n_wanted, self.hparams["n_embd"]), np.float32)  # [n_wanted, n_embd]
        first = 0
        for rows in calls_of(texts):
            n_rows = sum([len(text.tokens) for text in rows])
            end = first + sum([text.n_last for text in rows])
            self.run(rows, logits[first:end])
            hidden[first:end] = self.x[n_rows - (end - first) : n_rows]
            first = end
        results = []
        first = 0
        for text in texts:
            end = first + text.n_last
            results.append((logits[first:end], hidden[first:end]))
            first = end
        return results

    def output(self, x: np.ndarray) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        """The same as PlainPass.output: calls without tokens and blocks."""
        logits = np.empty((len(x), self.hparams["n_vocab"]), np.float32)  # [n, n_vocab]
        for first in range(0, len(x), CHUNK):
            part = x[first : first + CHUNK]  # [m, n_embd]
            self.x[: len(part)] = part
            self.run([], logits[first : first + CHUNK], (0, 0))
        return logits

    def run(self, rows: Sequence[Rows], logits: np.ndarray, layers: tuple[int, int] | None = None) -> None:
        """Make one call of engine.c, whose last rows give logits [n, n_vocab]. layers: from one up to another; None:
        all. Without rows, the first n of x are taken for the last block's output. Raises ValueError if C refuses."""
        call = self.call
        tokens = joined([text.tokens for text in rows])  # [n_rows]
        positions = joined([text.positions() for text in rows])  # [n_rows]
        texts = (struct("Text") * len(rows))(*[text.struct() for text in rows])
        call.n_rows = len(tokens)
        call.tokens = address(tokens)
        call.positions = address(positions)
        call.n_texts = len(rows)
        call.texts = ctypes.addressof(texts)
        call.n_last = len(logits)
        call.logits = address(logits)
        call.first_layer, call.end_layer = layers or (0, self.hparams["n_layer"])
        pool.run(call, self.n_threads)

    def layer_seconds(self, rows: Rows) -> float:
        """The time of one block for these rows, another one in each call, so that no cache of the CPU holds it."""
        layer = self.timed_layer = (self.timed_layer + 1) % self.hparams["n_layer"]
        no_logits = np.empty((0, self.hparams["n_vocab"]), np.float32)
        began = time.perf_counter()
        for part in calls_of([rows]):
            self.run(part, no_logits, (layer, layer + 1))
        return time.perf_counter() - began


class CompiledPass:
    """The twin of plain.PlainPass for one text: gpt2 with packed weights, and a cache of its own."""

    def __init__(self, params: dict, hparams: dict, n_threads: int):
        """n_threads: at most."""
        self.gpt2 = CompiledGPT2(params, hparams, n_threads)
        self.compute: Callable = lambda rows: self.gpt2.together([rows])[0]
        self.cache = Cache(hparams)
        self.hidden: np.ndarray | None = None  # [n_last, n_embd], the last block's output, after a call

    def of_another_text(self, compute: Callable) -> "CompiledPass":
        """The same weights with an empty cache. compute(rows): computes this text's rows beside those of others."""
        other = copy(self)
        other.compute = compute
        other.cache = Cache(self.gpt2.hparams)
        return other

    def __call__(self, tokens, n_last: int, n_past: int = 0, sees=None) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The same as PlainPass. In a tree, sees [n, n_past + n] says which tokens each one sees: itself, and all
        before it on its path; it is trusted. Raises ValueError as CompiledGPT2.together does."""
        if sees is not None:
            sees = np.ascontiguousarray(sees, np.uint8)
        rows = Rows(self.cache, np.asarray(tokens), n_past, n_last, sees)
        logits, self.hidden = self.compute(rows)
        return logits

    def together(self, texts: Sequence[Rows]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The same of several texts, each of which has its own cache: CompiledGPT2.together."""
        return self.gpt2.together(texts)

    def output(self, x) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        return self.gpt2.output(x)

    def move(self, slots: np.ndarray, to: int) -> None:  # [n]
        """Move the keys and values of these tokens to the places from `to` on."""
        self.cache.move(slots, to)

    def layer_seconds(self, n_rows: int, n_past: int = 0) -> float:
        """The time of one block for so many rows. Writes to the cache after n_past tokens."""
        n_ctx = self.gpt2.hparams["n_ctx"]
        n_past = min(n_past, n_ctx - 1)
        n_rows = min(n_rows, n_ctx - n_past)
        return self.gpt2.layer_seconds(Rows(self.cache, np.zeros(n_rows, int), n_past, 0))

    def tune(self) -> None:
        """Measure on the model itself whether to ask for memory ahead of the loops, which changes no bit: with some
        CPUs, formats and row counts it is up to a third faster, with others slower. The smallest time counts, as other
        programs only add to it. It takes a tenth of a second."""
        group = library().rows_of_a_group()
        for kind, n_rows in enumerate((1, group // 2, group, 2 * group)):
            seconds = []
            for ahead in (0, PREFETCH_BYTES) * 3:
                self.gpt2.prefetch_bytes[kind] = ahead
                seconds.append((self.layer_seconds(n_rows), ahead))
            self.gpt2.prefetch_bytes[kind] = min(seconds)[1]
