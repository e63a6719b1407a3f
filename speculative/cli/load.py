"""From names of models to a Pair that decodes.

The small files come first, so that vocabularies that differ, too long a prompt, too little memory or too full a disk
are reported before gigabytes are downloaded and read.
"""

import inspect
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from tqdm import tqdm

from checkpoints.tensors import parameter_count
from encoder import Encoder
from plumbing import arguments
from plumbing.arguments import Flag
from plumbing.errors import UserError
from plumbing.official import WEIGHT_BYTES
from plumbing.patience import lines
from speculative import drafters
from speculative.autotree import NODES
from speculative.cli import devices
from speculative.decoding import Pair, lookaheads
from speculative.drafters.base import Setting
from speculative.engines import formats, memory, runtime
from speculative.engines.models import load_models
from speculative.engines.vocabulary import share
from speculative.filters import Filters
from speculative.measure.verify import most_new
from speculative.trees import n_nodes
from utils import complete_folder, load_encoder_and_hparams, load_params, missing_files, model_folder


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
        "of the draft model; the output stays lossless; auto: int8, with jax the target's",
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

    need: str  # "target" or "draft"
    model_size: str
    dtype: str
    encoder: Encoder
    hparams: dict


def load_pair(
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
    """Loads two models, or one where the drafter needs no other. Official ones that are missing are downloaded.

    Most arguments are main.py's flags of the same name. prompts, n_tokens_to_generate and verify: what is going to be
    decoded, if that is known, so that what does not fit is told first. drafter_options: of the drafters' own flags.
    Of several drafters the first is the pair's, and it has what the others need. kept: what was loaded before, by need,
    with arguments that differed in nothing but how it decodes; it is not loaded again, and what is loaded is added.
    Raises UserError.
    """
    names = [drafter] if isinstance(drafter, str) else list(drafter)
    kinds = drafters.kinds_of(*names)
    draft_dtype = devices.choose_draft_dtype(draft_dtype, dtype, engine)
    filters = Filters(temperature, top_k, top_p)
    chosen, inner_K = lookaheads(K, tree, names[0])
    kept = {} if kept is None else kept
    wanted = [kept["target"][0] if kept else want("target", target_model_size, dtype, models_dir, source)]
    needs = {need for kind in kinds for need in kind.needs}
    if "copy" in needs:
        self_dtype = devices.choose_self_dtype(self_dtype, dtype, engine)
        wanted.append(wanted[0]._replace(need="copy", dtype=self_dtype))
    if "draft" in needs:
        if "draft" in kept:
            wanted.append(kept["draft"][0])
        else:
            draft = want("draft", draft_model_size, draft_dtype, models_dir, source)
            wanted.append(speaking(draft, wanted[0]))
    encoder = wanted[0].encoder
    longest = max([len(encode(encoder, prompt)) for prompt in prompts], default=1)
    contexts = {f"{one.need} {one.model_size}": one.hparams["n_ctx"] for one in wanted}
    check_length(contexts, longest, n_tokens_to_generate)
    if verify:
        check_verify(contexts, K)
    if tree is not None and prompts:
        check_tree(names[0], tree, longest, n_tokens_to_generate, contexts)
    if engine == "jax":
        for one in wanted:
            formats.on_jax(one.dtype)
    new = [one for one in wanted if one.need not in kept]
    check_memory(new, engine, mesh, batch // data_parallel * (longest + n_tokens_to_generate) if batch > 1 else None)
    check_disk(models_dir, {one.model_size for one in new})
    folders = {one.need: complete_folder(one.model_size, models_dir, source) for one in wanted}
    setting = Setting(folders["target"], wanted[0].hparams, encoder, drafter_options or {})
    prepared = {kind.name: kind.prepare(setting) for kind in kinds if kind.prepare}

    pair = Pair(
        encoder,
        models={},
        drafter=names[0],
        prepared=prepared,
        filters=filters,
        draft_temperature=draft_temperature,
        lookahead=chosen,
        inner_K=inner_K,
        lenience=lenience,
        typical=typical,
    )
    if engine == "numpy":
        runtime.set_threads(threads)
        load = load_models
    else:
        load = devices.loader(mesh, data_parallel, None if devices.one_loop(engine, names[0], K) else (longest, K))
    to_probs = {one.need: filters if one.need == "target" else pair.draft_filters for one in wanted}
    pair.models.update({need: kept[need][1].with_probs(to_probs[need]) for need in to_probs if need in kept})
    for model_size in dict.fromkeys(one.model_size for one in new):  # the copy comes with the target, from one reading
        of_size = [one for one in new if one.model_size == model_size]
        n_bytes = 4 * parameter_count(of_size[0].hparams)
        off = True if quiet or n_bytes < LARGE else None  # None: unless standard error is a terminal
        bar = tqdm(desc=f"loading {model_size}", total=n_bytes, unit="B", unit_scale=True, leave=False, disable=off)
        read = partial(load_params, folders[of_size[0].need], of_size[0].hparams, progress=bar.update)
        dtypes = [one.dtype for one in of_size]
        with lines(f"loading {model_size}"), bar:
            models = load(read, of_size[0].hparams, dtypes, [to_probs[one.need] for one in of_size])
        for one, model in zip(of_size, models, strict=True):
            pair.models[one.need] = model
            kept[one.need] = one, model
    if devices.one_loop(engine, names[0], K):
        return devices.pair_of_one_loop(pair)
    pair.check_drafter()
    return pair


def load(o: Any, prompts: Sequence[str], kept: dict | None = None) -> Pair:
    """load_pair, with the options of a command line."""
    names = set(o._fields).intersection(inspect.signature(load_pair).parameters)
    options = {name: getattr(o, name) for name in names if getattr(o, name) is not None}
    of_drafters = {flag.name: getattr(o, flag.name) for flag in drafters.flags_of_kinds()}
    return load_pair(**options, prompts=prompts, drafter_options=of_drafters, kept=kept)


def want(need: str, model_size: str, dtype: str, models_dir: str, source: str) -> Wanted:
    return Wanted(need, model_size, dtype, *load_encoder_and_hparams(model_size, models_dir, source))


def encode(encoder: Encoder, prompt: str) -> list[int]:
    """A prompt's ids; an empty one begins with <|endoftext|>."""
    return encoder.encode(prompt) or [encoder.eot]


def smallest(contexts: dict[str, int]) -> tuple[int, str]:
    """{model: its n_ctx} -> the smallest, and in words whose that is, where others are larger."""
    name = min(contexts, key=contexts.get)
    return contexts[name], "" if len({*contexts.values()}) == 1 else f" that the {name} has"


def speaking(draft: Wanted, target: Wanted) -> Wanted:
    """The draft with the target's ids, where its vocabulary ends in another way. Raises UserError where the two differ
    in more."""
    shared = share(target.encoder, draft.encoder)
    if shared is None:
        raise different(target.model_size, draft.model_size)
    if shared.n_shared == target.encoder.n_vocab == draft.encoder.n_vocab:
        return draft
    return draft._replace(hparams=draft.hparams | {"shared": shared})


def check_vocabularies(target: str, encoder: Encoder, draft: str, drafts_encoder: Encoder) -> None:
    """target and draft: their names. Raises UserError where they differ in anything, which nothing makes up for while
    a draft is trained."""
    if vocabulary(encoder) != vocabulary(drafts_encoder):
        raise different(target, draft)


def different(target: str, draft: str) -> UserError:
    return UserError(f"{draft} and {target} have different vocabularies, so one cannot draft for the other")


def vocabulary(encoder: Encoder) -> tuple:
    return encoder.id_to_bytes, encoder.merges


def check_fits(pair: Pair, tree: tuple[int, ...] | str | None, n_prompt: int, n_new: int) -> None:
    """Raises UserError where a prompt and what is to be decoded do not fit into what is loaded."""
    contexts = {need: model.n_ctx for need, model in pair.models.items()}
    check_length(contexts, n_prompt, n_new)
    if tree is not None:
        check_tree(pair.drafter, tree, n_prompt, n_new, contexts)


def check_length(contexts: dict[str, int], longest: int, n_new: int) -> None:
    """Raises UserError where the longest prompt and what is to be decoded do not fit into the smallest context."""
    n_ctx, whose = smallest(contexts)
    if longest + n_new > n_ctx:
        raise UserError(
            f"the prompt's {longest} tokens and {n_new} more exceed the context of {n_ctx} tokens{whose}: "
            "shorten the prompt or lower --n_tokens_to_generate"
        )


def check_verify(contexts: dict[str, int], K) -> None:
    """Raises UserError where what --verify decodes does not fit into the context."""
    n_new = most_new(K)
    n_ctx, whose = smallest(contexts)
    if n_ctx < n_new + 2:
        raise UserError(f"--verify with --K {K} decodes {n_new} tokens, too many for a context of {n_ctx}{whose}")


def check_tree(drafter: str, tree: tuple[int, ...] | str, n_prompt: int, n_new: int, contexts: dict[str, int]) -> None:
    """Raises UserError where the drafter draws no trees, or such a tree does not fit."""
    drafters.check_tree(drafter)
    depth = 0 if tree == "auto" else len(tree)
    nodes = NODES if tree == "auto" else n_nodes(tree)
    if depth >= n_new:
        raise UserError(
            f"a tree of {depth} levels needs --n_tokens_to_generate of at least {depth + 1}, not {n_new}: a level for "
            "each token but the last"
        )
    n_ctx, whose = smallest(contexts)
    if (needed := n_prompt + n_new + nodes) > n_ctx:
        raise UserError(
            f"the prompt, {n_new} more tokens and a tree of {nodes} nodes take {needed} places of a context of "
            f"{n_ctx}{whose}: shorten one of them"
        )


def check_memory(wanted: Sequence[Wanted], engine: str, mesh: int, n_cached: int | None) -> None:
    """Raises UserError where the models do not fit into the memory in which they are to lie. n_cached: tokens of all
    prompts that are decoded together, where these are several."""
    models = [(one.hparams, one.dtype) for one in wanted]
    if engine == "numpy" or not devices.has_accelerator():
        memory.check(models, n_cached=n_cached, jax=engine == "jax")
    elif (free := devices.free_memory(mesh)) is not None:
        memory.check(models, free, n_cached, jax=True)


def check_disk(models_dir: str, model_sizes: Collection[str]) -> None:
    """Raises UserError where the weights that are to be downloaded do not fit on the disk together."""
    missing = [size for size in model_sizes if missing_files(model_folder(size, models_dir))]
    if missing:
        from plumbing.fetch import check_disk_space

        check_disk_space(models_dir, sum(WEIGHT_BYTES.get(size, 0) for size in missing))
