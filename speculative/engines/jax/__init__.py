"""The engine that JAX compiles for any device. The files in the order of reading:

forward, model    gpt2.py with jax.numpy in NumPy's place; a network on the device, with its cache
sampling          filters, draws and rules of acceptance, for arrays on the device
device_decoder    both algorithms as one compiled loop
device_loops      the decoders of a session: compiling, running, the times of calls, the steps that the host reads
sharding          several devices
compilation       the cache of programs; several processes
engine            the methods of the contract
"""

from speculative.support.errors import Option, UserError, first_line, install

try:
    import jax
    import jax.numpy
    import jax.sharding
except (ImportError, RuntimeError, AttributeError, ValueError) as error:  # or jaxlib is of another version
    remedy = f'{install("jax")} (on an NVIDIA GPU also "jax[cuda12]")'
    raise UserError(Option("engine"), f" jax cannot import jax ({first_line(error)}): {remedy}") from error

jax.config.update("jax_enable_x64", False)  # float32 stays float32, whatever the environment asks for
