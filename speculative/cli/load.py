"""From names of models to a Pair that decodes.

The small files are read first: they are enough for all that checks.py looks at.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tqdm import tqdm

from checkpoints import packs
from checkpoints.folders import own_folder
from checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from checkpoints.tensors import parameter_count
from encoder import Encoder
from plumbing import arguments
from plumbing.arguments import Flag
from plumbing.patience import lines
from speculative import accept, drafters
from speculative.cli import devices
from speculative.cli.checks import check_disk, check_length, check_memory, check_tree, check_verify, different
from speculative.decoding import Pair, lookaheads
from speculative.drafters.base import Setting
from speculative.engines import formats, packed_files, runtime
from speculative.engines.models import load_models, mapped_model
from speculative.engines.vocabulary import share
from speculative.filters import Filters


def weight_format(value: str) -> str:
    return arguments.one_of(*formats.FORMATS)(value)


def draft_weight_format(value: str) -> str:
    return arguments.one_of(*formats.FORMATS, "auto")(value)


LARGE = 2**28  # bytes of weights, from which on a bar shows how they are read

FLAGS = (
    Flag("dtype", weight_format, lambda: f"weights of the target model: {formats.described()}", "float32"),
    Flag(
        "draft_dtype",
        draft_weight_format,
        "weights of the draft model; the output stays lossless; auto: int8, on jax as --dtype",
        "auto",
        in_vain=drafters.without_draft_model,
    ),
    Flag(
        "threads",
        arguments.integer(1),
        "threads of the NumPy engine [one for each core]",
        only_engine="numpy",
        why="JAX takes all the cores that the process may use",
    ),
    Flag(
        "source",
        arguments.source,
        "where to download missing models: openai, huggingface or the URL of a mirror",
        "openai",
    ),
)


class Wanted(NamedTuple):
    """A model that is to be loaded."""

    need: str  # "target", "draft" or "copy"
    model_size: str
    dtype: str
    encoder: Encoder
    hparams: dict


def load_id_pair(
    draft_model_size: str = "124M",
    target_model_size: str = "1558M",
    models_dir: str = "models",
    *,
    K: int | str | tuple = 4,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    draft_temperature: float | None = None,
    lenience: float = 1.0,
    typical: float | None = None,
    drafter: str | Sequence[str] = "model",
    tree: tuple[int, ...] | str | None = None,
    dtype: str = "float32",
    draft_dtype: str = "auto",
    engine: str = "numpy",
    threads: int | None = None,
    mesh: int = 1,
    data_parallel: int = 1,
    batch: int = 1,
    source: str = "openai",
    prompts: Sequence[str] = (),
    n_tokens_to_generate: int = 1,
    verify: bool = False,
    quiet: bool = False,
    self_dtype: str = "auto",
    drafter_options: dict[str, Any] | None = None,
    kept: dict[str, tuple[Wanted, Any]] | None = None,
) -> Pair:
    """Loads the target and what its drafter needs: a draft model, a copy, both or neither -> a Pair for token ids.

    Official models that are missing are downloaded. (speculative.load_pair puts a TextPair around it, for texts.)

    Most arguments are main.py's flags of the same name. The others:

    drafter: where it is several, the first is the pair's, and the pair has what the others need, too.
    prompts, n_tokens_to_generate, verify: what is going to be decoded, if that is known, so that it is refused first
        where it does not fit.
    drafter_options: the values of the drafters' own flags.
    kept: {need: (what was wanted, the model)} of an earlier call, whose arguments were the same but for those that only
        say how to decode. These models are not loaded again, and those that are loaded now are added.

    Raises UserError.
    """
    names = [drafter] if isinstance(drafter, str) else list(drafter)
    kinds = drafters.kinds_of(*names)
    filters = Filters(temperature, top_k, top_p)
    chosen, inner_K = lookaheads(K, tree, names[0])
    kept = {} if kept is None else kept
    one_loop = devices.one_loop(engine, names[0], K)

    # What has to be loaded.
    wanted = wanted_models(
        draft_model_size,
        target_model_size,
        models_dir,
        drafter=names,
        dtype=dtype,
        draft_dtype=draft_dtype,
        self_dtype=self_dtype,
        engine=engine,
        source=source,
        kept=kept,
    )
    target = wanted[0]
    new = [one for one in wanted if one.need not in kept]

    # Whether it fits.
    longest = max([len(encode(target.encoder, prompt)) for prompt in prompts], default=1)
    contexts = {f"{one.need} {one.model_size}": one.hparams["n_ctx"] for one in wanted}
    check_length(contexts, longest, n_tokens_to_generate)
    if verify:
        check_verify(contexts, n_tokens_to_generate, K)
    if tree is not None and prompts:
        check_tree(names[0], tree, longest, n_tokens_to_generate, contexts)
    if engine == "jax":
        for one in wanted:
            formats.on_jax(one.dtype)
    n_cached = None
    if batch > 1:
        n_cached = batch // data_parallel * (longest + n_tokens_to_generate)
    check_memory([(one.hparams, one.dtype) for one in new], engine, mesh, n_cached)
    check_disk(models_dir, {one.model_size for one in new})

    # The weights.
    folders = {one.need: complete_folder(one.model_size, models_dir, source) for one in wanted}
    setting = Setting(folders["target"], target.hparams, target.encoder, drafter_options or {})
    pair = Pair(
        target.encoder,
        models={},
        drafter=names[0],
        prepared={kind.name: kind.prepare(setting) for kind in kinds if kind.prepare},
        filters=filters,
        draft_temperature=draft_temperature,
        lookahead=chosen,
        inner_K=inner_K,
        accept=accept.choose(lenience=lenience, typical=typical),
    )
    if engine == "numpy":
        runtime.set_threads(threads)
        load_fn = load_models
    else:
        warm = None if one_loop else (longest, K)
        load_fn = devices.loader(mesh, data_parallel, warm)
    to_probs = {one.need: filters if one.need == "target" else pair.draft_filters for one in wanted}
    for one in wanted:
        if one.need in kept:
            pair.models[one.need] = kept[one.need][1].with_probs(to_probs[one.need])
    for model_size in dict.fromkeys(one.model_size for one in new):  # the copy comes with the target, from one reading
        of_size = [one for one in new if one.model_size == model_size]
        folder = folders[of_size[0].need]
        models = {}
        if engine == "numpy":
            models = mapped_models(of_size, folder, own_folder(model_size, models_dir), to_probs, quiet)
        unread = [one for one in of_size if one.need not in models]
        if unread:
            models |= read_models(unread, folder, load_fn, to_probs, quiet)
        for one in of_size:
            pair.models[one.need] = models[one.need]
            kept[one.need] = one, models[one.need]

    if one_loop:
        return devices.pair_of_one_loop(pair)
    pair.check_drafter()
    return pair


def wanted_models(
    draft_model_size: str,
    target_model_size: str,
    models_dir: str,
    *,
    drafter: str | Sequence[str],
    dtype: str,
    draft_dtype: str,
    self_dtype: str,
    engine: str,
    source: str,
    kept: dict[str, tuple[Wanted, Any]] | None = None,
) -> list[Wanted]:
    """The target, and what its drafters need. Reads the small files alone. The arguments are those of load_id_pair.

    Raises UserError.
    """
    names = [drafter] if isinstance(drafter, str) else drafter
    needs = {need for kind in drafters.kinds_of(*names) for need in kind.needs}
    kept = kept or {}
    if "target" in kept:
        target, _ = kept["target"]
    else:
        target = want("target", target_model_size, dtype, models_dir, source)
    wanted = [target]
    if "copy" in needs:
        self_dtype = devices.choose_self_dtype(self_dtype, dtype, engine)
        wanted.append(target._replace(need="copy", dtype=self_dtype))
    if "draft" in needs and "draft" in kept:
        draft, _ = kept["draft"]
        wanted.append(draft)
    elif "draft" in needs:
        draft_dtype = devices.choose_draft_dtype(draft_dtype, dtype, engine)
        draft = want("draft", draft_model_size, draft_dtype, models_dir, source)
        wanted.append(with_ids_of(target, draft))
    return wanted


def mapped_models(
    wanted: list[Wanted], folder: str, kept_in: str, to_probs: dict[str, Filters], quiet: bool
) -> dict[str, Any]:
    """{need: model} of those whose packed weights lie on the disk, in the folder kept_in."""
    models = {}
    for one in wanted:
        path = packs.path_of(kept_in, one.dtype)
        params = packed_files.find(path, folder, one.dtype, one.hparams)
        if params is None:
            continue
        models[one.need] = mapped_model(params, one.hparams, to_probs[one.need], path)
        if not quiet:
            print(f"{one.model_size}: mapped from {path}", file=sys.stderr)
    return models


def read_models(
    wanted: list[Wanted], folder: str, load_fn: Callable, to_probs: dict[str, Filters], quiet: bool
) -> dict[str, Any]:
    """{need: model} of one size, from one reading of its weights, which a bar shows where it takes long."""
    hparams = wanted[0].hparams
    loading = f"loading {wanted[0].model_size}"
    n_bytes = 4 * parameter_count(hparams)
    off = True if quiet or n_bytes < LARGE else None  # None: unless standard error is a terminal
    bar = tqdm(desc=loading, total=n_bytes, unit="B", unit_scale=True, leave=False, disable=off)
    read = partial(load_params, folder, hparams, progress=bar.update)
    with lines(loading), bar:
        models = load_fn(read, hparams, [one.dtype for one in wanted], [to_probs[one.need] for one in wanted])
    return {one.need: model for one, model in zip(wanted, models, strict=True)}


def load(o: Any, prompts: Sequence[str], kept: dict | None = None) -> Pair:
    """load_id_pair, with the options of a command line."""
    options = options_of(o, load_id_pair)
    of_drafters = {flag.name: getattr(o, flag.name) for flag in drafters.flags_of_kinds()}
    return load_id_pair(**options, prompts=prompts, drafter_options=of_drafters, kept=kept)


def options_of(o: Any, function: Callable) -> dict[str, Any]:
    """Those options of a command line that a function takes as arguments."""
    names = set(o._fields).intersection(inspect.signature(function).parameters)
    return {name: getattr(o, name) for name in names if getattr(o, name) is not None}


def want(need: str, model_size: str, dtype: str, models_dir: str, source: str) -> Wanted:
    return Wanted(need, model_size, dtype, *load_encoder_and_hparams(model_size, models_dir, source))


def encode(encoder: Encoder, prompt: str) -> list[int]:
    """A prompt's ids; an empty one begins with <|endoftext|>."""
    return encoder.encode(prompt) or [encoder.eot]


def with_ids_of(target: Wanted, draft: Wanted) -> Wanted:
    """The draft, which is to take and give the target's ids also where its own vocabulary has another end.

    Raises UserError where the two differ in more than their ends.
    """
    shared = share(target.encoder, draft.encoder)
    if shared is None:
        raise different(target.model_size, draft.model_size)
    if shared.n_shared == target.encoder.n_vocab == draft.encoder.n_vocab:
        return draft
    return draft._replace(hparams=draft.hparams | {"shared": shared})
