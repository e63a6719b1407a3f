"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # Ctrl-C during the imports below; from then on command_line.run sees to it
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

import numpy as np
from tqdm import tqdm

from speculative.cli import devices as on_device
from speculative.cli import exits as command_line
from speculative.cli.flags import parse_flags
from speculative.cli.models import create_draft_fn, create_probs_fns, load_models
from speculative.cli.texts import choose_prompts, read_text
from speculative.engines import packed
from speculative.lookahead import AutoK
from speculative.measure import files, report, verify
from speculative.measure.recorder import Recorder
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling
from speculative.stop import until_stop

# The blog's names, from where the blog has them.
__all__ = ["autoregressive_sampling", "main", "max_fn", "sample", "speculative_sampling"]

# What --demo changes: the bundled pair, and a prompt of the kind that it was trained on.
DEMO = {
    "prompt": '"From the first, two facts were very obvious to me,',
    "n_tokens_to_generate": 54,  # to the end of a sentence
    "draft_model_size": "tiny-draft",
    "target_model_size": "tiny-target",
    "models_dir": str(Path(__file__).parent / "models"),
}


def run_sampling_fn(title, decode_fn, o, encoder, prompt):
    """Decodes o.n_samples times and prints the blog's lines -> the Recorder of what happened.

    decode_fn(rng, recorder) -> Steps. Each sample has a generator of its own, the same ones for every decoder.
    """
    print_title(title)
    recorder, color = Recorder(o.lenience), report.use_color(o.color)
    texts = []
    for s in range(o.n_samples):
        rng = np.random.default_rng([o.seed, s] if s else o.seed)  # the first is what a single sample would have
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
            print("" if o.stream else "\n".join(f"Text = {text}" for text in texts), flush=True)
            raise
        if o.stream:
            print(writer.end())
        else:
            texts.append(prompt + writer.text + writer.end())
    print_result(recorder, texts)
    return recorder


def run_batch_fn(title, decode_fn, o, encoder, prompts):
    """The same for o.batch prompts that are decoded together; decode_fn yields, for each call of the
    target, a list with a Step for each prompt, None where it is finished."""
    print_title(title)
    recorder = Recorder(o.lenience)
    writers = [report.TextWriter(encoder) for _ in prompts]
    with tqdm(total=o.batch * o.n_tokens_to_generate, unit="token", leave=False, disable=None) as bar:
        try:
            for steps in recorder.watch_batch(decode_fn(np.random.default_rng(o.seed), recorder), o.batch):
                for writer, step in zip(writers, steps, strict=True):
                    if step:
                        writer.push(step)
                        bar.update(len(step.tokens))
        finally:  # also after Ctrl-C
            bar.close()
            print_result(recorder, [prompt + w.text + w.end() for prompt, w in zip(prompts, writers, strict=True)])
    return recorder


def print_title(title):
    print(f"\n{title}\n{'-' * len(title)}", flush=True)


def print_result(recorder, texts):
    print(f"Time = {recorder.seconds:.2f}s")
    for text in texts:
        print(f"Text = {text}")
    sys.stdout.flush()


def main(**flags):
    """See --help. Values arrive as the strings that were typed; speculative/cli/flags.py says what they may be."""
    o = parse_flags(flags, DEMO)
    if o.json:
        files.check_writable(o.json)
    prompts = choose_prompts(o)  # one, but for --batch
    ngram_text = read_text(o.ngram_text, "text for n-grams") if o.ngram_text else ""
    o.engine = on_device.choose_engine(o)
    on_device.check(o)
    if o.engine == "numpy":
        packed.set_threads(o.threads)

    encoder, input_ids, target_model, draft_model = load_models(o, prompts)
    if o.verify:
        return verify_models(o, encoder, target_model, draft_model, *input_ids, ngram_text)
    models = [model for model in (target_model, draft_model) if model]
    if on_device.runs_as_one_loop(o):
        decoders = on_device.decode_on_device(o, input_ids, target_model, draft_model)
    else:
        create_draft = create_draft_fn(o, encoder, draft_model, o.temperature, ngram_text)
        decoders = decode_in_python(o, *input_ids, target_model, create_draft)
        # The first call of each kind pays for memory and threads that the later ones find ready: it is not timed.
        for model in models:
            model(np.zeros(8, int), 1)
            model(np.zeros(8, int), 5)  # a window of rows, which other code multiplies

    runs = []
    for title, decode in zip(("Autoregressive Decode", "Speculative Decode"), decoders, strict=True):
        for model in models:
            model.forget()
        if o.batch > 1:
            runs.append(run_batch_fn(title, decode, o, encoder, prompts))
        else:
            runs.append(run_sampling_fn(title, decode, o, encoder, *prompts))
    differences = []
    if o.engine == "jax" and o.temperature == 0 and not o.quiet:
        differences = on_device.greedy_differences(input_ids * o.n_samples, target_model, *runs)
    report.show(o, encoder, prompts, input_ids, *runs, models, differences)


def decode_in_python(o, input_ids, target_model, create_draft):
    """Both decoders, each a function of (rng, recorder) that yields Steps. create_draft: rng -> the drafter."""
    auto_K, N = AutoK(), o.n_tokens_to_generate

    def autoregressive_decode(rng, recorder):
        return autoregressive_sampling(input_ids, recorder.target(target_model), N, rng)

    def speculative_decode(rng, recorder):
        draft, target = recorder.draft(create_draft(rng)), recorder.target(target_model)
        if o.K == "auto":
            return auto_K.decode(input_ids, draft, target, N, rng, lenience=o.lenience)
        return speculative_sampling(input_ids, draft, target, N, o.K, rng, lenience=o.lenience)

    return autoregressive_decode, speculative_decode


def verify_models(o, encoder, target_model, draft_model, input_ids, ngram_text):
    """--verify: the checks instead of the run. Exit status 1 where it fails."""

    def decoders(temperature):
        to_probs, draft_to_probs = create_probs_fns(o, temperature)
        draft = draft_model and draft_model.with_probs(draft_to_probs)
        create_draft = create_draft_fn(o, encoder, draft, temperature, ngram_text)
        return verify.Decoders(target_model.with_probs(to_probs), create_draft, options={"lenience": o.lenience})

    n_ctx = min(model.n_ctx for model in (target_model, draft_model) if model)
    prompts = [ids[verify.most_new(o.K) - n_ctx :] for ids in [input_ids, *map(encoder.encode, verify.PROMPTS)]]
    checks = verify.verify(decoders, o.temperature, prompts, AutoK if o.K == "auto" else o.K, seed=o.seed)
    if not verify.show(checks, print=lambda *words: print(*words, flush=True)):
        command_line.fail("", 1)


def cli():
    command_line.run(main, __doc__)


if __name__ == "__main__":
    cli()
