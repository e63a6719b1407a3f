"""What is printed and written after both decoders: our lines after the blog's, the JSON file, the page."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

from speculative.cli.display import color_console, show
from speculative.engines import memory
from speculative.engines.choice import process
from speculative.loading import Packable
from speculative.measure import report
from speculative.measure.document import document
from speculative.measure.page import ORIGINS, page
from speculative.measure.run import check_files
from speculative.measure.turns import Record
from speculative.options import Options
from speculative.plan import make_plan, spelled_out
from speculative.session import Session, models_of
from speculative.support.errors import UserError
from speculative.support.files import size_of, write_json, write_text
from speculative.support.terminal import SHOWN, one_line

MOST_COLUMNS = 110  # of a paragraph, also at a wide terminal
PACK_SECONDS = 2  # of reading that packs would save: if it is more, the ending says so


def check_output(o: Options) -> Options:
    """Raise UserError if a file cannot be written, or is one that is read -> the options.

    Of several processes that compute the same, only the first prints and writes.
    """
    if process()[0] > 0:
        sys.stdout = open(os.devnull, "w")  # for the rest of this process  # noqa: SIM115
        return replace(o, json=None, html=None)
    if o.only == "autoregressive" and (o.json or o.html or o.verbose):
        raise UserError("--only autoregressive drafts nothing to show with --json, --html or --verbose: leave it out")
    if o.json or o.html:
        check_files([o.json, o.html], vars(o))
    if "-" in (o.json, o.html):
        if o.json == o.html:
            raise UserError("--json and --html cannot both be standard output: give one of them a file")
        sys.stdout = sys.stderr  # for the rest of this process
    return o


def write_packed(o: Options) -> None:
    """--pack: write the packed weights of the models that this run would load. Raises UserError."""
    models = models_of(o)
    if not models.engine.packs:
        raise UserError("--pack is for the compiled forward pass, and there is no C compiler: pip install ziglang")
    if o.fast:
        o = spelled_out(o, models.fast_drafter())
    plan = make_plan(o, models.engine)
    for path in models.write_packed(plan.networks):
        print(one_line(f"{path}: {size_of(path) / 1e6:,.0f} MB; to undo --pack, delete {os.path.dirname(path)}"))


def show_report(session: Session[Options], prompts: list[str], records: list[Record]) -> None:
    """Print the lines after the blog's, and write the JSON file and the page.

    prompts: one for each text. records: of both decoders, or with --only of one.
    """
    o = session.options
    speculative = records[-1]
    if o.only == "autoregressive":
        if not o.quiet:
            print(f"\n{report.engine_line(session)}")
            print(f"Tokens per second = {speculative.n_tokens / speculative.seconds:.1f}")
        return
    if o.quiet and not o.json and not o.html:
        return
    run = document(session, prompts, records)
    if o.json:
        write_json(o.json, run)
    if o.html:
        write_text(o.html, page(run))
    if o.quiet:
        return
    if color_console():
        show_legend(speculative)
    print()
    columns = min(MOST_COLUMNS, shutil.get_terminal_size((MOST_COLUMNS, 24)).columns)
    for line in run["summary"]:
        print(textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False))
    if o.verbose:
        show_iterations(session, speculative)
        show_figures(session, run["figures"])
    for path, what in ((o.json, "the run as JSON"), (o.html, "the run as a page, for any browser")):
        if path and path != "-":
            print(one_line(f"Wrote {path}: {what}, {os.path.getsize(path) / 1e3:,.0f} kB"))
    seconds, n_bytes = session.models.packable
    if session.engine.packs and seconds > PACK_SECONDS:
        session.models.packable = Packable(0.0, 0)  # it is said once
        where = f"{memory.in_words(n_bytes)} in {os.path.join(o.models_dir, 'packed')}"
        print(one_line(f"The next run begins {seconds:.0f} s sooner with --pack: {where}"))


def show_legend(speculative: Record) -> None:
    """Print each origin in its colour, and each drafter of which a token was accepted."""
    origins = {*ORIGINS, *(origin for i in speculative.iterations for origin in i.origins)}
    show([("\n", None), *((f"{origin.replace('_', ' ')}  ", origin) for origin in sorted(origins)), ("\n", None)])


def show_iterations(session: Session, speculative: Record) -> None:
    """--verbose: print each iteration, with the times of the draft and of the target."""
    rows = []
    for number, i in enumerate(speculative.iterations, start=1):
        times = [report.duration(seconds) for seconds in (i.drafting, i.scoring)]
        chances = " ".join(f"{a:.2f}" for a in i.alpha)
        text = repr(session.encoder.decode(i.tokens)).translate(SHOWN)
        rows.append([str(number), f"{i.accepted} of {i.drafted}", *times, chances, text])
    show_table(("#", "accepted", "draft", "score", "α", "tokens"), rows)


def show_figures(session: Session[Options], figures: dict) -> None:
    """--verbose: print the counts, each figure, how the engine uses this machine, and the predictions."""
    for _, names, counts in report.charts(figures):
        show_table(names, counts)
    rows = report.table(figures, session.plan.rule.formula)
    models = {role: session.models[role] for role in session.plan.networks}
    peak = memory.peak()
    if peak:
        weights = sum(model.weight_bytes for model in models.values())
        rows.append(("peak memory", f"{peak / 1e9:.2f} GB", f"of which {weights / 1e9:.2f} GB are weights"))
    kernels = {role: session.engine.kernel_words(model) for role, model in models.items()}
    rows += [(f"kernels, {role}", *words) for role, words in kernels.items() if words]
    show_table(("figure", "value", "formula"), rows)
    if grid := report.grid(figures):
        cells = [[K, f"{beta:.2f}" if beta else "", *(f"{x:.2f}x" for x in more)] for K, beta, *more in grid["rows"]]
        show_table(("K", "β", *(f"predicted, {name}" for name in grid["drafters"])), cells)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*map(Text, row))
    print(flush=True)
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)
