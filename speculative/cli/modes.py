"""The modes --pack, --text, --verify, --score, --interactive and --serve, in place of the blog's run; and the command
page."""

import os
import sys
from collections.abc import Callable, Sequence

from speculative.cli.command import choose_prompts
from speculative.cli.display import show, show_score
from speculative.cli.interactive import Decode, interact
from speculative.report.document import naming_run, read_record
from speculative.report.make_record import line_of_session
from speculative.report.page import page
from speculative.report.record import RunRecord, ScoreRecord
from speculative.report.score import score
from speculative.report.score_page import score_page
from speculative.run.load import new_models_of, spelled_out, write_packs
from speculative.run.options import Options
from speculative.run.plan import make_plan
from speculative.run.session import Session
from speculative.support.errors import UserError
from speculative.support.files import bytes_in_words, check_outputs, say_written, size_of, write_text
from speculative.support.terminal import one_line
from speculative.support.texts import read_text
from speculative.verify.checks import verify

Mode = Callable[[Options, Decode], None]


def other_mode(o: Options) -> Mode | None:
    """Return the mode that these options ask for in place of the blog's run; None for the run."""
    if o.pack:
        return pack
    if o.text:
        return print_text
    if o.verify:
        return check
    if o.score:
        return score_file
    if o.interactive:
        return talk
    return serve if o.serve is not None else None


def print_text(o: Options, decode: Decode) -> None:
    """--text: print the text that one decoder adds to the prompt, and nothing else."""
    session = Session(o, prompts=choose_prompts(o), quiet=True)
    for step in session.decode(o.only or "speculative", session.prompts, o.n_tokens_to_generate):
        if sys.stdout.isatty():
            show([(step.text, None)])
        else:  # a program reads it: with control characters as they are
            print(step.text, end="", flush=True)
    if sys.stdout.isatty():
        print()  # the next line of the shell begins below


def check(o: Options, decode: Decode) -> None:
    """--verify: check that the output has the target's distribution."""
    prompts = choose_prompts(o)
    session = Session(o, prompts=prompts)
    verify(session, prompts[0], what_runs=line_of_session(session))


def score_file(o: Options, decode: Decode) -> None:
    """--score: score the text of a file."""
    text = read_text(str(o.score), "text")
    session = Session(o)
    show_score(score(session, text))


def talk(o: Options, decode: Decode) -> None:
    """--interactive: decode each line that is typed."""
    interact(Session(o, quiet=o.quiet), decode)


def serve(o: Options, decode: Decode) -> None:
    """--serve: the workbench, in a browser."""
    from speculative.cli import workbench  # its libraries are an extra

    workbench.serve(Session(o, quiet=o.quiet), o.serve or 0)


def pack(o: Options, decode: Decode) -> None:
    """--pack: write the packed weights of the models that this run would load. Raises UserError."""
    models = new_models_of(o)
    if not models.engine.packs:
        raise UserError("--pack is for the compiled forward pass, and there is no C compiler: pip install ziglang")
    plan = make_plan(spelled_out(o, models), models.engine)
    for path in write_packs(models, plan.network_roles):
        print(one_line(f"{path}: {bytes_in_words(size_of(path))}; to undo --pack, delete {os.path.dirname(path)}"))


# ---- python -m speculative page --------------------------------------------------------------------------------------


USAGE = "python -m speculative page RUN.json [PAGE.html]"
ABOUT = f"""{USAGE}: the page of a run, or of a score, that --json has written.

RUN.json is a file that --json has written; - is standard input or output."""


def replay(words: Sequence[str]) -> None:
    """Write the page of a run, beside its file if no other place is named. Raises UserError."""
    if {"-h", "--help"} & {*words}:
        return print(ABOUT)
    if not 1 <= len(words) <= 2:
        raise UserError(f"page takes the file of a run, and the file of its page: {USAGE}")
    for word in words:
        if word.startswith("--"):
            raise UserError(f"page has no option {word:.80}: {USAGE}")
    path = words[0]
    beside = "-" if path == "-" else f"{os.path.splitext(path)[0]}.html"
    output = words[1] if len(words) == 2 else beside
    check_outputs([output], [path])
    record = read_record(path)
    what = "run"
    with naming_run(path):
        if isinstance(record, ScoreRecord):
            what = "score"
            html = score_page(record)
        else:
            html = page_of_run(path, record)
    write_text(output, html)
    say_written(output, f"the {what} as a page, for any browser")


def page_of_run(path: str, record: RunRecord) -> str:
    """Return the page of the run of this file. Raises UserError if it has several texts."""
    n_texts = len(record.prompts)
    if n_texts > 1:
        raise UserError(f"{path} has {n_texts} texts, and a page shows one: decode one prompt, without --n_samples")
    return page(record)
