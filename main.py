"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

from plumbing import exits

if __name__ == "__main__":
    exits.begin()  # and what follows is slow

import numpy as np

from speculative.cli.devices import choose_engine
from speculative.cli.display import Display, check_output, run_batch_fn, show_report
from speculative.cli.flags import check_engine, parse_options, run
from speculative.cli.load import encode, load
from speculative.cli.prompts import choose_prompts
from speculative.cli.verifying import verify_pair
from speculative.measure.recorder import Recorder, origins
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling
from speculative.stop import until_stop

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
    """The blog's parameters and defaults; each room of speculative/ declares its others."""
    blogs = {name: value for name, value in locals().items() if name != "more_flags"}
    o = parse_options(main, **blogs, **more_flags)
    o = check_engine(o._replace(engine=choose_engine(o.engine)))
    o = check_output(o)
    prompts = choose_prompts(o)  # one, but for --batch

    # load both models
    pair = load(o, prompts)
    if o.verify:
        return verify_pair(o, pair, *prompts)
    input_ids = [encode(pair.encoder, prompt) for prompt in prompts]
    pair.ready(input_ids, o.n_tokens_to_generate, batch=o.batch, timed=bool(o.json or not o.quiet), stop=o.stop)

    # decode with each sampler
    run_fn = run_batch_fn if o.batch > 1 else run_sampling_fn
    runs = [
        run_fn("Autoregressive Decode", pair.autoregressive, o, pair, prompts, input_ids),
        run_fn("Speculative Decode", pair.speculative, o, pair, prompts, input_ids),
    ]

    # say what came of it
    show_report(o, pair, prompts, runs)


def run_sampling_fn(title, decode_fn, o, pair, prompts, input_ids) -> Recorder:
    """Decodes o.n_samples times and prints the blog's lines -> what happened.

    decode_fn(x, N, rng, recorder) -> Steps. Each sample has a generator of its own, the same ones for both decoders.
    """
    pair.forget()  # both decoders start with an empty cache
    recorder = Recorder(pair.lenience, details=o.details or bool(o.html))
    with Display(title, o, pair.encoder, o.n_samples) as display:
        for number in range(o.n_samples):
            rng = np.random.default_rng([o.seed, number] if number else o.seed)  # the first is the blog's
            display.begin(*prompts)
            steps = decode_fn(*input_ids, o.n_tokens_to_generate, recorder.rng(rng), recorder)
            for step in recorder.watch(until_stop(steps, pair.encoder, o.stop)):
                display.push(step, origins(recorder.now))
            display.end()
    display.print_time(recorder.seconds)
    return recorder


if __name__ == "__main__":
    run(main, __doc__)
