"""The compiled pass from Python: the memory it works on, and the call."""

from collections.abc import Callable, Collection

import numpy as np
from numba import typeof, types

from speculative.engines import compiled, formats
from speculative.engines.compiled import CHUNK, GELU, GELU_BY_ERF, JOB, LAYER, PRIVATE, RELU, work
from speculative.engines.cpu import BLOCK, this_cpu
from speculative.engines.kernels import LANES, ROWS, kernels_of
from speculative.engines.packed import PackedWeight, aligned, sparse
from speculative.engines.team import Team
from speculative.engines.tuning import plan_of

# As Python has them: to call them a few times, nothing is to be compiled in every run.
padded = compiled.padded.py_func
padded_to_tiles = compiled.padded_to_tiles.py_func

ACTIVATIONS = {"gelu_new": GELU, "gelu": GELU_BY_ERF, "relu": RELU}  # by their names in config.json


def compile_for(dtypes: Collection[str]) -> None:
    """All that multiplies weights in these formats. (Attention, and whatever is not packed, is in float32.)"""
    for name in {"float32", *dtypes, *(formats.find(dtype).embedding for dtype in dtypes)}:
        kernels_of(name)
    work.compile((types.int64, types.int64, typeof(np.zeros(1, JOB)), types.int64))


def fields_of(weight: PackedWeight) -> dict:
    """The fields of a WEIGHT."""
    kernels = kernels_of(weight.format.name)
    n_in, n_out = weight.shape
    return {
        "tiles": weight.tiles,
        "tile_bytes": weight.tiles[0].nbytes,
        "scale": 0 if weight.scale is None else weight.scale,
        "n_in": n_in,
        "n_out": n_out,
        "n_steps": weight.n_steps,
        "row_bytes": padded(n_in) // BLOCK * weight.format.rows.bytes(this_cpu()),
        "prepare": kernels.prepare.address if kernels.prepare else 0,
        "multiply": kernels.multiply.address,
        "look_up": kernels.look_up.address if kernels.look_up else 0,
        "plan": plan_of(weight.format.name).ctypes.data,
    }


def fill(struct, values, keep):
    """Fills a struct's fields from a dict with the same names; of arrays it takes the addresses, and keeps them alive.

    struct: a record of NumPy; keep: a list that lives as long as the struct.
    """
    todo = [(struct, values)]
    while todo:
        struct, values = todo.pop()
        for name in struct.dtype.names:
            value = values[name]
            if isinstance(value, PackedWeight):
                value = fields_of(value)
            if isinstance(value, dict):
                todo.append((struct[name], value))
            elif isinstance(value, np.ndarray):
                if value.dtype.kind == "f" and value.dtype != np.float32:
                    raise ValueError(f"{name} is {value.dtype}, and compiled code reads float32")
                keep.append(np.ascontiguousarray(value))
                struct[name] = keep[-1].ctypes.data
            else:
                struct[name] = value


class CompiledPass:
    """plain.PlainPass's twin: gpt2 with packed weights, and a cache of its own."""

    def __init__(self, params: dict, hparams: dict, team: Callable[[], Team], chunk: int = CHUNK):
        """team() gives the threads of the next call. chunk: rows in one of them at most."""
        self.chunk = chunk
        n_embd, n_layer, n_head = (hparams[name] for name in ("n_embd", "n_layer", "n_head"))
        n_room = padded_to_tiles(hparams["n_ctx"])
        d_head = n_embd // n_head
        n_inner = hparams.get("n_inner", 4 * n_embd)
        self.width = padded(max(n_embd, n_inner))  # of what a product reads
        self.n_vocab = hparams["n_vocab"]
        self.n_ctx = hparams["n_ctx"]
        self.n_embd = n_embd
        self.length = 0
        self.team = team
        self.kept = []
        blocks = np.zeros(n_layer, LAYER)
        for struct, block in zip(blocks, params["blocks"], strict=True):
            fill(struct, block, self.kept)
        no_norm = {"g": 0, "b": 0}
        self.x = aligned((self.chunk, padded(n_embd)), np.float32)
        self.buffers = {
            "x": self.x,
            "qkv": aligned((chunk, padded(3 * n_embd)), np.float32),
            "a": aligned((chunk, padded(n_embd)), np.float32),
            "hidden": aligned((chunk, padded(n_inner)), np.float32),
            "prepared": aligned((chunk, self.width), np.float32),
            "keys": sparse((n_layer, n_head, n_room, d_head), np.float32),
            "values": sparse((n_layer, n_head, hparams["n_ctx"], padded_to_tiles(d_head)), np.float32),
        }
        self.job = np.zeros(1, JOB)
        of_a_call = ("tokens", "positions", "sees", "sees_width", "n_rows", "n_past", "n_last", "logits")
        fields = {
            **{name: hparams[name] for name in ("n_layer", "n_head", "n_embd", "n_ctx")},
            **{"blocks": blocks, "wte": params["wte"].T, "wpe": params["wpe"], "ln_f": params["ln_f"]},
            "activation": ACTIVATIONS[hparams.get("activation_function", "gelu_new")],
            **{"no_norm": no_norm, "multiply": kernels_of("float32").multiply.address, **self.buffers},
            "plan": plan_of("float32"),
            **dict.fromkeys((*of_a_call, "n_threads", "privates"), 0),
        }
        fill(self.job[0], fields, self.kept)
        self.n_threads = 0

    def share(self, n_threads: int) -> None:
        """Gives each thread memory of its own."""
        n_room = padded_to_tiles(self.n_ctx)
        shapes = {
            "sums": (self.chunk, LANES),
            "row": (self.width,),
            "prepared": (self.chunk, self.width),
            "queries": (ROWS, self.n_embd),
            "scores": (ROWS, n_room),
            "path": (n_room,),
            "totals": (ROWS,),
        }
        privates = np.zeros(n_threads, PRIVATE)
        self.kept_private = [privates]
        for private in privates:
            for name, shape in shapes.items():
                self.kept_private.append(aligned(shape, np.float32))
                private[name] = self.kept_private[-1].ctypes.data
        self.job["privates"] = privates.ctypes.data
        self.job["n_threads"] = n_threads
        self.n_threads = n_threads

    def ready_team(self) -> Team:
        """The threads of the next call, each with memory of its own."""
        team = self.team()
        if team.n_threads != self.n_threads:
            self.share(team.n_threads)
        return team

    def move(self, slots: np.ndarray, to: int) -> None:  # [n]
        """The same as KVCache.move."""
        keys = self.buffers["keys"]
        values = self.buffers["values"]
        keys = keys.reshape(*keys.shape[:2], -1, keys.shape[3], LANES)  # [n_layer, n_head, n_tiles, d_head, LANES]
        values = values.reshape(
            *values.shape[:2], -1, values.shape[2], LANES
        )  # [n_layer, n_head, d_tiles, n_ctx, LANES]
        there = np.arange(to, to + len(slots))
        keys[:, :, there // LANES, :, there % LANES] = keys[:, :, slots // LANES, :, slots % LANES]
        values[:, :, :, there] = values[:, :, :, slots]

    def output(self, x) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        """The same as PlainPass.output: a pass of no tokens and no blocks, whose last n rows are at hand."""
        team = self.ready_team()
        n = len(x)
        self.x[:n, : self.n_embd] = x
        logits = np.empty((n, self.n_vocab), np.float32)  # [n, n_vocab]
        job = self.job.copy()  # the next pass needs the other one as it is
        job["n_rows"] = 0
        job["n_layer"] = 0
        job["n_last"] = n
        job["logits"] = logits.ctypes.data
        job["x"] = self.x.ctypes.data + n * self.x.strides[0]  # where such a pass ends
        team.run(job)
        return logits

    def __call__(self, tokens, n_last: int, positions=None, sees=None) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The tokens come after the first `length`, whose keys and values are known. In a tree, positions [n] and sees
        [n, length + n] say where they stand and which others they see. Then hidden [n_last, n_embd] is what the last
        block gave for the last n_last of them. Raises UserError where a thread dies, and ValueError for tokens that
        are none or too many, as compiled code looks up whatever it is given. positions and sees are trusted."""
        team = self.ready_team()
        tokens = np.ascontiguousarray(tokens, np.int64)  # [n]
        if self.length + len(tokens) > self.n_ctx or np.any((tokens < 0) | (tokens >= self.n_vocab)):
            raise ValueError(
                f"there are {self.n_ctx} positions and {self.n_vocab} tokens: one was asked for that is not there"
            )
        positions = np.arange(self.length, self.length + len(tokens)) if positions is None else positions  # [n]
        positions = np.ascontiguousarray(positions, np.int64)  # [n]
        sees = None if sees is None else np.ascontiguousarray(sees, np.uint8)  # [n, length + n]
        logits = np.empty((n_last, self.n_vocab), np.float32)  # [n_last, n_vocab]
        self.hidden = np.empty((n_last, self.n_embd), np.float32)  # [n_last, n_embd]
        n_before = len(tokens) - n_last  # tokens whose logits are not wanted
        n_chunks = -(-len(tokens) // self.chunk)
        job = self.job[0]
        job["sees"] = 0
        for chunk in range(n_chunks):
            first = len(tokens) * chunk // n_chunks
            end = len(tokens) * (chunk + 1) // n_chunks
            wanted = slice(max(0, first - n_before), max(0, end - n_before))
            job["tokens"] = tokens[first:].ctypes.data
            job["positions"] = positions[first:].ctypes.data
            if sees is not None:
                job["sees"] = sees[first:].ctypes.data
                job["sees_width"] = sees.shape[1]
            job["n_rows"] = end - first
            job["n_past"] = self.length
            job["n_last"] = wanted.stop - wanted.start
            job["logits"] = logits[wanted].ctypes.data
            team.run(self.job)
            self.hidden[wanted] = self.x[end - first - job["n_last"] : end - first, : self.n_embd]
            self.length += end - first
        return logits
