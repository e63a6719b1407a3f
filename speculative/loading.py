"""From names of models to a Pair that decodes.

The small files are read first: they are enough for all that checks.py looks at.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from speculative import accept, checks, drafters
from speculative.blog.encoder import Encoder
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.checkpoints.tensors import checkpoint_shapes, parameter_count
from speculative.decoding import Pair, lookaheads
from speculative.drafters.base import Setting
from speculative.engines import cpu, devices, formats, packed, packed_files, runtime
from speculative.engines.models import load_models, packed_model
from speculative.engines.vocabulary import share
from speculative.filters import Filters
from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.support.options import Options
from speculative.support.progress import working


def weight_format(value: str) -> str:
    return arguments.one_of(*formats.FORMATS)(value)


def draft_weight_format(value: str) -> str:
    return arguments.one_of(*formats.FORMATS, "auto")(value)


SLOW = 5  # seconds of reading and packing, from which on it is said how to do without
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
        "threads of the NumPy engine, at most [one for each core]",
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
    """A model that is to be loaded, with what its small files say."""

    need: str  # "target", "draft" or "copy"
    model_size: str
    dtype: str
    encoder: Encoder
    hparams: dict


Kept = dict[str, tuple[Wanted, Any]]  # {need: (what was wanted, the model)}: what is loaded and stays


def choose(o: Options, kept: Kept) -> dict[str, Wanted]:
    """{need: model} of the target and what its drafter needs: a draft model, a copy, both or neither.

    Reads the small files of those that are not kept, after a download of what is missing. Raises UserError.
    """
    needs = {need for kind in drafters.kinds_of(o.drafter) for need in kind.needs}
    if "target" in kept:
        target, _ = kept["target"]
    else:
        target = want("target", o.target_model_size, o.dtype, o)
    wanted = {"target": target}
    if "copy" in needs:
        dtype = devices.choose_self_dtype(o.self_dtype, o.dtype, o.engine)
        wanted["copy"] = target._replace(need="copy", dtype=dtype)
    if "draft" in needs and "draft" in kept:
        wanted["draft"], _ = kept["draft"]
    elif "draft" in needs:
        dtype = devices.choose_draft_dtype(o.draft_dtype, o.dtype, o.engine)
        wanted["draft"] = with_ids_of(target, want("draft", o.draft_model_size, dtype, o))
    return wanted


def context(wanted: dict[str, Wanted]) -> checks.Context:
    """The smallest of these models. Where all are the same, it is not said whose it is."""
    smallest = min(wanted.values(), key=lambda one: one.hparams["n_ctx"])
    n_ctx = smallest.hparams["n_ctx"]
    if all(one.hparams["n_ctx"] == n_ctx for one in wanted.values()):
        return n_ctx, ""
    return n_ctx, f" that {in_words(smallest)} has"


def check(o: Options, wanted: dict[str, Wanted], kept: Kept, longest: int, verify: bool = False) -> None:
    """Raises UserError where what is going to be decoded does not fit, before gigabytes are downloaded and read.

    longest: the tokens of the longest prompt; 0 where the prompts come later.
    """
    N = o.n_tokens_to_generate if longest else 1
    checks.check_length(context(wanted), max(longest, 1), N)
    if verify:
        checks.check_verify(context(wanted), N, o.K)
    if o.tree is not None and longest:
        checks.check_tree(o.drafter, o.tree, longest, N, context(wanted))
    if o.engine == "jax":
        for one in wanted.values():
            formats.on_jax(one.dtype)
    n_cached = o.batch // o.data_parallel * (longest + N) if o.batch > 1 else None
    new = [one for one in wanted.values() if one.need not in kept]
    checks.check_memory([(one.hparams, one.dtype) for one in new], o.engine, o.mesh, n_cached)
    checks.check_disk(o.models_dir, {one.model_size for one in new})


def load(o: Options, wanted: dict[str, Wanted], kept: Kept, longest: int, quiet: bool = False) -> Pair:
    """Reads the weights of those that are not kept, and keeps them -> the pair that decodes as the options say.

    longest: as in check(), for JAX, which compiles for it. Raises UserError.
    """
    folders = {need: complete_folder(one.model_size, o.models_dir, o.source) for need, one in wanted.items()}
    target = wanted["target"]
    prepared = {}
    for kind in drafters.kinds_of(o.drafter):
        if kind.prepare:
            options = o.taken(flag.name for flag in kind.flags)
            prepared[kind.name] = kind.prepare(Setting(folders["target"], target.hparams, target.encoder, options))
    lookahead, inner_K = lookaheads(o.K, o.tree, o.drafter)
    pair = Pair(
        target.encoder,
        models={},
        drafter=o.drafter,
        prepared=prepared,
        filters=Filters(**o.taken(Filters._fields)),
        draft_temperature=o.draft_temperature,
        lookahead=lookahead,
        inner_K=inner_K,
        accept=accept.choose(**o.taken(flag.name for flag in accept.FLAGS)),
    )
    one_loop = devices.one_loop(o.engine, o.drafter, o.K)
    if o.engine == "numpy":
        runtime.set_threads(o.threads)
        dtypes = [one.dtype for one in wanted.values() if one.need not in kept]
        runtime.warm_up(dtypes)  # so that what is compiled now is not taken for loading
        packed.compile_for(dtypes)
        load_fn = load_models
    else:
        load_fn = devices.loader(o.mesh, o.data_parallel, None if one_loop else (max(longest, 1), o.K))
    to_probs = {need: pair.filters if need == "target" else pair.draft_filters for need in wanted}
    of_size = {}  # the copy comes with the target, from one reading
    for one in wanted.values():
        if one.need in kept:
            pair.models[one.need] = kept[one.need][1].with_probs(to_probs[one.need])
        else:
            of_size.setdefault(one.model_size, []).append(one)
    for together in of_size.values():
        folder = folders[together[0].need]
        models = {}
        if o.engine == "numpy":
            models = mapped_models(together, folder, o.models_dir, to_probs, quiet)
        unread = [one for one in together if one.need not in models]
        if unread:
            models |= read_models(unread, folder, load_fn, to_probs, quiet)
        for one in together:
            pair.models[one.need] = models[one.need]
            kept[one.need] = one, models[one.need]
    if one_loop:
        return devices.pair_of_one_loop(pair)
    pair.check_drafter()
    return pair


def mapped_models(
    wanted: list[Wanted], folder: str, models_dir: str, to_probs: dict[str, Filters], quiet: bool
) -> dict[str, Any]:
    """{need: model} of those that --pack has written to the disk. folder: of their weights."""
    models = {}
    for one in wanted if os.path.isdir(os.path.join(models_dir, "packed")) and cpu.has_numba() else ():
        path = packed_files.path_of(folder, models_dir, one.dtype)
        if not os.path.isfile(path):
            continue
        params = packed_files.load(path, one.hparams, one.dtype)
        name = f"{in_words(one)}, mapped from {path},"
        models[one.need] = packed_model(params, one.hparams, to_probs[one.need], name)
        if not quiet:
            print(f"{one.model_size}: mapped from {path}", file=sys.stderr)
    return models


def read_models(
    wanted: list[Wanted],
    folder: str,
    load_fn: Callable,
    to_probs: dict[str, Filters],
    quiet: bool,
    slow: float = SLOW,
) -> dict[str, Any]:
    """{need: model} of one size, from one reading of its weights, which a bar shows where it takes long. Where that
    takes more than `slow` seconds, a line says what --pack would save."""
    hparams = wanted[0].hparams
    n_bytes = 4 * parameter_count(hparams)
    seconds = 0.0

    def read(convert):
        nonlocal seconds
        start = time.perf_counter()
        params = load_params(folder, hparams, convert, bar.update)
        seconds = time.perf_counter() - start
        return params

    with working(f"loading {wanted[0].model_size}", n_bytes, "B", quiet or n_bytes < LARGE, unit_scale=True) as bar:
        dtypes = [one.dtype for one in wanted]
        models = load_fn(read, hparams, dtypes, [to_probs[one.need] for one in wanted], [*map(in_words, wanted)])
    if seconds > slow and load_fn is load_models and cpu.has_numba() and not quiet:
        on_disk = sum(formats.model_bytes(one.dtype, checkpoint_shapes(hparams)) for one in wanted)
        save = f"--pack, given once, saves most of it at each start, for {on_disk / 1e9:.1f} GB of disk"
        print(f"{wanted[0].model_size}: read and packed in {seconds:.0f} s; {save}", file=sys.stderr)
    return {one.need: model for one, model in zip(wanted, models, strict=True)}


def in_words(one: Wanted) -> str:
    return f"the {one.need} {one.model_size}"


def want(need: str, model_size: str, dtype: str, o: Options) -> Wanted:
    return Wanted(need, model_size, dtype, *load_encoder_and_hparams(model_size, o.models_dir, o.source))


def with_ids_of(target: Wanted, draft: Wanted) -> Wanted:
    """The draft, set to use the target's token ids. Their vocabularies may differ at the end.

    Raises UserError where the two differ in more than their ends.
    """
    shared = share(target.encoder, draft.encoder)
    if shared is None:
        raise checks.different(target.model_size, draft.model_size)
    if shared.n_shared == target.encoder.n_vocab == draft.encoder.n_vocab:
        return draft
    return draft._replace(hparams=draft.hparams | {"shared": shared})


def stand_ins(o: Options, pair: Pair) -> dict[str, str]:
    """{model with an official name, but not the official weights: what it is instead}"""
    sizes = {"target": o.target_model_size, "draft": o.draft_model_size}
    instead = {size: pair.models[need].hparams.get("stand_in") for need, size in sizes.items() if need in pair.models}
    return {size: what for size, what in instead.items() if what}
