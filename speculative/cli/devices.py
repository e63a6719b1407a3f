"""--engine jax, --mesh and --batch: from the flags to what decodes on the devices of JAX."""

import os
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from encoder import END_OF_TEXT, StreamDecoder
from plumbing.errors import UserError
from speculative.cli.display import Display
from speculative.cli.flags import Options
from speculative.drafters import drafter_names
from speculative.engines import packed
from speculative.lookahead import AutoK
from speculative.measure.recorder import Recorder
from speculative.stop import completes


def choose_engine(o: Options) -> Options:
    """The options with "numpy" or "jax" as the engine: auto is jax where it is installed and sees an accelerator.

    Joins the other processes that compute the same, if there are any, before JAX is asked for its devices: all but the
    first print and write nothing. Raises UserError, also where other flags do not go with the engine.
    """
    engine = "numpy"
    if o.engine != "numpy":
        try:
            from speculative.engines.jax.sharding import start_processes

            if not start_processes():
                sys.stdout, o = open(os.devnull, "w"), replace(o, json=None, html=None)  # noqa: SIM115
            engine = "jax" if o.engine == "jax" or has_accelerator() else "numpy"
            if engine == "numpy" and (found := unused_accelerator()):
                say(found)
        except UserError:  # JAX cannot be imported
            if o.engine == "jax":
                raise
    o = replace(o, engine=engine, draft_dtype=choose_draft_dtype(o.draft_dtype, o.dtype, engine))
    check(o)
    return o


def choose_draft_dtype(draft_dtype: str, dtype: str, engine: str) -> str:
    """What auto stands for: the fewest bytes that this engine is fast with. No draft's precision changes the output."""
    if draft_dtype != "auto":
        return draft_dtype
    if engine == "jax":
        return dtype
    return "int8" if packed.kernels() else "float32"


def has_accelerator() -> bool:
    """Whether JAX computes elsewhere than on this CPU, in a memory of its own."""
    from speculative.engines.jax.model import devices

    try:
        return devices(1)[0].platform != "cpu"
    except UserError:
        return False


def unused_accelerator() -> str | None:
    """What to install where this machine has an accelerator that JAX does not see; None where it has none."""
    import jax

    for device, name, extra in (("/dev/nvidia0", "an NVIDIA GPU", "cuda12"), ("/dev/accel0", "a TPU", "tpu")):
        if os.path.exists(device):
            install = f'pip install "jax[{extra}]=={jax.__version__}"'
            return f"this machine has {name}, and the JAX that is installed computes on the CPU alone: {install}"
    return None


def free_memory(o: Options) -> int | None:
    """Bytes that a copy of the models may take on its devices; None where they do not tell."""
    from speculative.engines.jax.model import devices

    stats = devices(1)[0].memory_stats() or {}
    return o.mesh * (stats["bytes_limit"] - stats.get("bytes_in_use", 0)) if "bytes_limit" in stats else None


def check(o: Options) -> None:
    """Raises UserError where other flags do not go with this engine."""
    if o.engine == "jax":
        if "heads" in drafter_names(o.drafter):
            raise UserError("--drafter heads is for --engine numpy: JAX's models keep no output of the last block")
        if o.typical:
            raise UserError("--typical is for --engine numpy: JAX's loop has --lenience")
        if o.threads:
            raise UserError("--threads is for --engine numpy: JAX takes all the cores that the process may use")
        if o.K == "auto" and os.environ.get("JAX_COORDINATOR_ADDRESS"):
            raise UserError(
                "--K auto goes by measured times, on which several processes would not agree: give a number"
            )
    elif o.mesh > 1:
        raise UserError("--mesh splits the models over the devices of --engine jax: add it, or leave --mesh out")
    if o.batch > 1 and not runs_as_one_loop(o):
        needs = "--engine jax, --drafter model and a number for --K"
        raise UserError(
            f"--batch needs the loop on the device, which is compiled for one draft model and one K: {needs}"
        )
    if o.batch % o.data_parallel:
        raise UserError(
            f"--data_parallel {o.data_parallel} gives each copy of the models as many prompts: "
            f"--batch must be a multiple of it, not {o.batch}"
        )


def runs_as_one_loop(o: Options) -> bool:
    """Whether the whole decode is compiled, or a loop of Python calls the models."""
    return o.engine == "jax" and o.drafter == "model" and o.K != "auto"


def create_loader(o: Options, n_prompt: int) -> Callable:
    """-> setup.load_on_numpy's twin, which places models on the devices that o.mesh and o.data_parallel ask for.

    Raises UserError where there are fewer.
    """
    from speculative.engines.jax.model import JaxModel, keep_compiled
    from speculative.engines.jax.sharding import make_mesh, place, place_draft

    keep_compiled()
    mesh = make_mesh(o.mesh, o.data_parallel)

    def load_on_jax(read, hparams, dtype, to_probs, role):
        seconds = {}
        if role == "draft":
            network, seconds = place_draft(read, hparams, dtype, mesh)
        else:
            network = place(read, hparams, dtype, mesh)
        if seconds:  # there is more than one device, and so a choice
            times = " and ".join(f"{1000 * s:.2f} ms {how}" for how, s in seconds.items())
            how = "split over the devices" if network.split else "whole on every device"
            say(f"the draft lies {how}: a token takes {times}")
        model = JaxModel(network, to_probs)
        if not runs_as_one_loop(o):
            seconds = model.warm_up(n_prompt, AutoK().K_max if o.K == "auto" else o.K)
            say(f"compiled a model in {seconds:.1f} s")
        return model

    return load_on_jax


def create_decoder(o: Options, target_model, draft_model, temperature: float):
    """The DeviceDecoder of the options."""
    from speculative.engines.jax.loop import DeviceDecoder

    filters = {"top_k": o.top_k, "top_p": o.top_p, "draft_temperature": o.draft_temperature, "lenience": o.lenience}
    return DeviceDecoder(target_model.network, draft_model.network, temperature, **filters)


def decode_fns(o: Options, encoder, prompts, target_model, draft_model) -> tuple[Callable, Callable]:
    """Both decoders as one compiled loop each, whose tokens reach the host every few iterations.

    prompts: lists of ids. A decoder is a function of (rng, recorder) that yields a Step for each call of the target, or
    with --batch the Rows of the prompts that it served. The recorder is told what the parts of a decode cost, measured
    before it: the device does not tell how long they took.
    """
    decoder = create_decoder(o, target_model, draft_model, o.temperature)
    if o.stop == END_OF_TEXT:  # other texts are looked for on the host, and end a row a few calls later
        decoder.end = encoder.eot
    lengths, N = [*map(len, prompts)], o.n_tokens_to_generate
    K = min(o.K, max(1, N - 1))  # more are never accepted, and here K drafts are made in any case
    say(f"compiled both loops in {sum(decoder.warm_up(lengths, N, k, o.batch) for k in (0, K)):.1f} s")
    t_draft, t_target = None, {}
    if o.json or not o.quiet:
        t_draft, t_target = decoder.probe(max(lengths), N, K, min(o.batch, len(prompts)))

    def decode(k, rng, recorder):
        texts = defaultdict(lambda: StreamDecoder(encoder, o.stop))
        stop = (lambda number, step: completes(texts[number], step)) if o.stop and o.batch > 1 else None
        recorder.t_draft, before = t_draft if k else None, recorder.prefill or 0.0
        recorder.t_target = {rows: seconds for rows, seconds in t_target.items() if rows in (1, k + 1)}
        for rows in decoder.batch(prompts, N, k, int(rng.integers(2**32)), o.batch, stop):
            recorder.prefill = before + decoder.prefill_seconds
            if o.batch > 1:
                yield rows
            else:
                recorder.note(rows[0].alpha, rows[0].matching)
                yield rows[0].step

    return partial(decode, 0), partial(decode, K)


def run_batch_fn(title: str, decode_fn: Callable, o: Options, encoder, prompts: list[str]) -> Recorder:
    """main.run_sampling_fn for prompts that are decoded together. decode_fn yields, for each call of the target, the
    Rows of the prompts that it served."""
    recorder = Recorder(o.lenience)
    with Display(title, o, encoder, len(prompts)) as display:
        for prompt in prompts:
            display.begin(prompt)
        steps = decode_fn(np.random.default_rng(o.seed), recorder)
        for rows in recorder.watch_batch(steps, len(prompts), min(o.batch, len(prompts))):
            for row in rows:
                display.push(row.step, row.number)
        for i in range(len(prompts)):
            display.end(i)
    display.print_time(recorder.seconds)
    return recorder


def differences(o: Options, input_ids: list, target_model, runs: list[Recorder]) -> list[str]:
    """greedy_differences, where this engine decoded greedily and something is to be shown."""
    if o.engine == "numpy" or o.temperature > 0 or o.quiet:
        return []
    return greedy_differences(input_ids * o.n_samples, target_model, *runs)


def greedy_differences(prompts: list, target_model, autoregressive: Recorder, speculative: Recorder) -> list[str]:
    """Where the two greedy texts of a prompt part, which rounding can bring about here: a line for each prompt.

    autoregressive and speculative are the Recorders of both runs, with a sample for each prompt.
    """
    from speculative.engines.jax.loop import first_difference
    from speculative.engines.jax.model import JaxModel

    model, lines = JaxModel(target_model.network, to_probs=lambda logits: logits), []
    for number, (x, *samples) in enumerate(
        zip(prompts, autoregressive.samples, speculative.samples, strict=True), start=1
    ):
        texts = [[token for iteration in sample for token in iteration.step.tokens] for sample in samples]
        if difference := first_difference(x, *texts, model):
            where = f"for prompt {number}, " if len(prompts) > 1 else ""
            lines.append(f"{where}{difference}: rounding, where that is about 1e-4, and a defect where it is large.")
    return lines


def say(line: str) -> None:
    print(line, file=sys.stderr)
