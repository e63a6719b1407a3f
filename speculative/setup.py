"""From the flags to what decodes: the texts, the models and the drafter, built before the clock starts."""

import sys
from collections.abc import Callable
from functools import partial

from utils import UserError, load_encoder_and_hparams, load_params, model_folder

from . import memory, verify
from .drafters import Parts, make_drafter, needs_model, ngram_model
from .engines import packed
from .engines.cached import CachedModel
from .filters import to_distribution

MAX_TEXT_BYTES = 2**28  # so that no endless file, such as /dev/zero, fills the memory


def read_text(path: str, what: str) -> str:
    """A text file as it is, UTF-8; "-" is the standard input. Raises UserError."""
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as f:
            data = f.read(MAX_TEXT_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"byte {error.start} is not UTF-8"
        raise UserError(f"cannot read the {what} from {path}: {reason}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise UserError(f"the {what} from {path} is longer than {MAX_TEXT_BYTES:,} bytes")
    if not text.strip():
        raise UserError(f"the {what} from {path} is empty: it should be some text")
    return text


def create_probs_fns(o, temperature: float) -> tuple[Callable, Callable]:
    """(the target's function from logits to distributions, the draft's), with the filters of the options."""
    to_probs = partial(to_distribution, top_k=o.top_k, top_p=o.top_p)
    draft_temperature = temperature if o.draft_temperature is None else o.draft_temperature
    return partial(to_probs, temperature=temperature), partial(to_probs, temperature=draft_temperature)


def create_draft_fn(o, encoder, draft_model, draft_to_probs: Callable, ngram_text: str) -> Callable:
    """-> rng -> the drafter of the options, which draws from that generator."""
    ngram = ngram_model(encoder.n_vocab, draft_to_probs, encoder.encode(ngram_text, allowed_special=True))
    return lambda rng: make_drafter(o.drafter, Parts(encoder.n_vocab, rng, ngram, draft_model))


def create_model_fn(params: dict, hparams: dict, to_probs: Callable) -> CachedModel:
    """A network -> a function from tokens to distributions, with a cache of its own."""
    return CachedModel(params, hparams, to_probs, packed.cache_class())


def load_models(o, prompt: str):
    """(encoder, the prompt's ids, target model, draft model or None) of the options. Raises UserError.

    The small files are read first: whether the models fit each other, the prompt their context and their weights the
    memory is known before gigabytes are read.
    """
    sizes = [(o.target_model_size, o.dtype)]
    if needs_model(o.drafter):
        sizes.append((o.draft_model_size, o.draft_dtype))
    small = [load_encoder_and_hparams(model_size, o.models_dir, o.source) for model_size, _ in sizes]
    vocabularies = [(encoder.id_to_bytes, encoder.merges) for encoder, _ in small]
    if vocabularies[0] != vocabularies[-1]:
        pair = f"{o.draft_model_size} and {o.target_model_size}"
        raise UserError(f"{pair} have different vocabularies, so one cannot draft for the other")
    encoder, _ = small[0]
    input_ids = encoder.encode(prompt) or [encoder.eot]
    n_ctx = min(hparams["n_ctx"] for _, hparams in small)
    if len(input_ids) + o.n_tokens_to_generate > n_ctx:
        needed = f"the prompt's {len(input_ids)} tokens and {o.n_tokens_to_generate} more"
        raise UserError(f"{needed} exceed the context of {n_ctx} tokens: shorten the one or ask for fewer of the other")
    if o.verify and n_ctx < (n_new := verify.most_new(o.K)) + 2:
        raise UserError(f"--verify with --K {o.K} decodes {n_new} tokens, too many for a context of {n_ctx}")
    memory.check([(hparams, dtype) for (_, hparams), (_, dtype) in zip(small, sizes, strict=True)])

    load = jax_loader(o, len(input_ids)) if o.engine == "jax" else load_on_numpy
    models = []
    for (size, dtype), (_, hparams), to_probs in zip(sizes, small, create_probs_fns(o, o.temperature), strict=False):
        read = partial(load_params, model_folder(size, o.models_dir), hparams)
        models.append(load(read, hparams, dtype, to_probs))
    return encoder, input_ids, models[0], models[1] if models[1:] else None


def load_on_numpy(read: Callable, hparams: dict, dtype: str, to_probs: Callable) -> CachedModel:
    """read(convert) gives the parameters, as utils.load_params does."""
    packed.warm_up(dtype)
    return create_model_fn(read(packed.packer(dtype)), hparams, to_probs)


def jax_loader(o, n_prompt: int) -> Callable:
    """load_on_numpy's twin for whatever devices JAX has, split over o.mesh of them -> JaxModel. Raises UserError."""
    from .engines.jax_engine import JaxModel, keep_compiled
    from .engines.sharding import make_mesh, place

    keep_compiled()
    mesh = make_mesh(o.mesh)

    def load_on_jax(read, hparams, dtype, to_probs):
        model = JaxModel(place(read, hparams, dtype, mesh), to_probs)
        if o.drafter != "model" or o.K == "auto":  # else nothing but decode_on_device runs it
            seconds = model.warm_up(n_prompt, 10 if o.K == "auto" else o.K)
            print(f"compiled a model in {seconds:.1f} s", file=sys.stderr)
        return model

    return load_on_jax


def choose_engine(o) -> str:
    """ "numpy" or "jax", which auto takes where it is installed and sees an accelerator. Raises UserError."""
    engine = o.engine
    if engine != "numpy":
        try:
            from .engines.jax_engine import has_accelerator
            from .engines.sharding import start_processes

            start_processes()  # once, and before JAX is asked for its devices
            engine = "jax" if engine == "jax" or has_accelerator() else "numpy"
        except UserError:
            if engine == "jax":
                raise
            engine = "numpy"
    if engine == "jax" and "int8" in (o.dtype, o.draft_dtype):
        raise UserError("--engine jax has float32 and bfloat16: choose one of them, or --engine numpy for int8")
    if engine == "jax" and o.verify:
        raise UserError("--verify compares to the bit, which only --engine numpy promises")
    if engine == "numpy" and o.mesh > 1:
        raise UserError("--mesh splits the models over the devices of --engine jax: add it, or leave --mesh out")
    return engine


def decode_on_device(o, input_ids, target_model, draft_model) -> tuple[Callable, Callable]:
    """Both decoders as one compiled loop each, which the host hears of every few iterations only."""
    from .engines.jax_loop import DeviceDecoder

    filters = {"temperature": o.temperature, "top_k": o.top_k, "top_p": o.top_p, "lenience": o.lenience}
    networks = target_model.network, draft_model.network
    decoder = DeviceDecoder(*networks, **filters, draft_temperature=o.draft_temperature)
    n, N = len(input_ids), o.n_tokens_to_generate
    seconds = decoder.warm_up(n, N, 0) + decoder.warm_up(n, N, o.K)
    print(f"compiled both loops in {seconds:.1f} s", file=sys.stderr)

    def autoregressive_decode(rng, recorder):
        return decoder.autoregressive(input_ids, N, int(rng.integers(2**32)))

    def speculative_decode(rng, recorder):
        return decoder.speculative(input_ids, N, o.K, int(rng.integers(2**32)))

    return autoregressive_decode, speculative_decode
