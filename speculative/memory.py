"""Whether the models fit into memory, asked before they are loaded."""

from pathlib import Path

from utils import UserError, parameter_count

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def needed(hparams: dict, dtype: str) -> int:
    """Bytes that a model takes: its weights as stored, a full cache of float32, and two float32 tensors on the way."""
    weights = parameter_count(hparams) * BYTES[dtype]
    cache = 2 * hparams["n_layer"] * hparams["n_ctx"] * hparams["n_embd"] * 4
    largest = max(hparams["n_vocab"], 4 * hparams["n_embd"]) * hparams["n_embd"] * 4
    return weights + cache + 2 * largest


def available() -> int | None:
    """Bytes that programs can still take without swapping; None where the system does not tell (other than Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None


def check(models: list[tuple[dict, str]], free: int | None = None) -> None:
    """models: (hparams, dtype) of each that will be loaded. Raises UserError where they need more than there is."""
    free = available() if free is None else free
    total = sum(needed(hparams, dtype) for hparams, dtype in models)
    if free is None or total <= free:
        return
    fitting = [dtype for dtype in ("bfloat16", "int8") if sum(needed(hparams, dtype) for hparams, _ in models) <= free]
    remedy = f"--dtype {fitting[0]} --draft_dtype {fitting[0]} would fit" if fitting else "take a smaller model"
    raise UserError(f"the models need {total / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: {remedy}")
