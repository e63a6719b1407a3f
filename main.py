"""The blog's run: one prompt, decoded twice, autoregressively and with speculative sampling; both are timed.

python main.py --prompt "Alan Turing theorized that computers would one day become" --K 4 --temperature 0
python main.py --demo
"""

if __name__ == "__main__":
    import speculative.support.early  # noqa: F401  # Ctrl-C during the imports below is one line

from speculative.cli.command import choose_prompts, parse, run
from speculative.cli.display import Screen
from speculative.cli.interactive import interact
from speculative.cli.outcome import prepare_output, show_report, write_packed
from speculative.report.record import RunRecord
from speculative.report.turns import timed_turns
from speculative.run.options import Options
from speculative.run.session import Session
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling
from speculative.support.errors import guarded
from speculative.verify.checks import verify

__all__ = ["autoregressive_sampling", "main", "max_fn", "sample", "speculative_sampling"]  # as in the blog's main.py


def main(**flags) -> None:
    """The blog's run, with the blog's parameters and defaults: see --help."""
    o = prepare_output(parse(flags))
    if o.pack:
        return write_packed(o)
    prompts = choose_prompts(o)  # one, several with --batch, none with --interactive or --serve

    # load both models
    session = Session(o, prompts=prompts, quiet=o.quiet)
    if o.verify:
        return verify(session, *prompts)
    if o.interactive:
        return interact(session, decode_with_both)
    if o.serve is not None:
        from speculative.cli.workbench import serve  # its libraries are an extra

        return serve(session, o.serve)
    decode_with_both(session, session.prompts)


def decode_with_both(session: Session[Options], prompts: list[str]) -> RunRecord | None:
    """Decode with both samplers, or with --only one. Print the blog's lines (time and text), then the report."""
    o = session.options
    names = [o.only] if o.only else ["autoregressive", "speculative"]
    records = []  # one for each decoder
    with Screen(o, names, prompts) as screen:
        with_details = bool(o.json or o.html)
        for record in timed_turns(session, prompts, o.n_tokens_to_generate, names, screen.show_step, with_details):
            screen.show_record(record)  # the blog's lines
            records.append(record)
    # speedup, acceptance rate, and why
    return show_report(session, prompts, records)


if __name__ == "__main__":
    guarded(run, main, __doc__)
