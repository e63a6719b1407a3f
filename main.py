"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

from plumbing import exits

if __name__ == "__main__":
    exits.begin()  # and what follows is slow

import numpy as np

from plumbing.files import check_writable
from speculative.autotree import AutoTree
from speculative.cli import devices
from speculative.cli.display import Display, show_report
from speculative.cli.flags import parse_options, run
from speculative.cli.models import create_draft_fn, create_scoring_fn, load_models
from speculative.cli.texts import choose_prompts, read_ngram_text
from speculative.cli.verifying import verify_models
from speculative.lookahead import AutoK
from speculative.measure.recorder import Recorder
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling
from speculative.stop import until_stop
from speculative.trees import regular, tree_speculative_sampling

# The blog's names, from where the blog has them.
__all__ = ["autoregressive_sampling", "main", "max_fn", "sample", "speculative_sampling"]


def run_sampling_fn(title, decode_fn, o, encoder, prompt):
    """Decodes o.n_samples times and prints the blog's lines -> the Recorder of what happened.

    decode_fn(rng, recorder) -> Steps. Each sample has a generator of its own, the same ones for both decoders.
    """
    recorder = Recorder(o.lenience, details=o.details or bool(o.html))
    with Display(title, o, encoder, o.n_samples) as display:
        for number in range(o.n_samples):
            rng = np.random.default_rng([o.seed, number] if number else o.seed)  # the first is the blog's
            display.begin(prompt)
            for step in recorder.watch(until_stop(decode_fn(recorder.rng(rng), recorder), encoder, o.stop)):
                display.push(step, proposers=recorder.now.proposers)
            display.end()
    display.print_time(recorder.seconds)
    return recorder


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
    """The blog's parameters and defaults; speculative/cli/flags.py has the others."""
    flags = {name: value for name, value in locals().items() if name != "more_flags"}
    o = parse_options(**flags, **more_flags)
    for path in filter(None, (o.json, o.html)):
        check_writable(path)
    o = devices.choose_engine(o)
    prompts, ngram_text = choose_prompts(o), read_ngram_text(o)  # one prompt, but for --batch
    encoder, input_ids, target_model, draft_model = load_models(o, prompts)
    if o.verify:
        return verify_models(o, encoder, target_model, draft_model, *input_ids, ngram_text)

    if devices.runs_as_one_loop(o):
        autoregressive_decode, speculative_decode = devices.decode_fns(o, encoder, input_ids, target_model, draft_model)
    else:
        [x], N, auto = input_ids, o.n_tokens_to_generate, AutoTree() if o.tree else AutoK()
        create_draft = create_draft_fn(o, encoder, (target_model, draft_model), o.temperature, ngram_text)

        def autoregressive_decode(rng, recorder):
            return autoregressive_sampling(x, recorder.target(target_model), N, rng)

        def speculative_decode(rng, recorder):
            draft = recorder.draft(create_draft(rng))
            scoring = create_scoring_fn(o, target_model)
            target = recorder.target(scoring.tree if o.tree else scoring)
            if "auto" in (o.K, o.tree):
                return auto.decode(x, draft, target, N, rng, lenience=o.lenience)
            if o.tree:
                return tree_speculative_sampling(x, draft, target, N, regular(o.tree), rng, lenience=o.lenience)
            return speculative_sampling(x, draft, target, N, o.K, rng, lenience=o.lenience)

    models = [model for model in (target_model, draft_model) if model]
    runs = []
    for title, decode_fn in (
        ("Autoregressive Decode", autoregressive_decode),
        ("Speculative Decode", speculative_decode),
    ):
        for model in models:
            model.forget()  # both decoders start with an empty cache
        if o.batch > 1:
            runs.append(devices.run_batch_fn(title, decode_fn, o, encoder, prompts))
        else:
            runs.append(run_sampling_fn(title, decode_fn, o, encoder, *prompts))
    show_report(o, encoder, prompts, input_ids, runs, models, devices.differences(o, input_ids, target_model, runs))


if __name__ == "__main__":
    run(main, __doc__)
