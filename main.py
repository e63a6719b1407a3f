"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # Ctrl-C during the imports below; from then on cli() sees to it
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

import fire
import numpy as np
from tqdm import tqdm

from speculative import memory, report, verify
from speculative.drafters import Parts, make_drafter, needs_model, ngram_model
from speculative.engines import packed
from speculative.engines.cached import CachedModel, KVCache
from speculative.filters import to_distribution
from speculative.lookahead import AutoK
from speculative.options import parse_flags, usage, with_values
from speculative.recorder import Recorder
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling
from speculative.stop import until_stop
from utils import UserError, load_encoder_and_hparams, load_params, model_folder

__all__ = ["autoregressive_sampling", "main", "max_fn", "sample", "speculative_sampling"]

# What --demo changes: the bundled pair, and a prompt of the kind that it was trained on.
DEMO = {
    "prompt": "He took one last look at the glen and then went back to the",
    "draft_model_size": "tiny-draft",
    "target_model_size": "tiny-target",
    "models_dir": str(Path(__file__).parent / "models"),
}


def create_model_fn(params, hparams, to_probs):
    """A network -> a function from tokens to distributions, with a cache of its own."""
    cache = packed.PackedKVCache if packed.kernels() else KVCache
    return CachedModel(params, hparams, to_probs, cache)


def create_probs_fns(o, temperature):
    """(the target's function from logits to distributions, the draft's), with the filters of the options."""
    to_probs = partial(to_distribution, top_k=o.top_k, top_p=o.top_p)
    draft_temperature = temperature if o.draft_temperature is None else o.draft_temperature
    return partial(to_probs, temperature=temperature), partial(to_probs, temperature=draft_temperature)


def create_draft_fn(o, encoder, draft_model, draft_to_probs, ngram_text):
    """-> rng -> the drafter of the options, which draws from that generator."""
    ngram = ngram_model(encoder.n_vocab, draft_to_probs, encoder.encode(ngram_text, allowed_special=True))
    return lambda rng: make_drafter(o.drafter, Parts(encoder.n_vocab, rng, ngram, draft_model))


def load_models(o, prompt):
    """(encoder, target model, draft model or None, prompt's ids) of the options.

    The small files are read first: whether the models fit each other, the prompt their context and their weights the
    memory is known before gigabytes are read.
    """
    sizes = [(o.target_model_size, o.dtype), (o.draft_model_size, o.draft_dtype)][: 1 + needs_model(o.drafter)]
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
    memory.check([(hparams, dtype) for (_, hparams), (_, dtype) in zip(small, sizes, strict=True)])

    models = []
    for (model_size, dtype), (_, hparams), to_probs in zip(
        sizes, small, create_probs_fns(o, o.temperature), strict=False
    ):
        packed.warm_up(dtype)
        params = load_params(model_folder(model_size, o.models_dir), hparams, packed.packer(dtype))
        models.append(create_model_fn(params, hparams, to_probs))
    return encoder, models[0], models[1] if models[1:] else None, input_ids


MAX_TEXT_BYTES = 2**28  # so that no endless file, such as /dev/zero, fills the memory


def read_text(path, what):
    """A text file as it is, UTF-8; "-" is the standard input."""
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


def run_sampling_fn(title, decode_fn, o, encoder, prompt):
    """Decodes o.n_samples times and prints the blog's lines -> the Recorder of what happened.

    decode_fn(rng, recorder) -> Steps. Each sample has a generator of its own, the same ones for every decoder.
    """
    print(f"\n{title}\n{'-' * len(title)}", flush=True)
    recorder, color = Recorder(o.lenience), report.use_color(o.color)
    texts = []
    for s in range(o.n_samples):
        rng = np.random.default_rng([o.seed, s] if s else o.seed)
        steps = decode_fn(rng, recorder)
        if o.stop:
            steps = until_stop(steps, encoder, [o.stop])
        writer = report.TextWriter(encoder, color, o.stop)
        if o.stream:
            print(f"Text = {prompt}", end="", flush=True)
        try:
            with tqdm(total=o.n_tokens_to_generate, unit="token", leave=False, disable=o.stream or None) as bar:
                for step in recorder.watch(steps):
                    new = writer.push(step)
                    bar.update(len(step.tokens))
                    if o.stream:
                        print(new, end="", flush=True)
        except KeyboardInterrupt:
            texts.append(prompt + writer.text)
            print(*[""] if o.stream else [f"Text = {text}" for text in texts], sep="\n", flush=True)
            raise
        if o.stream:
            print(writer.end())
        else:
            texts.append(prompt + writer.text + writer.end())
    print(f"Time = {recorder.seconds:.2f}s")
    for text in texts:
        print(f"Text = {text}")
    sys.stdout.flush()
    return recorder


def main(**flags):
    """See --help. Every value arrives as the string that was typed, and speculative/options.py says what it may be."""
    o = parse_flags(flags, DEMO)
    if o.json:
        report.check_writable(o.json)
    prompt = "" if o.unconditional else read_text(o.prompt_file, "prompt") if o.prompt_file else o.prompt
    ngram_text = read_text(o.ngram_text, "text for n-grams") if o.ngram_text else ""
    packed.set_threads(o.threads)

    encoder, target_model, draft_model, input_ids = load_models(o, prompt)
    if o.verify:
        return verify_models(o, encoder, target_model, draft_model, input_ids, ngram_text)
    models = [model for model in (target_model, draft_model) if model]
    create_draft = create_draft_fn(o, encoder, draft_model, create_probs_fns(o, o.temperature)[1], ngram_text)
    auto_K, N = AutoK(), o.n_tokens_to_generate

    # The first call of each kind pays for memory and threads that the later ones find ready: it is not timed.
    for model in models:
        model(np.zeros(8, int), 1)
        model(np.zeros(8, int), 5)

    def autoregressive_decode(rng, recorder):
        return autoregressive_sampling(input_ids, recorder.target(target_model), N, rng)

    def speculative_decode(rng, recorder):
        draft, target = recorder.draft(create_draft(rng)), recorder.target(target_model)
        if o.K == "auto":
            return auto_K.decode(input_ids, draft, target, N, rng, lenience=o.lenience)
        return speculative_sampling(input_ids, draft, target, N, o.K, rng, lenience=o.lenience)

    runs = []
    for title, decode in [("Autoregressive Decode", autoregressive_decode), ("Speculative Decode", speculative_decode)]:
        for model in models:
            model.forget()
        runs.append(run_sampling_fn(title, decode, o, encoder, prompt))
    report.show(o, encoder, prompt, input_ids, *runs, weight_bytes=target_model.weight_bytes)


def verify_models(o, encoder, target_model, draft_model, input_ids, ngram_text):
    """--verify: the proof instead of the run. Exit status 1 where it fails."""

    def decoders(temperature):
        to_probs, draft_to_probs = create_probs_fns(o, temperature)
        draft = draft_model and draft_model.with_probs(draft_to_probs)
        create_draft = create_draft_fn(o, encoder, draft, draft_to_probs, ngram_text)
        return verify.Decoders(target_model.with_probs(to_probs), create_draft, options={"lenience": o.lenience})

    n_new = max(40, 2 * (1 + (4 if o.K == "auto" else o.K)))  # the most that verify adds to a prompt
    n_ctx = min(model.n_ctx for model in (target_model, draft_model) if model)
    if n_ctx < n_new + 2:
        raise UserError(f"--verify with --K {o.K} decodes {n_new} tokens, too many for a context of {n_ctx}")
    prompts = [ids[n_new - n_ctx :] for ids in [input_ids, *map(encoder.encode, verify.PROMPTS)]]
    checks = verify.verify(decoders, o.temperature, prompts, AutoK if o.K == "auto" else o.K, seed=o.seed)
    if not verify.show(checks, print=partial(print, flush=True)):
        fail("", 1)


def cli():
    """The command line: status 0; or one line that says what was wrong, and status 2; or 130 after Ctrl-C."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = unraisable
        sys.stdout, sys.stderr = sys.stdout or open(os.devnull, "w"), sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # an α that the terminal does not know is shown as \u03b1
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(f"{__doc__}\n{usage()}")
        else:
            fire.Fire(fire.decorators.SetParseFn(str)(main), command=with_values(sys.argv[1:]))
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to be interrupted
    except UserError as error:
        fail(f"error: {error}", 2)
    except MemoryError:
        fail("error: the memory is full: a smaller model needs less, and so does --dtype int8", 2)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except OSError as error:  # of the standard output: every other file's is a UserError
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # as Python would try again on its way out
        fail("" if isinstance(error, BrokenPipeError) else f"error: cannot write the output: {error.strerror}", 2)


def unraisable(error):
    """An exception where none can be raised: a KeyboardInterrupt in numba's callbacks, say, must not be passed over."""
    if isinstance(error.exc_value, KeyboardInterrupt):
        os.write(2, b"interrupted\n")
        os._exit(130)
    sys.__unraisablehook__(error)


def fail(message, status):
    """Ends with a message of one line, whatever is in the names that it quotes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)
    print(line, end="\n" if line else "", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    cli()
