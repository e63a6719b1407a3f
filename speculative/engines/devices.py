"""--engine, --mesh and --batch: the engine that decodes, and JAX's devices."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from speculative import drafters
from speculative.blog.encoder import END_OF_TEXT
from speculative.engines import memory
from speculative.engines.c.library import library
from speculative.filters import Filters
from speculative.options import ModelOptions
from speculative.rules import Rule
from speculative.support.errors import UserError

if TYPE_CHECKING:
    from speculative.engines.jax.pair import DeviceLoop


def with_engine(o: Any) -> Any:
    """Return the options with the engine that will run: for "auto" jax if it is installed and sees an accelerator, else
    c; for "c" numpy if nothing compiles engine.c, which library() says in a line.

    Joins the other processes that compute the same, if there are any, before JAX is asked for its devices. Raises
    UserError.
    """
    engine = o.engine
    if engine in ("jax", "auto"):
        try:
            from speculative.engines.jax.processes import start_processes

            start_processes()
            engine = "jax" if o.engine == "jax" or accelerator() else "c"
            remedy = unused_accelerator() if engine == "c" else None
            if remedy:
                print(remedy, file=sys.stderr)
        except UserError:  # JAX cannot be imported
            if o.engine == "jax":
                raise
            engine = "c"
    if engine == "c" and not library():
        engine = "numpy"
    return replace(o, engine=engine)


def several_processes() -> bool:
    """True if other processes compute the same. They must not decide anything by measured times."""
    return bool(os.environ.get("JAX_COORDINATOR_ADDRESS")) and "jax" in sys.modules


def is_first() -> bool:
    """True if this process prints, and writes the files of --json and --html: of several, the first does."""
    return not several_processes() or sys.modules["jax"].process_index() == 0


def choose_draft_dtype(draft_dtype: str, dtype: str, engine: str) -> str:
    """The format that auto stands for. It may be a small one, as the output's distribution stays the target's."""
    if draft_dtype != "auto":
        return draft_dtype
    return {"c": "int8", "numpy": "float32", "jax": dtype}[engine]


def accelerator() -> Any:
    """JAX's first device if it computes elsewhere than on this CPU, in a memory of its own; else None."""
    from speculative.engines.jax.model import devices

    try:
        device = devices(1)[0]
    except UserError:
        return None
    return None if device.platform == "cpu" else device


def unused_accelerator() -> str | None:
    """The package to install if this machine has an accelerator that JAX does not see; None if it has none."""
    import jax

    for device, name, extra in (("/dev/nvidia0", "an NVIDIA GPU", "cuda12"), ("/dev/accel0", "a TPU", "tpu")):
        if os.path.exists(device):
            install = f'pip install "jax[{extra}]=={jax.__version__}"'
            return f"this machine has {name}, and the JAX that is installed computes on the CPU alone: {install}"
    return None


def free_bytes(o: ModelOptions) -> int | None:
    """The bytes that the models may take; None if nobody knows."""
    device = accelerator() if o.engine == "jax" else None
    if device is None:
        return memory.available()
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return o.mesh * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))


def check(o: ModelOptions, rule: Rule) -> None:
    """Raises UserError if options do not go with the engine that was chosen."""
    if o.engine != "jax":
        return
    for spec in drafters.specs_of(o.drafter):
        if spec.not_on_jax:
            raise UserError(f"--drafter {spec.name} is for --engine c: {spec.not_on_jax}")
    if "auto" in str(o.K) and several_processes():
        raise UserError("--K auto goes by measured times, on which several processes would not agree: give a number")
    if o.batch > 1 and not one_loop(o):
        raise UserError(
            "--batch decodes prompts together in JAX's loop, which is compiled for one draft model and one K: it needs "
            "--engine jax, --drafter model and a number for --K"
        )
    if one_loop(o):
        from speculative.engines.jax.sampling import RULES

        if rule.name.partition(":")[0] not in RULES:
            raise UserError(f"--accept {o.accept} is for --engine c: the loop on the device has {', '.join(RULES)}")
    if o.batch % o.data_parallel:
        raise UserError(
            f"--data_parallel {o.data_parallel} gives each copy of the models as many prompts: --batch must be a "
            f"multiple of it, not {o.batch}"
        )


def one_loop(o: ModelOptions) -> bool:
    """True if the whole decode is compiled as one loop on the device; else a loop of Python calls the models."""
    roles = drafters.roles_of(o.drafter)
    a_model = len(roles) == 1 and o.drafter in drafters.DRAFTERS and drafters.DRAFTERS[o.drafter].load is None
    return o.engine == "jax" and a_model and isinstance(o.K, int)


def loader(o: ModelOptions, n_prompt: int, roles: Sequence[str]) -> Callable:
    """-> load_networks, as engines.runtime has it, for models on the devices. roles: of the models.

    n_prompt: tokens of the longest prompt. If a loop in Python calls the models, all it needs is compiled before.
    Raises UserError if there are fewer devices than are asked for.
    """
    from speculative.engines.jax.model import JaxModel, keep_compiled
    from speculative.engines.jax.sharding import make_mesh, place

    keep_compiled()
    mesh = make_mesh(o.mesh, o.data_parallel)
    lookaheads = o.K if isinstance(o.K, tuple) else [o.K]
    longest = max((K for K in lookaheads if isinstance(K, int)), default=16)

    def load(read, hparams, dtype, name, role):
        # Each device has all of a small draft: see sharding.py.
        network = place(read, hparams, dtype, mesh, split=False if role == "draft" else None)
        model = JaxModel(network, lambda logits: logits, name)
        if not one_loop(o):
            print(f"compiled a model in {model.warm_up(n_prompt, longest):.1f} s", file=sys.stderr)
        return model

    return lambda read, hparams, dtypes, names: [*map(partial(load, read, hparams), dtypes, names, roles)]


def loop_of(
    o: ModelOptions, target: Any, draft: Any, filters: Filters, draft_filters: Filters, rule: Rule, eot: int
) -> "DeviceLoop":
    """Return both decoders of these models, compiled as one loop each."""
    from speculative.engines.jax.loop import DeviceDecoder
    from speculative.engines.jax.pair import DeviceLoop

    # The device looks for the end of the text, the host for other stop texts.
    end = eot if END_OF_TEXT in (o.stop, *(o.stop or ())) else -1
    decoder = DeviceDecoder(target.network, draft.network, filters, draft_filters, rule, end)
    return DeviceLoop(decoder, o.K)  # type: ignore[arg-type]  # a number: one_loop
