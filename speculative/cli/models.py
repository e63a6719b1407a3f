"""From the flags to what decodes: the models and the drafter, built before the clock starts."""

from collections.abc import Callable, Collection
from functools import partial

import numpy as np

from plumbing.errors import UserError
from plumbing.official import WEIGHT_BYTES
from speculative.cli import devices
from speculative.cli.flags import Options
from speculative.cli.trees import check_tree, create_tree_draft
from speculative.drafters import Parts, drafter_names, make_drafter, needs_model, ngram_model
from speculative.engines import memory, packed
from speculative.engines.plain import CachedModel
from speculative.filters import to_distribution
from speculative.heads import check_heads, head_model, load_heads
from speculative.measure import verify
from speculative.typical import certain, typical_target
from utils import complete_folder, load_encoder_and_hparams, load_params, missing_files, model_folder


def create_probs_fns(o: Options, temperature: float) -> tuple[Callable, Callable]:
    """(the target's function from logits to distributions, the draft's), with the filters of the options."""
    to_probs = partial(to_distribution, top_k=o.top_k, top_p=o.top_p)
    draft_temperature = temperature if o.draft_temperature is None else o.draft_temperature
    if o.tree and temperature == 0:  # the draft ranks several tokens, so it needs the chances of more than one
        draft_temperature = draft_temperature or 1.0
    return partial(to_probs, temperature=temperature), partial(to_probs, temperature=draft_temperature)


def create_draft_fn(o: Options, encoder, models, temperature: float, ngram_text: str) -> Callable:
    """-> rng -> the drafter of the options, which draws from that generator; with --tree one that gives trees.

    models: the target, whose heads may draft, and the draft model or None.
    """
    target_model, draft_model = models
    _, draft_to_probs = create_probs_fns(o, temperature)
    ngram = ngram_model(encoder.n_vocab, draft_to_probs, encoder.encode(ngram_text, allowed_special=True))

    def create_draft(rng):
        parts = Parts(encoder.n_vocab, rng, ngram, draft_model, head_model(target_model, draft_to_probs))
        draft = create_tree_draft(o, parts, temperature) if o.tree else make_drafter(o.drafter, parts)
        return certain(draft, encoder.n_vocab) if o.typical else draft

    return create_draft


def create_scoring_fn(o: Options, target_model) -> Callable:
    """The target as the speculative decoder is to take it."""
    return typical_target(target_model, o.typical) if o.typical else target_model


def create_model_fn(params: dict, hparams: dict, to_probs: Callable) -> CachedModel:
    """A network -> a function from tokens to distributions, with a cache of its own. Packs what is not packed yet."""
    packed.warm_up()
    return CachedModel(packed.pack(params, packed.packer("float32")), hparams, to_probs, packed.new_pass)


def load_models(o: Options, prompts: list[str]):
    """(encoder, each prompt's ids, target model, draft model or None) of the options. Raises UserError.

    The small files come first, so that vocabularies that differ, too long a prompt, too little memory or too full a
    disk are reported before gigabytes are downloaded and read.
    """
    sizes = [(o.target_model_size, o.dtype)]
    if needs_model(o.drafter):
        sizes.append((o.draft_model_size, o.draft_dtype))
    small = [load_encoder_and_hparams(model_size, o.models_dir, o.source) for model_size, _ in sizes]
    encoder, _ = small[0]
    if len(small) > 1:
        check_vocabularies({o.draft_model_size: small[1][0], o.target_model_size: encoder})
    input_ids = [encoder.encode(prompt) or [encoder.eot] for prompt in prompts]
    longest = max(map(len, input_ids))
    check_fit(o, [(hparams, dtype) for (_, hparams), (_, dtype) in zip(small, sizes, strict=True)], longest)
    check_disk(o, {size for size, _ in sizes})
    folders = [complete_folder(size, o.models_dir, o.source) for size, _ in sizes]

    heads = None
    if "heads" in drafter_names(o.drafter):
        heads = load_heads(model_folder(o.target_model_size, o.models_dir), small[0][1])
    if o.engine == "numpy":
        packed.set_threads(o.threads)
    load = devices.create_loader(o, longest) if o.engine == "jax" else load_on_numpy
    to_probs, models = create_probs_fns(o, o.temperature), {"target": None, "draft": None}
    # Where nothing needs the draft, sizes has one entry.
    for role, folder, (_, dtype), (_, hparams), to_probs_fn in zip(
        models, folders, sizes, small, to_probs, strict=False
    ):
        read = partial(load_params, folder, hparams)
        models[role] = load(read, hparams, dtype, to_probs_fn, role)
    if heads:
        models["target"].heads = check_heads(heads, small[0][1], models["target"].params["ln_f"])
    return encoder, input_ids, models["target"], models["draft"]


def check_vocabularies(encoders: dict) -> None:
    """encoders: {name of the draft: its Encoder, name of the target: its own}. Raises UserError where they differ."""
    vocabularies = [(encoder.id_to_bytes, encoder.merges) for encoder in encoders.values()]
    if vocabularies[0] != vocabularies[-1]:
        raise UserError(f"{' and '.join(encoders)} have different vocabularies, so one cannot draft for the other")


def check_fit(o: Options, models: list[tuple[dict, str]], longest: int) -> None:
    """Raises UserError where the longest prompt does not fit into the context, or the models into memory.

    models: (hparams, dtype) of the target, and of the draft where there is one.
    """
    n_ctx = min(hparams["n_ctx"] for hparams, _ in models)
    if longest + o.n_tokens_to_generate > n_ctx:
        needed = f"the prompt's {longest} tokens and {o.n_tokens_to_generate} more"
        raise UserError(
            f"{needed} exceed the context of {n_ctx} tokens: shorten the prompt or lower --n_tokens_to_generate"
        )
    check_tree(o, longest, n_ctx)
    if o.verify and n_ctx < (n_new := verify.most_new(o.K)) + 2:
        raise UserError(f"--verify with --K {o.K} decodes {n_new} tokens, too many for a context of {n_ctx}")
    n_cached = o.batch // o.data_parallel * (longest + o.n_tokens_to_generate) if o.batch > 1 else None
    if o.engine == "numpy" or not devices.has_accelerator():
        memory.check(models, n_cached=n_cached)
    elif (free := devices.free_memory(o)) is not None:
        memory.check(models, free, n_cached)


def check_disk(o: Options, sizes: Collection[str]) -> None:
    """Raises UserError where the weights that are to be downloaded do not fit on the disk together."""
    missing = [size for size in sizes if missing_files(model_folder(size, o.models_dir))]
    if missing:
        from plumbing.fetch import check_disk_space

        check_disk_space(o.models_dir, sum(WEIGHT_BYTES.get(size, 0) for size in missing))


def load_on_numpy(read: Callable, hparams: dict, dtype: str, to_probs: Callable, role: str) -> CachedModel:
    """read(convert) gives the parameters, as utils.load_params does."""
    model = create_model_fn(read(packed.packer(dtype)), hparams, to_probs)
    # The first call of each kind pays for memory and threads that the later ones find ready: it is not timed.
    for n_last in (1, 5):  # a row; a window of rows
        model(np.zeros(min(8, model.n_ctx), int), min(n_last, model.n_ctx))
    return model
