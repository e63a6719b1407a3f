"""--engine jax, --mesh and --batch: which engine decodes, and what is asked of JAX's devices."""

import os
import sys
from collections.abc import Callable
from typing import Any

from speculative import accept, drafters
from speculative.decoding import Pair
from speculative.engines import formats
from speculative.engines.library import library
from speculative.lookahead import AutoK
from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.options import Options


def without_jax(o: Options) -> str:
    """The reason why a flag of JAX's would do nothing with these options; "" where it does something."""
    if o.engine == "numpy":
        return "it is about the devices of --engine jax"
    return ""


FLAGS = (
    Flag(
        "engine",
        arguments.one_of("numpy", "jax", "auto"),
        "numpy, jax, or auto: jax where it sees an accelerator",
        "numpy",
    ),
    Flag("mesh", arguments.integer(1), "with jax: split the models over this many devices", 1, in_vain=without_jax),
    Flag(
        "data_parallel",
        arguments.integer(1),
        "with jax: copies of the models, each with a share of --batch",
        1,
        in_vain=without_jax,
    ),
    Flag(
        "batch",
        arguments.integer(1, 4096),
        "with jax: decode this many prompts of --prompt_file at a time",
        1,
        excludes=("n_samples", "stream", "color", "verbose", "verify", "details", "html"),
    ),
)


def choose_engine(engine: str) -> str:
    """ "numpy" or "jax": auto is jax where it is installed and sees an accelerator.

    Joins the other processes that compute the same, if there are any, before JAX is asked for its devices. Raises
    UserError.
    """
    if engine == "numpy":
        return engine
    try:
        from speculative.engines.jax.processes import start_processes

        if not start_processes():
            sys.stdout = open(os.devnull, "w")  # the first process prints for all  # noqa: SIM115
        if engine == "jax" or accelerator():
            return "jax"
        remedy = unused_accelerator()
        if remedy:
            say(remedy)
    except UserError:  # JAX cannot be imported
        if engine == "jax":
            raise
    return "numpy"


def writes_files() -> bool:
    """True if this process writes the files of --json and --html: of several that compute the same, the first does."""
    if "jax" not in sys.modules or not os.environ.get("JAX_COORDINATOR_ADDRESS"):
        return True
    import jax

    return jax.process_index() == 0


def choose_draft_dtype(draft_dtype: str, dtype: str, engine: str) -> str:
    """The format that auto stands for. It may be a small one, as no draft's precision changes the output."""
    if draft_dtype != "auto":
        return draft_dtype
    if engine == "jax":
        return dtype
    return "int8" if library() else "float32"


def choose_self_dtype(self_dtype: str, dtype: str, engine: str) -> str:
    """The format of the target's copy. auto is int8, which nearly always makes the choice of what it was rounded from;
    for a target in int8 or less, it is the format with the fewest bytes.

    Raises UserError where the copy would not have fewer bytes than the target.
    """
    if self_dtype != "auto":
        formats.find(self_dtype)  # a name that is none has a line of its own
    target = formats.find(dtype).weight_bytes
    fewer = [name for name in formats.by_size(engine == "jax") if formats.find(name).weight_bytes < target]
    if self_dtype in fewer:
        return self_dtype
    if not fewer or self_dtype != "auto":
        remedy = "another --drafter, or another --dtype"
        if fewer:
            remedy = f"--self_dtype {' or '.join(fewer)}"
        raise UserError(f"a copy takes fewer bytes than the target, which is in {dtype} here: take {remedy}")
    return "int8" if "int8" in fewer else fewer[-1]


def accelerator() -> Any:
    """JAX's first device where it computes elsewhere than on this CPU, in a memory of its own; else None."""
    from speculative.engines.jax.model import devices

    try:
        device = devices(1)[0]
    except UserError:
        return None
    return None if device.platform == "cpu" else device


def unused_accelerator(exists: Callable[[str], bool] = os.path.exists) -> str | None:
    """The package to install where this machine has an accelerator that JAX does not see; None where it has none."""
    import jax

    for device, name, extra in (("/dev/nvidia0", "an NVIDIA GPU", "cuda12"), ("/dev/accel0", "a TPU", "tpu")):
        if exists(device):
            install = f'pip install "jax[{extra}]=={jax.__version__}"'
            return f"this machine has {name}, and the JAX that is installed computes on the CPU alone: {install}"
    return None


def free_memory(device: Any, mesh: int) -> int | None:
    """Bytes that a copy of the models may take on so many devices like this one; None where they do not tell."""
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return mesh * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))


def check(o: Options) -> None:
    """Raises UserError where options do not go with the engine that was chosen."""
    if o.engine == "jax" and o.K == "auto" and os.environ.get("JAX_COORDINATOR_ADDRESS"):
        raise UserError("--K auto goes by measured times, on which several processes would not agree: give a number")
    if o.batch > 1 and not one_loop(o.engine, o.drafter, o.K):
        raise UserError(
            "--batch decodes prompts together in JAX's loop, which is compiled for one draft model and one K: it needs "
            "--engine jax, --drafter model and a number for --K"
        )
    if one_loop(o.engine, o.drafter, o.K):
        from speculative.engines.jax.sampling import RULES

        if o.accept not in RULES:
            able = ", ".join(name for name in accept.by_name() if name in RULES)
            raise UserError(f"--accept {o.accept} is for --engine numpy: the loop on the device has {able}")
    if o.batch % o.data_parallel:
        raise UserError(
            f"--data_parallel {o.data_parallel} gives each copy of the models as many prompts: --batch must be a "
            f"multiple of it, not {o.batch}"
        )


def one_loop(engine: str, drafter: str, K) -> bool:
    """True if the whole decode is compiled as one loop on the device; else a loop of Python calls the models."""
    return engine == "jax" and drafters.is_model(drafter) and isinstance(K, int)


def loader(mesh: int, data_parallel: int, warm: tuple[int, Any] | None) -> Callable:
    """-> load_models, as engines.models has it, for models that lie on the devices.

    warm: (tokens of the longest prompt, K) where a loop in Python will call the models, so that all it needs is
    compiled before; None where the whole loop is compiled. Raises UserError where there are fewer devices.
    """
    from speculative.engines.jax.model import JaxModel, keep_compiled
    from speculative.engines.jax.sharding import make_mesh, place, place_draft

    keep_compiled()
    devices = make_mesh(mesh, data_parallel)
    placed = []

    def load_on_jax(read, hparams, dtypes, to_probs, names):
        return [load_one(read, hparams, *one) for one in zip(dtypes, to_probs, names, strict=True)]

    def load_one(read, hparams, dtype, to_probs, name):
        if placed:  # the target comes first
            network, seconds = place_draft(read, hparams, dtype, devices)
        else:
            network = place(read, hparams, dtype, devices)
            seconds = {}
        placed.append(network)
        if seconds:  # there is more than one device, and so a choice
            times = " and ".join(f"{1000 * s:.2f} ms {how}" for how, s in seconds.items())
            how = "split over the devices" if network.split else "whole on every device"
            say(f"the draft lies {how}: a token takes {times}")
        model = JaxModel(network, to_probs, name)
        if warm:
            n_prompt, K = warm
            longest = K if isinstance(K, int) else AutoK().K_max
            seconds = model.warm_up(n_prompt, longest)
            say(f"compiled a model in {seconds:.1f} s")
        return model

    return load_on_jax


def pair_of_one_loop(pair: Pair) -> Pair:
    """The same pair, whose decoders are compiled as one loop each."""
    from speculative.engines.jax.pair import DevicePair

    return DevicePair(**vars(pair))


def say(line: str) -> None:
    print(line, file=sys.stderr)
