"""--engine: the one place that chooses among the engines."""

import os
import sys
from typing import NamedTuple

from speculative.engines.c.engine import CEngine
from speculative.engines.c.library import compiles
from speculative.engines.contract import Engine
from speculative.engines.plain import NumpyEngine
from speculative.support.errors import UserError


def choose(name: str) -> str:
    """Return the engine that will run: for "auto" jax if it is installed and sees an accelerator, else c; for "c" numpy
    if nothing compiles engine.c, which compiles() says in a line. JAX first joins other processes. Raises UserError."""
    if name in ("jax", "auto"):
        try:
            from speculative.engines.jax.compilation import accelerator, start_processes

            start_processes()
            if name == "jax" or accelerator():
                return "jax"
        except UserError:  # JAX cannot be imported
            if name == "jax":
                raise
    return "numpy" if name == "numpy" or not compiles() else "c"


def make_engine(
    name: str, threads: int | None = None, mesh: int = 1, data_parallel: int = 1, quiet: bool = False
) -> Engine:
    """Return the engine that choose(name) names. quiet: print nothing about JAX's compiling. Raises UserError."""
    chosen = choose(name)
    if chosen == "jax":
        from speculative.engines.jax.engine import JaxEngine

        return JaxEngine(mesh, data_parallel, quiet)
    return CEngine(threads) if chosen == "c" else NumpyEngine()


class Process(NamedTuple):
    """One of the processes that compute the same."""

    number: int
    n_processes: int


def process(name: str = "") -> Process:
    """Return this process's number, and how many processes compute the same. Only the first, 0, prints and writes
    files, and several must not decide anything by measured times. name: of the engine that is asked for, if none was
    made yet: JAX then joins the others. Raises UserError."""
    if not os.environ.get("JAX_COORDINATOR_ADDRESS"):
        return Process(0, 1)
    if name in ("jax", "auto"):
        choose(name)
    jax = sys.modules.get("jax")
    return Process(jax.process_index(), jax.process_count()) if jax else Process(0, 1)
