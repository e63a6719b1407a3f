"""engine.c from Python: its structs filled from gpt2.py's nested dicts, its threads, its cache, and the call."""

import contextlib
import ctypes
import mmap
import os
import threading
import time
from collections import defaultdict
from ctypes import Structure, c_int64, c_void_p, sizeof
from itertools import product
from typing import Any

import numpy as np

from speculative.engines.formats import BLOCK, FORMATS, padded
from speculative.engines.library import lanes, library
from speculative.engines.packed import PackedWeight, aligned

CHUNK = 120  # rows in one call at most: Python hears Ctrl-C between two
ACTIVATIONS = {"gelu_new": 2, "gelu": 3, "relu": 4}  # by their names in config.json; engine.c's numbers
FEW = 8192  # numbers of rows that each thread prepares for itself: together they would have to meet once more
SHARE = 2**20  # bytes of weights that are worth a thread, which must meet the others

# ---- engine.c's structs ----------------------------------------------------------------------------------------------


def struct(name: str, **fields: Any) -> type:
    """A struct of C with these fields, in this order."""
    return type(name, (Structure,), {"_fields_": [*fields.items()]})


Weight = struct("Weight", n_in=c_int64, n_out=c_int64, format=c_int64, tiles=c_void_p, scale=c_void_p)
Linear = struct("Linear", w=Weight, b=c_void_p)
Norm = struct("Norm", g=c_void_p, b=c_void_p)
Attn = struct("Attn", c_attn=Linear, c_proj=Linear)
Mlp = struct("Mlp", c_fc=Linear, c_proj=Linear)
Block = struct("Block", attn=Attn, mlp=Mlp, ln_1=Norm, ln_2=Norm)
Scratch = struct("Scratch", **dict.fromkeys(("prepared", "normed", "sums", "scores", "path"), c_void_p))
GPT2 = struct(
    "GPT2",
    **dict.fromkeys(("n_layer", "n_head", "n_embd", "n_inner", "n_ctx", "n_vocab", "activation"), c_int64),
    **{"blocks": c_void_p, "wte": Weight, "wpe": c_void_p, "ln_f": Norm, "keys": c_void_p, "values": c_void_p},
    **dict.fromkeys(("n_threads", "n_rows", "n_past", "n_last"), c_int64),
    **{"tokens": c_void_p, "positions": c_void_p, "sees": c_void_p, "sees_width": c_int64, "ahead": c_void_p},
    **{"most_rows": c_int64, "few": c_int64, "x": c_void_p, "qkv": c_void_p, "a": c_void_p, "hidden": c_void_p},
    **{"logits": c_void_p, "prepared": c_void_p, "scratch": c_void_p, "waited": c_int64, "took": c_int64},
)


def fill(into: Structure, values: dict, keep: list) -> None:
    """Fills a struct's fields from a dict with the same keys. The arrays whose addresses it takes, it keeps alive."""
    for name, _ in into._fields_:
        value = values[name]
        if isinstance(value, PackedWeight):
            code = [*FORMATS].index(value.dtype)
            n_in, n_out = value.shape
            value = {"n_in": n_in, "n_out": n_out, "format": code, "tiles": value.tiles, "scale": value.scale}
        if isinstance(value, dict):
            fill(getattr(into, name), value, keep)
        elif isinstance(value, np.ndarray):
            if value.dtype.kind == "f" and value.dtype != np.float32:
                raise ValueError(f"{name} is {value.dtype}, and compiled code reads float32")
            keep.append(np.ascontiguousarray(value))
            setattr(into, name, keep[-1].ctypes.data)
        else:
            setattr(into, name, value)


# ---- Threads ---------------------------------------------------------------------------------------------------------

JUDGED = 20_000_000  # nanoseconds of work after which it is judged whether there are cores for all
ALONE = 1.0  # seconds that the first thread works alone if there are not


class Team:
    """The threads that share a pass: the one that calls, and partners, which C keeps awake for a while after each."""

    def __init__(self):
        self.gpt2 = library().gpt2
        self.forget()

    def forget(self) -> None:
        """In a forked process, into which other threads do not come along."""
        self.wakers = []
        self.alone_until = self.took = self.waited = 0  # seconds; nanoseconds
        self.lock = threading.Lock()  # held during a pass
        library().forget_threads()

    def partner(self, thread: int, waker: threading.Semaphore) -> None:
        while True:
            waker.acquire()
            library().partner(thread)

    def start(self, n_threads: int) -> None:
        """Wakes the partners of the next pass. One that does not come in time, or that the system does not have, is not
        waited for."""
        with contextlib.suppress(RuntimeError):  # no more threads
            for thread in range(len(self.wakers) + 1, n_threads):
                waker = threading.Semaphore(0)
                threading.Thread(target=self.partner, args=(thread, waker), daemon=True).start()
                self.wakers.append(waker)
        for waker in self.wakers[: n_threads - 1]:
            waker.release()

    def run(self, pass_: GPT2, n_threads: int) -> None:
        """A pass. On a machine that others use, a thread may wait a whole time slice for its partner: after a while in
        which the first waited longer than it worked, it works alone for a second."""
        if n_threads > 1 and time.perf_counter() < self.alone_until:
            n_threads = 1
        pass_.n_threads = n_threads
        result = self.gpt2(ctypes.byref(pass_), 0)
        if result == 1:
            self.start(n_threads)
            result = self.gpt2(ctypes.byref(pass_), 1)
        if result:
            raise ValueError(f"a token was asked for that is not one of {pass_.n_vocab}")
        self.took += pass_.took
        self.waited += pass_.waited
        if self.took > JUDGED:
            if self.waited > self.took / 2:
                self.alone_until = time.perf_counter() + ALONE
            self.took = self.waited = 0


team = Team() if library() else None
if team and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=team.forget)

# ---- The pass --------------------------------------------------------------------------------------------------------


def sparse(shape) -> np.ndarray:  # -> float32 zeros [*shape]
    """Memory for a cache, in small pages: only written pages take memory. NumPy would ask for large pages, and one
    token, which has a place for each layer and head, would touch them all."""
    n_bytes = 4 * int(np.prod(shape))
    if n_bytes < 2**21 or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return aligned(shape, np.float32)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)


class CompiledPass:
    """plain.PlainPass's twin: gpt2 with packed weights, and a cache of its own."""

    def __init__(self, params: dict, hparams: dict, n_threads: int, chunk: int = CHUNK):
        """n_threads: at most. chunk: rows in one call at most."""
        n_embd, n_layer, n_head, n_ctx = (hparams[name] for name in ("n_embd", "n_layer", "n_head", "n_ctx"))
        d_head = n_embd // n_head
        n_inner = hparams.get("n_inner", 4 * n_embd)
        n_room = padded(n_ctx, lanes())
        self.n_threads = n_threads
        self.chunk = chunk
        self.n_ctx = n_ctx
        self.length = 0
        self.ahead = params["wte"].ahead
        self.blocks = (Block * n_layer)()
        self.kept = []
        for into, block in zip(self.blocks, params["blocks"], strict=True):
            fill(into, block, self.kept)
        self.x = aligned((chunk, n_embd), np.float32)
        self.keys = sparse((n_layer, n_head, n_room // lanes(), d_head, lanes()))
        self.values = sparse((n_layer, n_head, -(-d_head // lanes()), n_ctx, lanes()))
        self.tokens = np.zeros(n_ctx, np.int64)
        self.positions = np.arange(n_ctx)
        self.tokens_at, self.positions_at = address(self.tokens), address(self.positions)
        self.pass_ = GPT2()
        width = padded(max(n_embd, n_inner), BLOCK)
        n_rows = library().rows_of_a_group()
        of_a_call = ("n_threads", "n_rows", "n_past", "n_last", "sees", "sees_width", "logits", "waited", "took")
        self.scratch = (Scratch * n_threads)()
        for scratch in self.scratch:
            shapes = {
                "prepared": (FEW + BLOCK * chunk + n_rows * padded(n_room + n_embd, BLOCK),),
                **{"normed": (width,), "sums": (chunk, lanes()), "scores": (n_rows, n_room)},
                "path": (padded(n_room + d_head, BLOCK),),
            }
            fill(scratch, {name: aligned(shape, np.float32) for name, shape in shapes.items()}, self.kept)
        fields = {
            **{name: hparams[name] for name in ("n_layer", "n_head", "n_embd", "n_ctx", "n_vocab")},
            **{"n_inner": n_inner, "activation": ACTIVATIONS[hparams.get("activation_function", "gelu_new")]},
            **{"blocks": ctypes.addressof(self.blocks), "wte": params["wte"].T, "wpe": params["wpe"]},
            **{"ln_f": params["ln_f"], "keys": self.keys, "values": self.values, "most_rows": chunk, "x": self.x},
            **{"few": FEW, "scratch": ctypes.addressof(self.scratch)},
            **{"tokens": self.tokens, "positions": self.positions, "ahead": self.ahead},
            "qkv": aligned((chunk, 3 * n_embd), np.float32),
            "a": aligned((chunk, n_embd), np.float32),
            "hidden": aligned((chunk, n_inner), np.float32),
            "prepared": aligned((chunk, width), np.float32),
            **dict.fromkeys(of_a_call, 0),
        }
        fill(self.pass_, fields, self.kept)

    def __call__(self, tokens, n_last: int, positions=None, sees=None) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The tokens come after the first `length`, whose keys and values are known. In a tree, positions [n] and sees
        [n, length + n] say where they stand and which others they see. Then hidden [n_last, n_embd] is what the last
        block gave for the last n_last of them. Raises ValueError for tokens that do not exist or are too many, as
        compiled code looks up whatever it is given. positions and sees are trusted."""
        n, pass_ = len(tokens), self.pass_
        if self.length + n > self.n_ctx:
            raise ValueError(f"{self.length} + {n} tokens: there are {self.n_ctx} positions")
        logits = np.empty((n_last, pass_.n_vocab), np.float32)  # [n_last, n_vocab]
        logits_at = address(logits)
        hidden = []
        with team.lock:
            self.tokens[:n] = tokens
            positions_at = self.positions_at + 8 * self.length
            pass_.sees = 0
            if sees is not None:
                positions = np.ascontiguousarray(positions, np.int64)  # [n]
                sees = np.ascontiguousarray(sees, np.uint8)  # [n, length + n]
                pass_.sees_width = sees.shape[1]
                positions_at = address(positions)
            n_chunks = -(-n // self.chunk)
            for i in range(n_chunks):
                first, end = n * i // n_chunks, n * (i + 1) // n_chunks
                wanted = max(0, end - max(first, n - n_last))  # rows of this chunk whose logits are
                pass_.tokens = self.tokens_at + 8 * first
                pass_.positions = positions_at + 8 * first
                if sees is not None:
                    pass_.sees = address(sees) + first * sees.shape[1]
                pass_.n_rows = end - first
                pass_.n_past = self.length
                pass_.n_last = wanted
                pass_.logits = logits_at + 4 * (end - wanted - (n - n_last)) * logits.shape[1]
                team.run(pass_, self.n_threads)
                hidden.append(self.x[end - first - wanted : end - first].copy())  # [wanted, n_embd]
                self.length += end - first
        self.hidden = hidden[0] if n_chunks == 1 else np.concatenate(hidden)
        return logits

    def output(self, x) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        """The same as PlainPass.output: a pass of no tokens and no blocks, whose last n rows are given."""
        logits = np.empty((len(x), self.pass_.n_vocab), np.float32)  # [n, n_vocab]
        with team.lock:
            pass_ = GPT2.from_buffer_copy(self.pass_)
            pass_.n_rows = pass_.n_layer = 0
            for first in range(0, len(x), self.chunk):
                part = x[first : first + self.chunk]  # [m, n_embd]
                self.x[: len(part)] = part
                pass_.n_last = len(part)
                pass_.logits = address(logits[first:])
                team.run(pass_, self.n_threads)
        return logits

    def move(self, slots: np.ndarray, to: int) -> None:  # [n]
        """The same as KVCache.move."""
        there = np.arange(to, to + len(slots))
        L = lanes()
        self.keys[:, :, there // L, :, there % L] = self.keys[:, :, slots // L, :, slots % L]
        self.values[:, :, :, there] = self.values[:, :, :, slots]

    def layer(self, i: int, n_rows: int) -> float:
        """The seconds that one block takes for so many rows. Of the cache it uses the first slots."""
        pass_ = GPT2.from_buffer_copy(self.pass_)
        pass_.blocks += i * sizeof(Block)
        pass_.n_layer = 1
        pass_.n_rows = min(n_rows, self.n_ctx)
        pass_.n_past = pass_.n_last = 0
        pass_.tokens, pass_.positions = self.tokens_at, self.positions_at
        start = time.perf_counter()
        with team.lock:
            team.run(pass_, self.n_threads)
        return time.perf_counter() - start


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


AHEAD = 8192  # bytes


def choose_ahead(run: CompiledPass, seconds: float = 0.2) -> None:
    """Measure on the model itself whether to ask for memory ahead of the loops, which changes no bit: with some CPUs,
    formats and row counts it is up to a third faster, with others slower. Block after block, so that no cache holds
    them. The smallest time counts, as other programs only add to it."""
    group = library().rows_of_a_group()
    tries = [*product((0, AHEAD), enumerate((1, group // 2, group, 2 * group)))]
    took = defaultdict(list)
    start = time.perf_counter()
    for turn in range(8):
        for number, (ahead, (i, n_rows)) in enumerate(tries):
            run.ahead[i] = ahead
            took[i, ahead].append(run.layer((turn * len(tries) + number) % len(run.blocks), n_rows))
        if turn > 1 and time.perf_counter() - start > seconds:
            break
    run.ahead[:] = [AHEAD if min(took[i, AHEAD]) < min(took[i, 0]) else 0 for i in range(len(run.ahead))]
