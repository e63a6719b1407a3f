"""The engine that JAX compiles for any device: the model, the loop on the device, and several devices."""

from speculative.support.errors import UserError, first_line, install

try:
    import jax
    import jax.numpy
    import jax.sharding
except (ImportError, RuntimeError, AttributeError, ValueError) as error:  # or jaxlib is of another version
    remedy = f'{install("jax")} (on an NVIDIA GPU also "jax[cuda12]")'
    raise UserError(f"--engine jax cannot import jax ({first_line(error)}): {remedy}") from error

jax.config.update("jax_enable_x64", False)  # float32 stays float32, whatever the environment asks for
