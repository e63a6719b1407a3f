"""engine.c as the engine: its threads, and from packed weights to networks."""

from collections.abc import Callable
from typing import Any

from speculative.engines.c.forward import CompiledPass
from speculative.engines.c.library import library
from speculative.engines.c.packing import PackedWeight, packer
from speculative.engines.c.tree_cache import TreeNetwork
from speculative.engines.contract import Engine
from speculative.engines.formats import convert_all
from speculative.engines.memory import SAVING
from speculative.engines.model import LOCK, CachedNetwork, Model, n_bytes
from speculative.engines.plain import PlainPass
from speculative.engines.system import n_cores
from speculative.support.errors import UserError

THREAD_BYTES = 2**20  # of weights that are worth a thread, which must meet the others
n_threads = None  # at most, in a forward pass; None: one for each core


def set_threads(n: int | None = None) -> None:
    """Let a pass take n threads at most; None: one for each core. Raises UserError if there are not so many cores."""
    global n_threads
    if not 1 <= (n or 1) <= n_cores():
        raise UserError(f"{n} threads: 1 to {n_cores()} can run here, by its cores, its quota and OMP_NUM_THREADS")
    n_threads = n or n_cores()


def new_pass(params: dict, hparams: dict) -> Callable:
    """A forward pass with a cache of its own: engine.c if the weights are packed for it, else gpt2.py."""
    if not isinstance(params["wte"], PackedWeight):
        return PlainPass(params, hparams)
    return CompiledPass(params, hparams, min(n_threads or n_cores(), 1 + n_bytes(params) // THREAD_BYTES))


def create_model_fn(params: dict, hparams: dict, to_probs: Callable) -> Model:
    """A network in float32 -> a function from tokens to distributions. Without a compiler gpt2.py computes."""
    weights = convert_all(params, packer("float32")) if library() else params
    return CachedNetwork(weights, hparams, new_pass).with_probs(to_probs)


class CEngine(Engine):
    """engine.c. Each row is computed in an order that does not depend on the others, so it is equal to the bit."""

    saving = SAVING
    exact = packs = True

    def __init__(self, threads: int | None = None):
        """Raises UserError, before any weight is read."""
        super().__init__(threads)
        set_threads(threads)

    def words(self) -> str:
        n = n_threads or n_cores()
        return f"C ({library().instructions().decode()}), {n} thread{'s' * (n > 1)}"

    def has_fast_int8(self) -> bool:  # without an instruction that multiplies bytes 9 rows cost as much as in float32
        return any(name in self.words() for name in ("VNNI", "NEON"))

    def kernel_words(self, network: CachedNetwork) -> tuple[str, str]:
        kinds = zip(("1 row", "few", "a group", "many"), network.forward.prefetch_bytes, strict=True)
        asks = ", ".join(rows for rows, ahead in kinds if ahead) or "never"
        format = network.params["blocks"][0]["mlp"]["c_fc"]["w"].format
        return format.name, f"{n_threads or n_cores()} threads at most; memory asked for ahead: {asks}"

    def draft_dtype(self, dtype: str) -> str:
        return "int8"  # the output's distribution stays the target's

    def held_dtype(self, dtype: str) -> str:
        return dtype

    def converter(self, dtype: str) -> Callable:
        return packer(dtype)

    def window_seconds(self, network: CachedNetwork, x: Any, n_rows: int) -> float:
        with LOCK:
            network.slots.cut(len(x))
            return network.forward.layer_seconds(n_rows, len(x))

    def network(self, params: dict, hparams: dict, name: str) -> CachedNetwork:
        set_threads(self.threads)
        network = TreeNetwork(params, hparams, new_pass, name)
        network.warm_up()
        with LOCK:
            network.forward.tune()
        return network
