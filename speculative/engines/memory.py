"""Memory: a check before the models are loaded that they fit, and the peak that was taken in the end."""

import ctypes
from pathlib import Path

from speculative.checkpoints.official import HPARAMS
from speculative.checkpoints.tensors import checkpoint_shapes, parameter_count
from speculative.engines.formats import FORMATS, model_bytes
from speculative.engines.system import groups, lines, sysctl
from speculative.support.errors import UserError
from speculative.support.files import in_words

SAVING = tuple(FORMATS)[1:]  # formats that take less memory than float32, the largest first


def needed(hparams: dict, dtype: str, n_cached: int | None = None) -> int:
    """Bytes that a model takes: its weights as stored, a cache of float32 for n_cached tokens (default: all of one
    context), and two float32 tensors on the way."""
    n_embd = hparams["n_embd"]
    n_cached = n_cached or hparams["n_ctx"]
    n_inner = hparams.get("n_inner", 4 * n_embd)
    shapes = checkpoint_shapes(hparams)
    weights = model_bytes(dtype, shapes)
    token = 2 * hparams["n_layer"] * n_embd * 4  # of keys and values
    longest = max(hparams["n_vocab"], n_inner)
    tensor = longest * n_embd * 4  # the largest
    return weights + n_cached * token + 2 * tensor


def read_bytes(path: str | Path, label: str = "", unit: int = 1) -> int | None:
    """The number after a label at the beginning of a line, in bytes; None if there is none."""
    words = [line.removeprefix(label).split()[0] for line in lines(path) if line.startswith(label)]
    return unit * int(words[0]) if words and words[0].isdecimal() else None


def available() -> int | None:
    """Bytes that this program can still take without swapping, within the limits of its container and its shell; None
    if the system does not tell."""
    found = [read_bytes("proc/meminfo", "MemAvailable:", 1024)]
    if sysctl("hw.memsize"):
        found.append(int(sysctl("hw.memsize")) * 3 // 4)  # macOS does not tell what is free: it compresses
    if hasattr(ctypes, "windll"):
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its size and the load, total memory, free memory, ...
        ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        found.append(status[2])
    limits = [(read_bytes("proc/self/limits", "Max address space"), read_bytes("proc/self/status", "VmSize:", 1024))]
    for folder, is_first in groups("memory"):
        files = ("memory.limit_in_bytes", "total_rss ") if is_first else ("memory.max", "anon ")
        limits.append((read_bytes(folder / files[0]), read_bytes(folder / "memory.stat", files[1])))
    found += [max(0, limit - taken) for limit, taken in limits if limit is not None and taken is not None]
    return min((n for n in found if n is not None), default=None)


def peak() -> int | None:
    """The most bytes that this process has held so far; None if the system does not tell."""
    return read_bytes("proc/self/status", "VmHWM:", 1024)


def check(models: list[tuple[dict, str]], free: int | None, n_cached: int | None = None, saving=SAVING) -> None:
    """Raise UserError if models (hparams, dtype), the target first, need more bytes than are free, and say what would
    fit: the same in one of the formats that save memory, else a smaller target. free: None if unknown, which passes."""
    total = sum(needed(hparams, dtype, n_cached) for hparams, dtype in models)
    if free is None or total <= free:
        return
    hparams = [hparams for hparams, _ in models]
    remedies = [(f"--dtype {dtype}", dtype, hparams) for dtype in saving]
    smallest = ["float32", *saving][-1]
    for size, smaller in reversed(HPARAMS.items()):
        if parameter_count(smaller) < parameter_count(hparams[0]):
            flags = f"--target_model_size {size}" + (f" --dtype {smallest}" if saving else "")
            remedies.append((flags, smallest, [smaller, *hparams[1:]]))
    for flags, dtype, instead in remedies:
        if sum(needed(model, dtype, n_cached) for model in instead) <= free:
            remedy = flags + (f" --draft_dtype {dtype}" if models[1:] and saving else "") + " would fit"
            break
    else:
        remedy = "take smaller models" + (" or a smaller --batch" if n_cached else "")
    raise UserError(f"the models need {in_words(total)} of memory, and {in_words(free)} are free: {remedy}")
