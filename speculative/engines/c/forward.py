"""engine.c from Python: its structs filled from gpt2.py's nested dicts, its threads, its cache, and the call."""

import contextlib
import ctypes
import mmap
import threading
import time
from queue import SimpleQueue

import numpy as np

from speculative.engines.c.library import lanes, library
from speculative.engines.c.packing import PackedWeight, aligned
from speculative.engines.formats import BLOCK
from speculative.engines.model import leaves

CHUNK = 120  # rows in one call at most: Python hears Ctrl-C between two
ACTIVATIONS = {"gelu_new": 2, "gelu": 3, "relu": 4}  # by their names in config.json; engine.c's numbers
PREFETCH_BYTES = 8192  # ahead of the loops
CONTENTION_NANOSECONDS = 20_000_000  # of work, after which it is checked whether there are cores for all threads
SINGLE_THREAD_SECONDS = 1.0  # that the first thread works alone if there are not


class GPT2(ctypes.Structure):
    """The struct of this name in engine.c: numbers and addresses, which are words of the same size."""

    NAMES = """n_head n_embd n_inner n_ctx n_vocab activation blocks wte wpe ln_f keys values x qkv a hidden scratch
        prefetch_bytes n_threads first_layer end_layer n_rows n_past n_last tokens positions sees sees_width logits
        idle_ns call_ns"""
    _fields_ = [(name, ctypes.c_ssize_t) for name in NAMES.split()]


class ThreadPool:
    """The threads that share a pass: the one that calls, and workers, which C keeps awake for a while after each pass.

    Only one pass at a time may run: see model.LOCK.
    """

    def __init__(self):
        self.workers: list[threading.Thread] = []
        self.wake = SimpleQueue()  # numbers of workers that are asleep in Python
        self.call_ns = self.idle_ns = 0
        self.single_until = 0.0  # time.perf_counter()

    def run(self, call: GPT2, n_threads: int) -> None:
        """Compute a pass. On a machine that others use, a thread may wait a whole time slice for a worker: after a
        while in which the first waited longer than it worked, it works alone for a second."""
        call.n_threads = 1 if time.perf_counter() < self.single_until else n_threads
        gpt2 = library().gpt2
        result = gpt2(ctypes.byref(call), 0)
        if result == 1:  # some workers are asleep
            self.workers = [worker for worker in self.workers if worker.is_alive()]  # none in a forked process
            with contextlib.suppress(RuntimeError):  # no more threads, or Python is ending: it goes on without them
                while len(self.workers) < n_threads - 1:
                    worker = threading.Thread(target=self.work, daemon=True)
                    worker.start()
                    self.workers.append(worker)
            for number in range(1, 1 + min(len(self.workers), n_threads - 1)):
                self.wake.put(number)
            result = gpt2(ctypes.byref(call), 1)
        if result:
            raise ValueError(f"a token was asked for that is not one of {call.n_vocab}")
        self.call_ns += call.call_ns
        self.idle_ns += call.idle_ns
        if self.call_ns > CONTENTION_NANOSECONDS:
            if self.idle_ns > self.call_ns / 2:
                self.single_until = time.perf_counter() + SINGLE_THREAD_SECONDS
            self.call_ns = self.idle_ns = 0

    def work(self) -> None:
        """A worker's thread. Work is done in C, until there was none for a while."""
        while True:
            library().worker(self.wake.get())


pool = ThreadPool()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


class CompiledPass:
    """The twin of plain.PlainPass: gpt2 with packed weights, and a cache of its own."""

    def __init__(self, params: dict, hparams: dict, n_threads: int):
        """n_threads: at most."""
        n_embd, n_layer, n_head, n_ctx = (hparams[name] for name in ("n_embd", "n_layer", "n_head", "n_ctx"))
        n_inner = hparams.get("n_inner", 4 * n_embd)
        d_head = n_embd // n_head
        L = lanes()
        self.n_threads = n_threads
        self.n_layer = n_layer
        self.timed_layer = 0
        self.n_ctx = n_ctx
        self.arrays: list[np.ndarray] = []  # whose addresses engine.c has
        self.prefetch_bytes = np.zeros(4, np.intp)  # see tune
        self.x = aligned((CHUNK, n_embd))
        self.tokens = np.zeros(n_ctx, np.int64)
        self.tokens_at, self.positions_at = address(self.tokens), self.keep_address(np.arange(n_ctx), np.int64)
        # Keys are tiles of slots and values are tiles of channels: see attention in engine.c.
        keys = small_pages((n_layer, n_head, -(-n_ctx // L), d_head, L))
        values = small_pages((n_layer, n_head, -(-d_head // L), n_ctx, L))
        self.cache = keys, values, address(keys), address(values)  # one object, as a copy takes that of its target
        n_row = BLOCK * -(-max(n_embd, n_inner, n_ctx + L + d_head) // BLOCK)
        of_thread = CHUNK * n_row, n_row, CHUNK * L, library().rows_of_a_group() * n_row
        scratch = [[self.keep_address(aligned(n)) for n in of_thread] for _ in range(n_threads)]
        self.call = GPT2(
            **{name: hparams[name] for name in ("n_embd", "n_head", "n_ctx", "n_vocab")},
            n_inner=n_inner,
            activation=ACTIVATIONS[hparams.get("activation_function", "gelu_new")],
            blocks=self.keep_address([self.words(block) for block in params["blocks"]], np.intp),
            wte=self.keep_address([0, *self.words(params["wte"])], np.intp),
            wpe=self.keep_address(params["wpe"]),
            ln_f=self.keep_address(self.words(params["ln_f"]), np.intp),
            x=address(self.x),
            qkv=self.keep_address(aligned((CHUNK, 3 * n_embd))),
            a=self.keep_address(aligned((CHUNK, n_embd))),
            hidden=self.keep_address(aligned((CHUNK, n_inner))),
            scratch=self.keep_address(scratch, np.intp),
            prefetch_bytes=address(self.prefetch_bytes),
        )

    def keep_address(self, array, dtype=np.float32) -> int:
        """The address of an array for engine.c, which is kept as long as this pass."""
        self.arrays.append(np.ascontiguousarray(array, dtype))
        return address(self.arrays[-1])

    def words(self, params) -> list[int]:
        """The fields of engine.c's struct of these parameters, which are in the order of their names."""
        words: list[int] = []
        for leaf in leaves(params):
            if isinstance(leaf, PackedWeight):
                words += [*leaf.shape, leaf.format.code, self.keep_address(leaf.tiles, np.uint8)]
            else:
                words.append(self.keep_address(leaf))
        return words

    def __call__(self, tokens, n_last: int, n_past: int = 0, sees=None) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The same as PlainPass; hidden [n_last, n_embd] is then the last block's output. In a tree, sees
        [n, n_past + n] says which tokens each one sees: itself, and all before it on its path; it is trusted. Raises
        ValueError for tokens that do not exist or are too many, as compiled code looks up whatever it is given."""
        n = len(tokens)
        call = self.call
        if n_past + n > self.n_ctx:
            raise ValueError(f"{n_past} + {n} tokens: there are {self.n_ctx} positions")
        self.tokens[:n] = tokens
        positions_at, sees_at = self.positions_at + 8 * n_past, 0
        if sees is not None:
            sees = np.ascontiguousarray(sees, np.uint8)  # [n, n_past + n]
            positions = sees.sum(axis=1, dtype=np.int64) - 1  # [n]
            positions_at, sees_at, call.sees_width = address(positions), address(sees), sees.shape[1]
        logits = np.empty((n_last, call.n_vocab), np.float32)  # [n_last, n_vocab]
        self.hidden = np.empty((n_last, call.n_embd), np.float32)  # [n_last, n_embd]
        logits_at = address(logits)
        n_chunks = -(-n // CHUNK)
        for i in range(n_chunks):
            first, end = n * i // n_chunks, n * (i + 1) // n_chunks
            given = end - (n - n_last)  # rows of logits after this chunk
            wanted = max(0, min(given, end - first))
            call.tokens = self.tokens_at + 8 * first
            call.positions = positions_at + 8 * first
            call.sees = sees_at and sees_at + first * call.sees_width
            self.run(end - first, n_past + first, wanted, logits_at + 4 * (given - wanted) * call.n_vocab)
            self.hidden[given - wanted : given] = self.x[end - first - wanted : end - first]
        return logits

    def run(self, n_rows: int, n_past: int, n_last: int, logits_at: int, layers: tuple | None = None) -> None:
        """Compute a pass, or a part from one layer up to another: n_rows tokens, and the logits of the last n_last."""
        call = self.call
        call.n_rows = n_rows
        call.n_past = n_past
        call.n_last = n_last
        call.logits = logits_at
        call.first_layer, call.end_layer = layers or (0, self.n_layer)
        _, _, call.keys, call.values = self.cache
        pool.run(call, self.n_threads)

    def output(self, x) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        """The same as PlainPass.output: a pass without tokens and blocks, whose last n rows are given."""
        logits = np.empty((len(x), self.call.n_vocab), np.float32)  # [n, n_vocab]
        for first in range(0, len(x), CHUNK):
            part = x[first : first + CHUNK]  # [m, n_embd]
            self.x[: len(part)] = part
            self.run(0, 0, len(part), address(logits[first:]), (0, 0))
        return logits

    def move(self, slots: np.ndarray, to: int) -> None:  # [n]
        """Move the keys and values of these tokens to the places from `to` on."""
        there = np.arange(to, to + len(slots))
        L = lanes()
        keys, values, *_ = self.cache
        keys[:, :, there // L, :, there % L] = keys[:, :, slots // L, :, slots % L]
        values[:, :, :, there] = values[:, :, :, slots]

    def layer_seconds(self, n_rows: int, n_past: int = 0) -> float:
        """The time of one block for so many rows, another one in each call, so that no cache holds it. Writes to the
        cache after n_past tokens."""
        layer = self.timed_layer = (self.timed_layer + 1) % self.n_layer
        n_past = min(n_past, self.n_ctx - 1)
        n_rows = min(n_rows, self.n_ctx - n_past)
        self.call.tokens, self.call.positions, self.call.sees = self.tokens_at, self.positions_at, 0  # any tokens
        began = time.perf_counter()
        self.run(n_rows, n_past, 0, 0, (layer, layer + 1))
        return time.perf_counter() - began

    def tune(self) -> None:
        """Measure on the model itself whether to ask for memory ahead of the loops, which changes no bit: with some
        CPUs, formats and row counts it is up to a third faster, with others slower. The smallest time counts, as other
        programs only add to it. It takes a tenth of a second."""
        group = library().rows_of_a_group()
        for i, n_rows in enumerate((1, group // 2, group, 2 * group)):
            seconds = []
            for ahead in (0, PREFETCH_BYTES) * 3:
                self.prefetch_bytes[i] = ahead
                seconds.append((self.layer_seconds(n_rows), ahead))
            self.prefetch_bytes[i] = min(seconds)[1]


def small_pages(shape) -> np.ndarray:  # -> float32 zeros [*shape]
    """Memory for a cache, of which only written pages are taken. From 4 MB on, NumPy would ask for large pages, and one
    token, which has a place for each layer and head, would touch them all."""
    n_bytes = 4 * int(np.prod(shape))
    if n_bytes < 2**22 or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return aligned(shape)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)
