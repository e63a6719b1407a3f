"""Which forward pass decodes: the compiled one where numba is installed, else gpt2.py; in how many threads."""

import functools
import importlib
import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from speculative.engines import cpu
from speculative.engines.model import n_bytes
from speculative.engines.plain import PlainPass
from speculative.support.compiling import announced, kept
from speculative.support.errors import UserError
from speculative.support.limits import most_threads

FORWARD_PASS = "the forward pass"

n_threads = None  # at most, in a forward pass; None: one for each core


def compiled_pass() -> ModuleType | None:
    """The module of that name, or None where numba is not installed."""
    return import_compiled_pass() if cpu.has_numba() else None


@functools.cache
def import_compiled_pass() -> ModuleType:
    return kept(lambda: importlib.import_module("speculative.engines.compiled_pass"))


@functools.cache
def say_numpy_multiplies() -> None:
    print(
        "numba is not installed, or switched off, so NumPy multiplies: K+1 rows cost several times what one costs, and "
        "greedy texts may differ by rounding. pip install numba helps",
        file=sys.stderr,
    )


def new_pass(params: dict, hparams: dict) -> Callable:
    """A forward pass with a cache of its own: compiled, or gpt2.py where numba is not installed."""
    compiled = compiled_pass()
    if not compiled:
        return PlainPass(params, hparams)
    from speculative.engines import threads

    format = format_of(params)
    size = n_bytes(params)
    with announced(FORWARD_PASS):
        return compiled.CompiledPass(params, hparams, lambda: threads.choose_team(threads_of(format, size)))


def threads_of(format: str, n_bytes: int) -> int:
    """The number of threads of the next pass of a model with n_bytes of weights."""
    from speculative.engines import threads

    return threads.threads_of(format, n_bytes, n_threads or most_threads())


def tune(params: dict, hparams: dict, **how: Any) -> Any:
    """Measures what is fastest on this CPU, once a week. For a model that no cache holds it is how memory is asked for
    (a second), for a smaller one the number of threads (a tenth) -> tuning.Tuned, or None where there is nothing to
    choose. how: arguments of tuning.tune."""
    if not compiled_pass() or not params["blocks"]:
        return None
    from speculative.engines import threads, tuning

    format = format_of(params)
    size = n_bytes(params)
    most = n_threads or most_threads()
    if size > cpu.cache_bytes():
        return tuning.tune(new_pass(params, hparams), format, n_bytes(params["blocks"][0]), **how)
    if most > 1:
        return threads.tune_threads(new_pass(params, hparams), format, size, most, **how)
    return None


def format_of(params: dict) -> str:
    """The weight format of a model's matrices."""
    return params["blocks"][0]["mlp"]["c_fc"]["w"].dtype if params["blocks"] else params["wte"].T.dtype


def choices(params: dict) -> tuple[str, str]:
    """A model's weight format, and what its kernels go by."""
    if not compiled_pass():
        return "NumPy", "numba is not installed, or switched off"
    from speculative.engines import tuning

    n = threads_of(format_of(params), n_bytes(params))
    return format_of(params), f"{n} thread{'s' if n > 1 else ''}; {tuning.described(format_of(params))}"


def warm_up(dtypes: Collection[str] = ()) -> None:
    """Compiles the forward pass for weights in these formats, or loads it from the disk: no timed part has to then."""
    compiled = compiled_pass()
    if not compiled:
        return say_numpy_multiplies()
    with announced(FORWARD_PASS):
        compiled.compile_for(dtypes)


def set_threads(n: int | None = None) -> None:
    """Lets the forward pass take n threads at most (a small model takes fewer: threads.py), and NumPy's BLAS n; None:
    one for each core. Raises UserError where there are not so many cores."""
    import threadpoolctl

    global n_threads
    n = n or most_threads()
    if not 1 <= n <= most_threads():
        raise UserError(f"{n} threads: this machine has cores for 1 to {most_threads()}")
    n_threads = n
    threadpoolctl.threadpool_limits(n)
