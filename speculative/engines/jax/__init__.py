"""The engine that JAX compiles for whatever device there is: the model, the loop on the device, and sharding."""

import os
import re
import subprocess
import sys

from speculative.support.errors import UserError, first_line

try:
    import jax
    import jax.numpy
    import jax.sharding
except (ImportError, RuntimeError, AttributeError) as error:  # the latter two where jax and jaxlib do not fit together
    remedy = 'pip install -U jax (on an NVIDIA GPU: "jax[cuda12]")'
    raise UserError(f"--engine jax cannot import jax ({first_line(error)}): {remedy}") from error
except ValueError as error:  # a setting of its own in the environment
    raise UserError(f"--engine jax cannot import jax ({first_line(error)}): check what JAX_... is set to") from error


def check_xla_flags() -> None:
    """Raises UserError where XLA cannot read its flags. Since XLA itself would end the process, another one tries."""
    if not os.environ.get("XLA_FLAGS"):
        return
    command = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.CompileOptions()"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    why = re.search(r"\.cc:[0-9]+\] (.*[Ff]lag.*)", done.stderr)
    if done.returncode and why:
        raise UserError(f"XLA_FLAGS={os.environ['XLA_FLAGS']:.150} cannot be used: {why[1]:.150}")


check_xla_flags()
jax.config.update("jax_enable_x64", False)  # float32 stays float32, whatever the environment asks for
