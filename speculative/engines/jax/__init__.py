"""The engine that JAX compiles for whatever device there is: the model, the loop on the device, and sharding."""

from plumbing.errors import UserError, first_line

try:
    import jax
    import jax.numpy
    import jax.sharding
except (ImportError, RuntimeError, AttributeError) as error:  # the latter two where jax and jaxlib do not fit together
    remedy = 'pip install -U jax (on an NVIDIA GPU: "jax[cuda12]")'
    raise UserError(f"--engine jax cannot import jax ({first_line(error)}): {remedy}") from error
except ValueError as error:  # a setting of its own in the environment
    raise UserError(f"--engine jax cannot import jax ({first_line(error)}): check what JAX_... is set to") from error

jax.config.update("jax_enable_x64", False)  # float32 stays float32, whatever the environment asks for
