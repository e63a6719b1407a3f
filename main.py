"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

from functools import partial

from speculative.cli.command import parse, run
from speculative.cli.display import Display, check_output
from speculative.cli.interactive import interact
from speculative.cli.outcome import show_report
from speculative.cli.packing import write_packed
from speculative.cli.prompts import choose_prompts
from speculative.cli.serve import serve
from speculative.cli.verifying import verify_session
from speculative.measure.recorder import Recorder
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
        return verify_session(session, *prompts)
    if o.interactive:
        return interact(session, decode)
    if o.serve is not None:
        return serve(session, o.serve)
    decode(session, prompts)


def decode(session: Session, prompts: list[str]) -> None:
    """Decode with both samplers. Print the blog's lines, then ours."""
    o = session.options
    session.ready(prompts, o.n_tokens_to_generate, timed=bool(o.json or not o.quiet))
    runs = {}

    # autoregressive
    if o.only != "speculative":
        runs["autoregressive"] = run_sampling_fn("autoregressive", session, prompts)

    # speculative
    if o.only != "autoregressive":
        runs["speculative"] = run_sampling_fn("speculative", session, prompts)

    # speedup, acceptance rate, and why
    show_report(session, prompts, runs)


def run_sampling_fn(name: str, session: Session, prompts: list[str]) -> Recorder:
    """Decode each prompt o.n_samples times, print the blog's lines, and return a record of every step."""
    o = session.options
    recorder = session.recorder(details=bool(o.json or o.html))
    with Display(f"{name.capitalize()} Decode", o, prompts) as display:
        for step in session.texts(name, prompts, o.n_tokens_to_generate, o.n_samples, recorder=recorder):
            display.push(step)
        recorder = session.median_run(name, prompts, recorder)  # with --demo, of several
    display.print_time(recorder.seconds)
    return recorder


if __name__ == "__main__":
    guarded(partial(run, main, __doc__))
