"""Memory: a check before the models are loaded that they fit, and the peak that was taken in the end."""

import contextlib
from pathlib import Path

from speculative.checkpoints.official import HPARAMS
from speculative.checkpoints.tensors import checkpoint_shapes, parameter_count
from speculative.engines import formats
from speculative.support.errors import UserError


def needed(hparams: dict, dtype: str, n_cached: int | None = None) -> int:
    """Bytes that a model takes: its weights as stored, a cache of float32 for n_cached tokens (default: all of one
    context), and two float32 tensors on the way."""
    weights = formats.model_bytes(dtype, checkpoint_shapes(hparams))
    cache = 2 * hparams["n_layer"] * (n_cached or hparams["n_ctx"]) * hparams["n_embd"] * 4
    n_inner = hparams.get("n_inner", 4 * hparams["n_embd"])
    largest = max(hparams["n_vocab"], n_inner) * hparams["n_embd"] * 4
    return weights + cache + 2 * largest


def available(
    meminfo: str = "/proc/meminfo", cgroup: str = "/sys/fs/cgroup", own_cgroup: str = "/proc/self/cgroup"
) -> int | None:
    """Bytes that this program can still take without swapping, within the limits of its container; None
    where the system does not tell (other than Linux)."""
    free = read_number(meminfo, "MemAvailable:")
    found = [free * 1024] if free is not None else []
    for folder in {Path(cgroup), *cgroup_folders(Path(cgroup), own_cgroup)}:
        for name, label in (("memory.max", "anon "), ("memory.limit_in_bytes", "total_rss ")):  # of version 2; of 1
            limit = read_number(folder / name)
            taken = read_number(folder / "memory.stat", label)
            found += [max(0, limit - taken)] if limit is not None and taken is not None else []
    return min(found, default=None)


def cgroup_folders(root: Path, own_cgroup: str) -> list[Path]:
    """The folders with the limits of this process's control group, and of the groups around it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(own_cgroup).read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers in ("", "memory"):  # where both are, that of version 1 comes first
                folder = root / controllers / name.lstrip("/")
                return [folder, *folder.parents]
    return []


def peak(status: str = "/proc/self/status") -> int | None:
    """The most bytes that this process has held so far; None where the system does not tell."""
    kilobytes = read_number(status, "VmHWM:")
    return None if kilobytes is None else kilobytes * 1024


def read_number(path: str | Path, label: str = "") -> int | None:
    """The number after a label at the beginning of a line; None where there is none."""
    try:
        lines = Path(path).read_text().splitlines()
        return next(int(line.removeprefix(label).split()[0]) for line in lines if line.startswith(label))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def check(models: list[tuple[dict, str]], free: int | None, n_cached: int | None = None, jax: bool = False) -> None:
    """models: (hparams, dtype) of the target, and of the draft where there is one. Raises UserError where they need
    more than the bytes that are free, and says what would fit: the same models in fewer bytes, of a format that JAX
    takes where it is the engine, else a smaller target. free: None where nobody knows, and then they are let in."""
    total = sum(needed(hparams, dtype, n_cached) for hparams, dtype in models)
    if free is None or total <= free:
        return
    hparams = [hparams for hparams, _ in models]
    smaller_formats = formats.by_size(jax)[1:]
    smallest = smaller_formats[-1]
    remedies = [(f"--dtype {dtype}", dtype, hparams) for dtype in smaller_formats]
    for size, smaller in reversed(HPARAMS.items()):
        if parameter_count(smaller) < parameter_count(hparams[0]):
            remedies.append((f"--target_model_size {size} --dtype {smallest}", smallest, [smaller, *hparams[1:]]))
    for flags, dtype, instead in remedies:
        if sum(needed(model, dtype, n_cached) for model in instead) <= free:
            remedy = flags + (f" --draft_dtype {dtype}" if models[1:] else "") + " would fit"
            break
    else:
        remedy = "take smaller models" + (" or a smaller --batch" if n_cached else "")
    raise UserError(f"the models need {in_words(total)} of memory, and {in_words(free)} are free: {remedy}")


def in_words(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.0f} MB"
