"""Several processes that compute the same. JAX itself ends all of them if one of them stops (its heartbeat)."""

import os
from typing import Any

import jax

from speculative.engines.jax.model import devices
from speculative.support.errors import UserError, first_line


def start_processes() -> None:
    """Join the other processes if the environment names any, before JAX is asked for its devices. Raises UserError.

    JAX_COORDINATOR_ADDRESS is host:port of the first process. JAX_NUM_PROCESSES and JAX_PROCESS_ID, or the variables of
    Slurm, Open MPI or Kubernetes, say how many there are and which one this is. All have to run the same command.
    """
    if not os.environ.get("JAX_COORDINATOR_ADDRESS"):
        return
    try:
        n_processes, process_id = (
            int(os.environ[name]) if name in os.environ else None for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
        )
        # Else JAX would take SIGTERM for a notice that the machine is needed elsewhere, and go on.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(num_processes=n_processes, process_id=process_id)
    except (RuntimeError, ValueError) as error:
        check = "check JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        raise UserError(f"cannot join the other processes ({first_line(error)}): {check}") from error


def accelerator() -> Any:
    """Return JAX's first device if it computes elsewhere than on this CPU, in a memory of its own; else None."""
    try:
        device = devices(1)[0]
    except UserError:
        return None
    return None if device.platform == "cpu" else device
