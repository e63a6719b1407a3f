"""gpt2.py itself as the engine, with a KV cache: the plainest one, which the others are tested against."""

from collections.abc import Callable

from speculative.engines.contract import Engine, Planned
from speculative.engines.formats import converter, rounded
from speculative.engines.network import CachedNetwork
from speculative.support.errors import Option, UserError


class NumpyEngine(Engine):
    """NumPy, in float32; weights of another format are rounded to it, and kept in float32."""

    name = "numpy"

    def words(self) -> str:
        return "NumPy (gpt2.py)"

    def check(self, plan: Planned) -> None:
        if plan.batch > 1:
            raise UserError(
                Option("batch"),
                " decodes prompts together with ",
                Option("engine"),
                " c or jax, where rows of several are cheap",
            )

    def converter(self, dtype: str, in_place: bool = False) -> Callable:
        return converter(dtype, rounded)

    def network(self, params: dict, hparams: dict, name: str) -> CachedNetwork:
        network = CachedNetwork(params, hparams, name=name)
        network.warm_up()
        return network
