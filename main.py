"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

from plumbing import exits

if __name__ == "__main__":
    exits.begin()  # Ctrl-C during the imports, which are slow, ends with a line

from functools import partial

from speculative.cli.display import Display, check_output, run_batch_fn
from speculative.cli.flags import choose_options, live_flags, run
from speculative.cli.interactive import interact
from speculative.cli.load import encode
from speculative.cli.outcome import show_report
from speculative.cli.packing import remove_packed, write_packed
from speculative.cli.prompts import choose_prompts
from speculative.cli.serve import serve
from speculative.cli.verifying import verify_pair
from speculative.measure.recorder import Recorder
from speculative.pair import TextPair
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling

# The blog's names, from where the blog has them.
__all__ = ["autoregressive_sampling", "main", "max_fn", "sample", "speculative_sampling"]


def main(
    prompt: str = "Alan Turing theorized that computers would one day become",
    n_tokens_to_generate: int = 40,
    draft_model_size: str = "124M",
    target_model_size: str = "1558M",
    models_dir: str = "models",
    K: int | str = 4,
    temperature: float = 0.0,
    seed: int = 123,
    **more_flags,
) -> None:
    """The blog's parameters and defaults. Every other flag is declared in a module of its subject."""
    given = {name: value for name, value in locals().items() if name != "more_flags"} | more_flags
    parse = partial(choose_options, main, **given)  # a function, as --interactive and --serve change flags
    o = check_output(parse())
    if o.pack:
        return write_packed(o)
    if o.unpack:
        return remove_packed(o)
    prompts = choose_prompts(o)  # one; with --batch several

    # load both models
    pair = TextPair(o, parse, prompts)
    if o.verify:
        return verify_pair(o, pair.loaded, *prompts)
    if o.interactive:
        return interact(pair, decode, live_flags())
    if o.serve is not None:
        return serve(pair, live_flags(), o.serve)
    decode(pair, prompts)


def decode(pair: TextPair, prompts: list[str]) -> None:
    """Decodes with both samplers. Prints the blog's lines, then ours."""
    o = pair.o
    input_ids = [encode(pair.loaded.encoder, prompt) for prompt in prompts]
    pair.loaded.ready(input_ids, o.n_tokens_to_generate, batch=o.batch, timed=bool(o.json or not o.quiet), stop=o.stop)

    # decode with each sampler
    run_fn = run_batch_fn if o.batch > 1 else run_sampling_fn
    runs = [
        run_fn("Autoregressive Decode", "autoregressive", pair, prompts),
        run_fn("Speculative Decode", "speculative", pair, prompts),
    ]

    # say what came of it
    show_report(o, pair.loaded, prompts, runs)


def run_sampling_fn(title: str, name: str, pair: TextPair, prompts: list[str]) -> Recorder:
    """Decodes o.n_samples times with the pair's decoder of that name, and prints the blog's lines -> what happened.

    Each sample has a generator of its own. Sample 1 of one decoder starts from the same seed as sample 1 of the other.
    """
    o = pair.o
    decode_fn = getattr(pair, name)
    pair.loaded.forget()  # both decoders start with an empty cache
    recorder = Recorder(pair.loaded.accept, details=o.details or bool(o.html))
    with Display(title, o, pair.loaded.encoder, o.n_samples) as display:
        for number in range(o.n_samples):
            display.begin(*prompts)
            for step in decode_fn(*prompts, o.n_tokens_to_generate, sample=number, recorder=recorder):
                display.push(step, step.origins)
            display.end()
    display.print_time(recorder.seconds)
    return recorder


if __name__ == "__main__":
    run(main, __doc__)
