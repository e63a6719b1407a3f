"""Memory: a check before the models are loaded that they fit, and the peak that was taken in the end."""

import ctypes
import math
from pathlib import Path

from speculative.checkpoints.official import HPARAMS
from speculative.checkpoints.tensors import checkpoint_shapes, parameter_count
from speculative.engines.formats import FORMATS, model_bytes
from speculative.engines.system import groups, lines, sysctl
from speculative.support.errors import UserError
from speculative.support.files import in_words

SAVING = tuple(FORMATS)[1:]  # formats that take less memory than float32, the largest first
# The limit and the label of the memory taken, in the files of a control group of version 2 and of version 1.
GROUP_FILES = (("memory.max", "anon "), ("memory.limit_in_bytes", "total_rss "))


def needed(hparams: dict, dtype: str, n_cached: int | None = None) -> int:
    """Bytes that a model takes: its weights as stored, a cache of float32 for n_cached tokens (default: all of one
    context), and two float32 tensors on the way."""
    shapes = checkpoint_shapes(hparams)
    largest = 4 * max(math.prod(shape) for shape in shapes.values())
    token = 4 * 2 * hparams["n_layer"] * hparams["n_embd"]  # keys and values
    return model_bytes(dtype, shapes) + (n_cached or hparams["n_ctx"]) * token + 2 * largest


def read_bytes(path: str | Path, label: str = "", unit: int = 1) -> int | None:
    """The number after a label at the beginning of a line, in bytes; None if there is none."""
    words = [line.removeprefix(label).split()[0] for line in lines(path) if line.startswith(label)]
    return unit * int(words[0]) if words and words[0].isdecimal() else None


def available() -> int | None:
    """Bytes that this program can still take without swapping, within the limits of its container and its shell; None
    if the system does not tell."""
    free = [read_bytes("proc/meminfo", "MemAvailable:", 1024)]
    if sysctl("hw.memsize"):
        free.append(int(sysctl("hw.memsize")) * 3 // 4)  # macOS does not tell what is free: it compresses
    if hasattr(ctypes, "windll"):
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its size and the load, total memory, free memory, ...
        ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        free.append(status[2])
    limits = [(read_bytes("proc/self/limits", "Max address space"), read_bytes("proc/self/status", "VmSize:", 1024))]
    for folder in groups("memory"):
        for file, label in GROUP_FILES:
            limits.append((read_bytes(folder / file), read_bytes(folder / "memory.stat", label)))
    free += [max(0, limit - taken) for limit, taken in limits if limit is not None and taken is not None]
    return min((n for n in free if n is not None), default=None)


def peak() -> int | None:
    """The most bytes that this process has held so far; None if the system does not tell."""
    return read_bytes("proc/self/status", "VmHWM:", 1024)


def check(models: list[tuple[dict, str]], free: int | None, n_cached: int | None = None, saving=SAVING) -> None:
    """Raise UserError if models (hparams, dtype), the target first, need more bytes than are free, and say what would
    fit. saving: the formats that save memory. free: None if unknown, which passes."""
    total = sum(needed(hparams, dtype, n_cached) for hparams, dtype in models)
    if free is not None and total > free:
        sizes = f"the models need {in_words(total)} of memory, and {in_words(free)} are free"
        raise UserError(f"{sizes}: {remedy([hparams for hparams, _ in models], free, n_cached, saving)}")


def remedy(models: list[dict], free: int, n_cached: int | None, saving) -> str:
    """Return what would fit: the same models in one of the formats that save memory, else a smaller target."""

    def fit(models, dtype):
        return sum(needed(hparams, dtype, n_cached) for hparams in models) <= free

    def flags(dtype):
        return f"--dtype {dtype} --draft_dtype {dtype}" if drafts else f"--dtype {dtype}"

    target, *drafts = models
    for dtype in saving:
        if fit(models, dtype):
            return f"{flags(dtype)} would fit"
    smallest = ["float32", *saving][-1]
    for size, smaller in reversed(HPARAMS.items()):
        if parameter_count(smaller) < parameter_count(target) and fit([smaller, *drafts], smallest):
            target_flag = f"--target_model_size {size}"
            return f"{target_flag} {flags(smallest)} would fit" if saving else f"{target_flag} would fit"
    return "take smaller models" + (" or a smaller --batch" if n_cached else "")
