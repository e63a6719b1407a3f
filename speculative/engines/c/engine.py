"""The C engine: its threads, and from packed weights to networks."""

import numpy as np

from speculative.engines.c.forward import CompiledPass
from speculative.engines.c.library import library
from speculative.engines.c.packing import PackedWeight, pack
from speculative.engines.contract import Engine
from speculative.engines.formats import n_bytes
from speculative.engines.memory import SAVING
from speculative.engines.network import LOCK, CachedNetwork, Network
from speculative.engines.system import n_cores
from speculative.support.errors import UserError

# In calls of the target in float32: an int8 copy takes COPY_CALLS to make, and saves SAVED_CALLS for each token, by
# whether an instruction multiplies bytes, and whether the text is greedy. A greedy text repeats itself, so look-ups
# save most of these calls. (SAVED_CALLS: the difference of 1/speedup with and without a copy in benchmarks prices.)
COPY_CALLS = 10
SAVED_CALLS = {(True, False): 0.25, (True, True): 0.1, (False, False): 0.17, (False, True): 0.02}
THREAD_BYTES = 2**20  # bytes of weights that are worth a thread, which must meet the others


class CEngine(Engine):
    """The C engine. Each row is computed in an order that does not depend on the others, so it is equal to the bit."""

    name = "c"
    draft_dtype = "int8"  # the output's distribution stays the target's
    saving = SAVING
    exact = packs = True

    def __init__(self, threads: int | None):
        """threads: at most; None: one for each core. Raises UserError if there are not so many cores."""
        if not 1 <= (threads or 1) <= n_cores():
            raise UserError(
                f"{threads} threads: 1 to {n_cores()} can run here, by its cores, its quota and OMP_NUM_THREADS"
            )
        self.threads = threads or n_cores()

    def words(self) -> str:
        return f"C ({library().instructions().decode()}), {self.threads} thread{'s' * (self.threads > 1)}"

    def copy_is_quick(self, N: float, temperature: float) -> bool:
        return N * SAVED_CALLS[bool(library().multiplies_bytes()), temperature == 0] >= COPY_CALLS

    def kernel_words(self, network: Network) -> tuple[str, str] | None:
        if not isinstance(network, CachedNetwork):  # a user's function has no kernels
            return None
        block = network.params["blocks"][0]
        w = block["mlp"]["c_fc"]["w"]
        format = w.format.name if isinstance(w, PackedWeight) else "float32, in the file"
        return format, f"{self.threads} threads at most"

    def held_dtype(self, dtype: str) -> str:
        return dtype

    def pack(self, dtype: str, name: str, array: np.ndarray, in_place: bool = False) -> PackedWeight | np.ndarray:
        return pack(dtype, name, array, in_place)

    def window_seconds(self, network: Network, x: np.ndarray, n_rows: int) -> float:
        if not isinstance(network, CachedNetwork):
            return super().window_seconds(network, x, n_rows)
        with LOCK:
            network.forget()  # the timed call overwrites the cache
            seconds = network.forward.layer_seconds(n_rows, network.cache, len(x))
        return seconds * network.weight_bytes / n_bytes(network.params["blocks"][0])

    def network(self, params: dict, hparams: dict, name: str) -> CachedNetwork:
        n_threads = min(self.threads, 1 + n_bytes(params) // THREAD_BYTES)
        network = CachedNetwork(params, hparams, CompiledPass(params, hparams, n_threads), name)
        network.warm_up()
        with LOCK:
            network.forward.tune(network.cache)
        return network
