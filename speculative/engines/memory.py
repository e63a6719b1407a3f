"""Memory: a check before the models are loaded that they fit, and the peak that was taken in the end."""

import ctypes
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from speculative.checkpoints.names import HPARAMS
from speculative.checkpoints.weights import checkpoint_shapes, parameter_count
from speculative.engines.formats import FORMATS, model_bytes
from speculative.engines.system import groups, lines, sysctl
from speculative.support.errors import Option, UserError
from speculative.support.files import bytes_in_words

OPTIONS = {"target": Option("dtype"), "draft": Option("draft_dtype")}  # by role, the option that names a model's format
SAVING = tuple(FORMATS)[1:]  # formats that take less memory than float32, the largest first
# The limit and the label of the memory taken, in the files of a control group of version 2 and of version 1.
GROUP_FILES = (("memory.max", "anon "), ("memory.limit_in_bytes", "total_rss "))


class SizedModel(NamedTuple):
    """A model that is to be loaded."""

    role: str  # see load.ModelSpec; that of a copy is its format
    hparams: dict
    dtype: str  # the format in which the engine holds its weights
    n_cached: int | None = None  # tokens of a cache of its own; None: a whole context


def needed(models: Iterable[SizedModel]) -> int:
    """Return the bytes that models take: of each its weights as stored, a cache of float32, and two float32 tensors on
    the way."""
    total = 0
    for _, hparams, dtype, n_cached in models:
        shapes = checkpoint_shapes(hparams)
        largest = max(map(math.prod, shapes.values()))
        n_tokens = hparams["n_ctx"] if n_cached is None else n_cached
        total += model_bytes(dtype, shapes) + cache_bytes(hparams, n_tokens) + 2 * 4 * largest
    return total


def cache_bytes(hparams: dict, n_tokens: int) -> int:
    """Return the bytes of the keys and values of so many tokens, in float32."""
    return 2 * 4 * n_tokens * hparams["n_layer"] * hparams["n_embd"]


def check_batch(models: Iterable[dict], n_texts: int, n_tokens: int, free: int | None) -> None:
    """Raise UserError if the caches of texts that are decoded together need more bytes than are free. models: the
    hparams of those that have a cache for each text. n_tokens: of the longest text."""
    of_text = sum(cache_bytes(hparams, n_tokens) for hparams in models)
    of_all = n_texts * of_text
    if free is None or of_all <= free:
        return
    n_fitting = free // of_text
    fits = f"{n_fitting} texts at a time would fit" if n_fitting else "take shorter texts"
    raise UserError(
        f"the caches of {n_texts} texts need {bytes_in_words(of_all)} of memory, ",
        f"and {bytes_in_words(free)} are free: {fits}",
    )


def read_bytes(path: str | Path, label: str = "", unit: int = 1) -> int | None:
    """The number after a label at the beginning of a line, in bytes; None if there is none."""
    words = [line.removeprefix(label).split()[0] for line in lines(path) if line.startswith(label)]
    return unit * int(words[0]) if words and words[0].isdecimal() else None


def available() -> int | None:
    """Bytes that this program can still take without swapping, within the limits of its container and its shell; None
    if the system does not tell."""
    free = [read_bytes("proc/meminfo", "MemAvailable:", 1024)]
    if sysctl("hw.memsize"):
        free.append(int(sysctl("hw.memsize")) * 3 // 4)  # macOS does not tell how much is free: it compresses
    if hasattr(ctypes, "windll"):
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its size and the load, total memory, free memory, ...
        ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        free.append(status[2])
    limits = [(read_bytes("proc/self/limits", "Max address space"), read_bytes("proc/self/status", "VmSize:", 1024))]
    for folder in groups("memory"):
        for file, label in GROUP_FILES:
            limits.append((read_bytes(folder / file), read_bytes(folder / "memory.stat", label)))
    free += [max(0, limit - taken) for limit, taken in limits if limit is not None and taken is not None]
    return min([n for n in free if n is not None], default=None)


def peak() -> int | None:
    """The most bytes that this process has held so far; None if the system does not tell."""
    return read_bytes("proc/self/status", "VmHWM:", 1024)


def check(models: Sequence[SizedModel], free: int | None, saving: Sequence[str] = SAVING) -> None:
    """Raise UserError if models need more bytes than are free, and say what would fit. saving: the formats that save
    memory. free: None if unknown, which passes."""
    total = needed(models)
    if free is not None and total > free:
        sizes = f"the models need {bytes_in_words(total)} of memory, and {bytes_in_words(free)} are free"
        raise UserError(sizes, ": ", *remedy(models, free, saving))


def remedy(models: Sequence[SizedModel], free: int, saving: Sequence[str]) -> list[str]:
    """Return what would fit, in parts of a sentence: these models in a format that saves memory, or a smaller target.

    A target that is loaded already is not among the models, and no other is proposed. A copy that takes no fewer bytes
    than its target is refused, so its target gets no such format.
    """
    by_role = {model.role: model for model in models}
    options = [option for role, option in OPTIONS.items() if role in by_role]
    copies = [FORMATS[role].weight_bytes for role in by_role if role in FORMATS]
    least = max(copies, default=0)
    flags: list[str] = []
    for dtype in saving if options else ():
        if FORMATS[dtype].weight_bytes > least:
            flags = [part for option in options for part in (option, f" {dtype} ")]
            models = [model if model.role in FORMATS else model._replace(dtype=dtype) for model in models]
            if needed(models) <= free:
                return [*flags, "would fit"]
    if "target" in by_role:
        n_parameters = parameter_count(by_role["target"].hparams)
        for size, hparams in reversed(HPARAMS.items()):
            smaller = [model if model.role == "draft" else model._replace(hparams=hparams) for model in models]
            if parameter_count(hparams) < n_parameters and needed(smaller) <= free:
                return [Option("target_model_size"), f" {size} ", *flags, "would fit"]
    in_batch = any(model.n_cached for model in models)
    return ["take smaller models", *([" or a smaller ", Option("batch")] if in_batch else [])]
