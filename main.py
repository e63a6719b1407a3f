"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

from speculative.cli.command import parse, run
from speculative.cli.display import print_texts, print_title, show_bar
from speculative.cli.interactive import interact
from speculative.cli.outcome import check_output, show_report
from speculative.cli.packing import write_packed
from speculative.cli.prompts import choose_prompts
from speculative.measure.document import DECODERS
from speculative.measure.verify import verify
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling
from speculative.session import Session
from speculative.support.errors import guarded

# The blog's names, from where the blog has them.
__all__ = ["autoregressive_sampling", "main", "max_fn", "sample", "speculative_sampling"]


def main(**flags) -> None:
    """The blog's run, with the blog's parameters and defaults: see --help."""
    o = check_output(parse(flags))
    if o.pack:
        return write_packed(o)
    prompts = choose_prompts(o)  # one; with --batch several; none if they come later

    # load both models
    session = Session(o, prompts=prompts, quiet=o.quiet)
    if o.verify:
        return verify(session, *prompts)
    if o.interactive:
        return interact(session, decode)
    if o.serve is not None:
        from speculative.cli.workbench import serve  # its libraries are an extra

        return serve(session, o.serve)
    decode(session, prompts)


def decode(session: Session, prompts: list[str]) -> None:
    """Decode with both samplers. Print the blog's lines, then ours."""
    o = session.options
    session.ready(prompts, o.n_tokens_to_generate, timed=bool(o.json or not o.quiet))
    runs = {}

    # autoregressive, then speculative
    for name in [o.only] if o.only else DECODERS:
        run_sampling_fn(name, session, prompts, runs)

    # speedup, acceptance rate, and why
    show_report(session, prompts, runs)


def run_sampling_fn(name: str, session: Session, prompts: list[str], runs: dict) -> None:
    """Decode each prompt o.n_samples times, print the blog's lines, and add a record of every step to runs.

    A short decode is repeated, with both decoders in turn: then the median runs of both are added at once.
    """
    o = session.options
    recorder = runs.get(name) or session.recorder(details=bool(o.json or o.html))
    steps = recorder.iterations or session.texts(name, prompts, o.n_tokens_to_generate, o.n_samples, recorder=recorder)
    print_title(f"{name.capitalize()} Decode")
    try:
        if o.stream:
            print_texts(steps, prompts)
        else:
            show_bar(steps, len(prompts) * o.n_samples * o.n_tokens_to_generate)
        if name not in runs:
            names = [o.only] if o.only else DECODERS
            runs |= session.median_runs(prompts, o.n_tokens_to_generate, {name: recorder}, o.n_samples, names)
        print(f"Time = {runs[name].seconds:.2f}s")
    finally:
        if not o.stream:
            print_texts(recorder.iterations, prompts)  # after Ctrl-C the texts so far


if __name__ == "__main__":
    guarded(lambda: run(main, __doc__))
