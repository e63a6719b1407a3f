"""JAX as the engine: the models on its devices, and for one draft model and one K both decoders as loops on them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from speculative.engines import memory
from speculative.engines.contract import Engine, Maker, Planned, ToLoad
from speculative.engines.formats import FORMATS, OnJax, on_jax
from speculative.engines.jax.compilation import accelerator, compiling, keep_compiled
from speculative.engines.jax.device_decoder import DeviceDecoder
from speculative.engines.jax.device_loops import DeviceLoops
from speculative.engines.jax.forward import cached
from speculative.engines.jax.sampling import RULES
from speculative.engines.jax.sharding import make_mesh, new_network, placed
from speculative.support.errors import Option, UserError


class JaxEngine(Engine):
    """The devices of JAX. Roundings depend on the number of rows."""

    saving = tuple(name for name, format in FORMATS.items() if isinstance(format.jax, OnJax))[1:]
    name = "jax"
    predicts = takes_functions = False
    draft_dtype = None
    sharing_roles = ()

    def __init__(self, mesh: int, data_parallel: int, quiet: bool = False):
        """data_parallel copies of the models, each on `mesh` devices."""
        self.n_model = mesh
        self.n_data = data_parallel
        self.quiet = quiet

    def words(self) -> str:
        return "JAX"

    def facts(self) -> dict[str, Any]:
        first, *others = jax.devices()
        kind = {"device_platform": first.platform, "device_kind": first.device_kind}
        return kind | {"devices": 1 + len(others), "jax": jax.__version__}

    def free_bytes(self) -> int | None:
        device = accelerator()
        if device is None:
            return memory.available()
        stats = device.memory_stats() or {}
        if "bytes_limit" not in stats:
            return None
        return self.n_model * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))

    def held_dtype(self, dtype: str) -> str:
        on_jax(dtype)
        return dtype

    def tolerance(self, dtype: str) -> float:
        return FORMATS[dtype].tolerance

    def check(self, plan: Planned) -> None:
        for drafter in plan.drafters:
            if drafter.not_on_jax:
                raise refuse("drafter", drafter.name, drafter.not_on_jax)
        if plan.depends_on_times and jax.process_count() > 1:
            raise UserError(
                Option("K"), " auto goes by measured times, on which processes would not agree: give a number"
            )
        if plan.batch > 1 and not is_compiled(plan):
            raise UserError(
                Option("batch"),
                " decodes prompts together in JAX's loop, which is compiled for one draft model and one K: it needs ",
                Option("engine"),
                " jax, ",
                Option("drafter"),
                " model and a number for ",
                Option("K"),
            )
        if is_compiled(plan) and plan.rule.kind not in RULES:
            raise refuse("accept", plan.rule.name, f"the loop on the device has {', '.join(RULES)}")
        if plan.batch % self.n_data:
            raise UserError(
                Option("data_parallel"),
                f" {self.n_data} gives each copy of the models the same number of prompts: ",
                Option("batch"),
                f" must be a multiple of it, not {plan.batch}",
            )

    def maker(self, spec: ToLoad, in_place: bool) -> Maker:
        """Raises UserError if there are fewer devices than are asked for."""
        keep_compiled()
        mesh = make_mesh(self.n_model, self.n_data)
        is_split = self.n_model > 1 and spec.role != "draft"
        network = new_network(spec.hparams, spec.dtype, mesh, is_split)
        pack = partial(placed, network, on_jax(spec.dtype))
        return Maker(pack, lambda params: cached(replace(network, params=params), str(spec)))

    def prepare(self, plan: Planned, networks: Sequence[Any], n_prompt: int) -> None:
        """Compile the functions that Python's loop calls; the device's loop is compiled when a decode is prepared."""
        if is_compiled(plan):
            return
        K = max([K for K in plan.Ks if isinstance(K, int)], default=16)
        for network in networks:
            with compiling("a model", self.quiet):
                network.forward.warm_up(n_prompt, K)

    def device_loops(self, plan: Planned, networks: Mapping) -> DeviceLoops | None:
        if not is_compiled(plan):
            return None
        [_, draft_role] = networks
        target, draft = networks.values()
        on_device = target.forward.network, draft.forward.network
        decoder = DeviceDecoder(*on_device, plan.target_filters, plan.draft_filters, plan.rule)
        [K] = plan.Ks
        return DeviceLoops(decoder, int(K), draft_role, plan.batch, self.quiet)


def is_compiled(plan: Planned) -> bool:
    """True if the whole decode is compiled as one loop on the device: one draft model drafts, for a number K."""
    first, *others = plan.drafters
    return not others and first.has_model and not first.load and not plan.depends_on_times


def refuse(name: str, value: str, reason: str) -> UserError:
    """Return an error for something that the C engine has."""
    return UserError(Option(name), f" {value} is for ", Option("engine"), f" c: {reason}")
