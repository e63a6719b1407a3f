"""Which forward pass decodes: engine.c if it can be compiled, else gpt2.py; in how many threads."""

from collections.abc import Callable

from speculative.engines.library import library, n_cores
from speculative.engines.model import n_bytes
from speculative.engines.plain import PlainPass
from speculative.support.errors import UserError

n_threads = None  # at most, in a forward pass; None: one for each core


def new_pass(params: dict, hparams: dict) -> Callable:
    """A forward pass with a cache of its own: compiled, or gpt2.py if there is no compiler."""
    if not library():
        return PlainPass(params, hparams)
    from speculative.engines.compiled import SHARE, CompiledPass

    return CompiledPass(params, hparams, min(n_threads or n_cores(), 1 + n_bytes(params) // SHARE))


def tune(params: dict, hparams: dict) -> None:
    """Measure how far ahead to ask for these weights on this CPU, in a fifth of a second."""
    if library() and params["blocks"]:
        from speculative.engines.compiled import choose_ahead

        choose_ahead(new_pass(params, hparams))


def choices(params: dict) -> tuple[str, str]:
    """Return a model's weight format, and its threads and prefetching in words."""
    if not library():
        return "NumPy", "gpt2.py itself"
    format = params["blocks"][0]["mlp"]["c_fc"]["w"].dtype if params["blocks"] else params["wte"].T.dtype
    asks = [name for name, ahead in zip(("1 row", "few", "a group", "many"), params["wte"].ahead, strict=True) if ahead]
    return format, f"{n_threads or n_cores()} threads at most; memory asked for ahead: {', '.join(asks) or 'never'}"


def set_threads(n: int | None = None) -> None:
    """Lets the forward pass take n threads at most; None: one for each core. Raises UserError if there are not so many
    cores."""
    global n_threads
    n = n or n_cores()
    if not 1 <= n <= n_cores():
        raise UserError(f"{n} threads: this machine has cores for 1 to {n_cores()}")
    n_threads = n
