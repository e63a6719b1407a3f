"""The output after both decoders: our lines after the blog's, the JSON file, the page."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from speculative.cli.display import color_console, show
from speculative.report import ending, score_words, tables
from speculative.report.document import has_report, write_run
from speculative.report.make_record import make_record
from speculative.report.page import ORIGINS, page
from speculative.report.record import DecoderRecord, RunRecord
from speculative.report.score import Score
from speculative.report.words import duration, times
from speculative.run.options import Options
from speculative.run.session import Session
from speculative.support.files import say_written, write_text
from speculative.support.terminal import PRINTABLE, one_line
from speculative.support.texts import has_json_lines

MOST_COLUMNS = 110  # columns of a paragraph, also at a wide terminal


def show_report(session: Session[Options], prompts: list[str], records: list[DecoderRecord]) -> RunRecord | None:
    """Print the lines after the blog's, and write the JSON file and the page -> the record of the run.

    prompts: one for each text. records: of both decoders, or with --only of one. With --quiet and no file there is
    nothing to show, and no record.
    """
    o = session.options
    if not has_report(o):
        return None
    record = make_record(session, prompts, records)
    if o.json:
        write_run(o.json, record)
    if o.html:
        write_text(o.html, page(record))
    if o.interactive and not o.quiet:
        show_lines(ending.lines(record, "speed", "law"))
    elif not o.quiet:
        show_ending(record)
    return record


def show_score(score: Score) -> None:
    """Print a score, with --verbose its tokens and the predictions of all drafters, and write its JSON file and its
    page."""
    o = score.record.options
    print("\nScore\n-----")
    for line in score_words.summary(score.record):
        print(wrapped(line))
    if o.verbose:
        for columns, *rows in (score_words.tokens_table(score.record), score_words.grid_table(score.record)):
            show_table(columns, rows)
    if o.json:
        score.write(o.json)
        say_written(o.json, "the score as JSON")
    if o.html:
        write_text(o.html, score.html())
        say_written(o.html, "the score as a page, for any browser")


# ---- The ending ------------------------------------------------------------------------------------------------------


def show_ending(record: RunRecord) -> None:
    """Print the results, the reasons, the tables of --verbose, and the files that were written."""
    o = record.options
    if color_console() and record.speculative:
        show_legend(record)
    show_lines(ending.lines(record, ending.CAME))
    show_lines(ending.lines(record, ending.WHY))
    if o.verbose:
        show_prompt(record)
        if record.speculative:
            show_iterations(record)
        show_figures(record)
    if o.json:
        say_written(o.json, "a line of JSON for each text" if has_json_lines(o.json) else "the run as JSON")
    if o.html:
        say_written(o.html, "the run as a page, for any browser")


def show_lines(lines: Sequence[ending.Line]) -> None:
    """Print an empty line, and these lines as paragraphs, the headline in bold where that can be shown."""
    console = color_console()
    print()
    for line in lines:
        text = wrapped(line.text)
        if console and line.kind == "speed":
            console.print(text, style="bold", markup=False)
        else:
            print(text)


def wrapped(line: str) -> str:
    """Return a line as a paragraph, as wide as the terminal."""
    columns = min(MOST_COLUMNS, shutil.get_terminal_size((MOST_COLUMNS, 24)).columns)
    return textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False)


def show_legend(record: RunRecord) -> None:
    """Print each origin in its colour, and each drafter of which a token was accepted."""
    names = {name for step in record.decoders["speculative"].steps for name in step.proposers}
    origins = {*ORIGINS, *(f"accepted: {name}" for name in names - {"model"})}
    pieces = [(f"{origin.replace('_', ' ')}  ", origin) for origin in sorted(origins)]
    show([("\n", None), *pieces, ("\n", None)])


# ---- The tables of --verbose -----------------------------------------------------------------------------------------


def show_prompt(record: RunRecord) -> None:
    """Print each token of the first prompt, its id and its text."""
    rows = []
    for number, token in enumerate(record.prompts[0].tokens, start=1):
        rows.append([str(number), str(token), f"'{one_line(record.vocabulary[token])}'"])
    show_table(("#", "id", "prompt"), rows)


def show_iterations(record: RunRecord) -> None:
    """Print each iteration, with the times of the draft and of the target."""
    rows = []
    for number, step in enumerate(record.decoders["speculative"].steps, start=1):
        accepted = f"{step.accepted} of {step.drafted}"
        seconds = [duration(step.drafting), duration(step.scoring)]
        chances = " ".join(f"{chance:.2f}" for chance in step.alpha)
        text = repr(step.text).translate(PRINTABLE)
        rows.append([str(number), accepted, *seconds, chances, text])
    show_table(("#", "accepted", "draft", "score", "α", "tokens"), rows)


def show_figures(record: RunRecord) -> None:
    """Print the counts, each figure, how the engine used this machine, and the predictions."""
    for chart in tables.charts(record.figures):
        show_table(chart.columns, chart.rows)
    show_table(("figure", "value", "formula"), [*tables.figure_rows(record), *tables.machine_rows(record)])
    grid = tables.grid(record.figures)
    if not grid:
        return
    rows = []
    for K, beta, *speedups in grid.rows:
        rows.append([K, f"{beta:.2f}" if beta else "", *map(times, speedups)])
    show_table(("K", "β", *(f"predicted, {name}" for name in grid.drafters)), rows)


def show_table(columns: Sequence, rows: Iterable) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*map(Text, row))
    print(flush=True)
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)
