"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

import sys
import time
from functools import partial
from pathlib import Path

import fire
import numpy as np
from tqdm import tqdm

from speculative.drafters import model_drafter
from speculative.engines.cached import CachedModel
from speculative.filters import to_distribution
from speculative.options import parse_flags, usage
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling
from utils import UserError, load_encoder_hparams_and_params

__all__ = ["autoregressive_sampling", "main", "max_fn", "sample", "speculative_sampling"]

DEMO = {
    "prompt": "It was upon a bitterly cold night in the winter of",
    "draft_model_size": "tiny-draft",
    "target_model_size": "tiny-target",
    "models_dir": str(Path(__file__).parent / "models"),
}


def create_model_fn(params, hparams, temperature):
    """A network -> a function from tokens to distributions, with its cache."""
    return CachedModel(params, hparams, partial(to_distribution, temperature=temperature))


def run_sampling_fn(decode_fn, n_tokens):
    """Runs a decoder to its end: (tokens, steps, seconds)."""
    steps = []
    with tqdm(total=n_tokens, unit="token", leave=False, disable=None) as bar:
        start = time.perf_counter()
        for step in decode_fn:
            steps.append(step)
            bar.update(len(step.tokens))
        seconds = time.perf_counter() - start
    return [token for step in steps for token in step.tokens], steps, seconds


def load_pair(draft_model_size, target_model_size, models_dir):
    """(encoder, draft's hparams and params, target's hparams and params); the two must share one vocabulary."""
    encoder, draft_hparams, draft_params = load_encoder_hparams_and_params(draft_model_size, models_dir)
    target_encoder, target_hparams, target_params = load_encoder_hparams_and_params(target_model_size, models_dir)
    if (encoder.id_to_bytes, encoder.merges) != (target_encoder.id_to_bytes, target_encoder.merges):
        raise UserError(
            f"{draft_model_size} and {target_model_size} have different vocabularies: they cannot be paired"
        )
    return encoder, (draft_hparams, draft_params), (target_hparams, target_params)


def main(*arguments, **flags):
    if arguments:
        raise UserError(f"unexpected {arguments[0]!r:.80}: every value follows its --flag, and a text goes in quotes")
    options = parse_flags(flags, DEMO)
    prompt, N, K, seed = (options[name] for name in ("prompt", "n_tokens_to_generate", "K", "seed"))

    encoder, draft, target = load_pair(*(options[f] for f in ("draft_model_size", "target_model_size", "models_dir")))
    input_ids = encoder.encode(prompt)
    n_ctx = min(draft[0]["n_ctx"], target[0]["n_ctx"])
    if len(input_ids) + N > n_ctx:
        raise UserError(f"the prompt's {len(input_ids)} tokens and {N} more exceed the context of {n_ctx} tokens")

    draft_model = create_model_fn(draft[1], draft[0], options["temperature"])
    target_model = create_model_fn(target[1], target[0], options["temperature"])

    # The first call of each kind pays for memory and threads that the later ones find ready: it is not timed.
    for model, n_last in [(draft_model, 1), (target_model, 1), (target_model, min(K + 1, n_ctx))]:
        model(np.zeros(n_last, int), n_last)
        model.forget()

    def autoregressive_decode():
        rng = np.random.default_rng(seed)
        return autoregressive_sampling(input_ids, target_model, N, rng)

    def speculative_decode():
        rng = np.random.default_rng(seed)
        return speculative_sampling(input_ids, model_drafter(draft_model, rng), target_model, N, K, rng)

    seconds = {}
    for title, decode in [("Autoregressive Decode", autoregressive_decode), ("Speculative Decode", speculative_decode)]:
        target_model.forget()
        tokens, steps, seconds[title] = run_sampling_fn(decode(), N)
        print(f"\n{title}\n{'-' * len(title)}")
        print(f"Time = {seconds[title]:.2f}s")
        print(f"Text = {encoder.decode([*input_ids, *tokens])}", flush=True)

    drafted = sum(step.drafted for step in steps)
    autoregressive_time, speculative_time = seconds.values()
    print("\nSpeedup")
    print("-------")
    print(f"Speedup = {autoregressive_time / speculative_time:.2f}x  (autoregressive time / speculative time)")
    print(f"Tokens per second = {N / autoregressive_time:.1f} autoregressive, {N / speculative_time:.1f} speculative")
    print(f"Tokens per iteration = {N / len(steps):.2f}  (at most K + 1 = {K + 1})")
    print(f"r = {N / (drafted + len(steps)):.2f}  (tokens / sum over iterations of drafted + 1)")


def cli():
    """The command line: status 0, or one line that says what was wrong and status 2."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"{__doc__}\n{usage()}")
        return
    try:
        fire.Fire(fire.decorators.SetParseFn(str)(main))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    cli()
