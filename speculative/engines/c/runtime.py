"""Which forward pass decodes, engine.c or gpt2.py, in how many threads; and from parameters to networks."""

import os
from collections.abc import Callable, Sequence

import numpy as np

from speculative.engines.c import forward
from speculative.engines.c.forward import CompiledPass
from speculative.engines.c.library import library
from speculative.engines.c.packing import PackedWeight, pack, packer
from speculative.engines.c.tree_cache import TreeNetwork
from speculative.engines.model import LOCK, CachedNetwork, Model, n_bytes
from speculative.engines.plain import PlainPass
from speculative.engines.system import n_cores
from speculative.support.errors import UserError

THREAD_BYTES = 2**20  # of weights that are worth a thread, which must meet the others
n_threads = None  # at most, in a forward pass; None: one for each core


def set_threads(n: int | None = None) -> None:
    """Let the forward pass take n threads at most; None: one for each core. Raises UserError if there are not so many
    cores."""
    global n_threads
    n = n or n_cores()
    if not 1 <= n <= n_cores():
        raise UserError(f"{n} threads: 1 to {n_cores()} can run here, by its cores, its quota and OMP_NUM_THREADS")
    n_threads = n


def in_forked_child() -> None:
    """Decode without the parent's threads: a fork copies none but the one that calls it."""
    forward.pool = forward.ThreadPool()
    LOCK.release()


if hasattr(os, "register_at_fork"):  # a fork waits for the end of a pass
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=in_forked_child)


def new_pass(params: dict, hparams: dict) -> Callable:
    """A forward pass with a cache of its own: engine.c if the weights are packed for it, else gpt2.py."""
    if not isinstance(params["wte"], PackedWeight):
        return PlainPass(params, hparams)
    return CompiledPass(params, hparams, min(n_threads or n_cores(), 1 + n_bytes(params) // THREAD_BYTES))


def new_network(params: dict, hparams: dict, name: str = "the model") -> CachedNetwork:
    """A network of these weights. engine.c scores a tree in one pass, gpt2.py path by path."""
    kind = TreeNetwork if isinstance(params["wte"], PackedWeight) else CachedNetwork
    return kind(params, hparams, new_pass, name)


def create_model_fn(params: dict, hparams: dict, to_probs: Callable) -> Model:
    """A network in float32 -> a function from tokens to distributions."""
    return new_network(pack(params, packer("float32")), hparams).with_probs(to_probs)


def load_networks(
    read: Callable, hparams: dict, dtypes: Sequence[str], names: Sequence[str], engine: str = "c"
) -> list[CachedNetwork]:
    """A network in each of these formats, from one reading: read(convert) gives the parameters as load_params does.

    Each tensor is packed for all of them before the next is read. Norms, biases and positions are the same arrays.
    """
    packers = [packer(dtype, engine) for dtype in dtypes]
    params = read(lambda name, array: tuple(convert(name, array) for convert in packers))
    of_each = [pack(params, lambda name, copies, i=i: copies[i]) for i in range(len(packers))]
    return [packed_network(one, hparams, name) for one, name in zip(of_each, names, strict=True)]


def packed_network(params: dict, hparams: dict, name: str) -> CachedNetwork:
    """A network whose weights are packed. Raises UserError if NaN or infinity among them shows in the logits of a pass,
    which is cheaper than a look at each weight."""
    network = new_network(params, hparams, name)
    # Warm-up: the first call of each kind allocates memory and starts threads.
    for n_last in (1, 5):  # a row; a window of rows
        network.logits(np.zeros(min(8, network.n_ctx), int), min(n_last, network.n_ctx))
    if isinstance(network.forward, CompiledPass):
        with LOCK:
            network.forward.tune()
    network.forget()
    return network


def engine_words(engine: str) -> str:
    """Return an engine in words, with the instructions and the threads that it uses."""
    if engine == "jax":
        return "JAX"
    if engine == "numpy":
        return "NumPy (gpt2.py)"
    n = n_threads or n_cores()
    return f"C ({library().instructions().decode()}), {n} thread{'s' * (n > 1)}"


def choices(network: CachedNetwork) -> tuple[str, str]:
    """Return a compiled network's weight format, and its threads and prefetching in words."""
    kinds = zip(("1 row", "few", "a group", "many"), network.forward.ahead, strict=True)
    asks = ", ".join(rows for rows, ahead in kinds if ahead) or "never"
    format = network.params["blocks"][0]["mlp"]["c_fc"]["w"].format
    return format.name, f"{n_threads or n_cores()} threads at most; memory asked for ahead: {asks}"
