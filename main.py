"""The blog's run: one prompt is decoded twice, autoregressively and with
speculative sampling, and both are timed.

python main.py --demo
python main.py --K 4 --temperature 0 \\
    --prompt "Alan Turing theorized that computers would one day become"
"""

if __name__ == "__main__":
    import speculative.support.early  # noqa: F401  # Ctrl-C during the imports below is one line

from speculative.cli.command import choose_prompts, direct_output, read_command, read_options
from speculative.cli.display import Screen, show_report
from speculative.cli.modes import other_mode
from speculative.report.record import RunRecord
from speculative.report.turns import timed_turns
from speculative.run.options import Options
from speculative.run.session import Session
from speculative.sampling import autoregressive_sampling, max_fn, sample, speculative_sampling
from speculative.support.errors import guarded

__all__ = ["autoregressive_sampling", "main", "max_fn", "sample", "speculative_sampling"]  # as in the blog's main.py


def main(**flags) -> None:
    """The blog's run, with the blog's parameters and defaults: see --help."""
    o = read_options(flags)
    direct_output(o)
    if mode := other_mode(o):  # --pack, --text, --verify, --score, --interactive or --serve
        return mode(o, decode_with_both)

    # load both models
    session = Session(o, prompts=choose_prompts(o), quiet=o.quiet)

    # decode with both, and print the times, the texts and the report
    decode_with_both(session, session.prompts)


def decode_with_both(session: Session[Options], prompts: list[str]) -> RunRecord | None:
    """Decode with both samplers, or with --only one. Print the blog's lines (time and text), then the report."""
    o = session.options
    N = o.n_tokens_to_generate
    names = [o.only] if o.only else ["autoregressive", "speculative"]
    records = []  # one for each decoder
    with Screen(o, names, prompts) as screen:
        turns = timed_turns(
            session, prompts, N, names, watch=screen.show_step, with_details=o.has_document, with_chances=o.has_report
        )
        for record in turns:
            screen.show_record(record)  # the blog's lines
            records.append(record)
    # speedup, acceptance rate, and why
    return show_report(session, prompts, records)


if __name__ == "__main__":
    with guarded():
        main(**read_command(__doc__))
