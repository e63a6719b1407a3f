"""The lines of a run: the blog's, which are printed while it decodes, and ours after them; its files are written."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from operator import attrgetter
from typing import Any

from speculative.report import ending, score_words, tables
from speculative.report.document import write_run
from speculative.report.make_record import make_record
from speculative.report.page import ORIGINS, page
from speculative.report.record import DecoderRecord, RunRecord
from speculative.report.score import Score
from speculative.report.words import blog_time, duration, times
from speculative.run.options import Options
from speculative.run.session import Session
from speculative.run.steps import TextStep
from speculative.support.files import say_written, write_text
from speculative.support.progress import tqdm
from speculative.support.terminal import PRINTABLE, one_line
from speculative.support.texts import has_json_lines

# The colour of a token's origin, in rich's words; also bold or underlined, for readers who cannot tell colours apart.
STYLES = {
    None: "",
    "accepted": "green",
    "resampled": "red underline",
    "bonus": "cyan bold",
    "autoregressive": "yellow",
    "accepted: prompt_lookup": "blue italic",
    "accepted: ngram": "magenta italic",
    "accepted: heads": "blue",
}
FROM_OTHER = "bright_green"  # accepted from another drafter
MOST_COLUMNS = 110  # columns of a paragraph, also at a wide terminal


class Screen(AbstractContextManager):
    """The blog's lines of each decoder: its title, a bar, the time and the text.

    At a terminal, and with --stream, the text takes the place of the bar and comes before the time.

    If a short decode is repeated, the steps of both decoders arrive in turn. Only those of the decoder whose title is
    on the screen are shown.
    """

    def __init__(self, o: Options, names: Sequence[str], prompts: Sequence[str]):
        """names: the decoders, in their order. prompts: one for each text."""
        self.names = list(names)
        self.prompts = prompts
        live = sys.stdout.isatty() and not o.quiet and o.batch == 1  # a batch decodes its texts together
        self.stream = o.stream or live
        self.n_tokens = len(prompts) * o.n_tokens_to_generate
        self.bar: Any = None  # the bar of the decoder on the screen; None before its title and after its text
        self.steps: list[TextStep] = []  # the steps of this decoder that were shown
        self.text_index = 0  # the number of this decoder's text that was printed last

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:  # after Ctrl-C, the texts so far
            self.end_bar()

    def begin(self) -> None:
        title = f"{self.names[0].capitalize()} Decode"
        print(f"\n{title}\n{'-' * len(title)}", flush=True)
        self.steps = []
        self.text_index = 0
        if self.stream:
            show([(f"Text = {self.prompts[0]}", None)])
        self.bar = tqdm(total=self.n_tokens, unit="token", leave=False, disable=self.stream or None)

    def show_step(self, name: str, step: TextStep) -> None:
        if name != self.names[0]:
            return
        if self.bar is None:
            self.begin()
        if self.stream:
            self.print_step(step)
        self.bar.update(len(step.tokens))
        self.steps.append(step)

    def show_record(self, record: DecoderRecord) -> None:
        """Print the time and the texts of the decoder that is done, and the title of the next."""
        if not self.steps:  # it ran in turn with the one before
            for step in record.steps:
                self.show_step(record.name, step)
        self.end_bar(f"Time = {blog_time(record.seconds)}")
        self.names.pop(0)
        if self.names:
            self.begin()

    def end_bar(self, time: str = "") -> None:
        bar, self.bar = self.bar, None
        bar.close()
        if self.stream:
            print(flush=True)
        if time:
            print(time)
        if not self.stream:
            show([(f"Text = {self.prompts[0]}", None)])
            for step in sorted(self.steps, key=attrgetter("text_index")):
                self.print_step(step)
            print(flush=True)

    def print_step(self, step: TextStep) -> None:
        """Print a step's text, in colour if that can be shown."""
        if step.text_index > self.text_index:
            self.text_index = step.text_index
            show([(f"\nText = {self.prompts[step.text_index]}", None)])
        pieces = []
        # A part of a character has neither an origin nor a drafter.
        for text, origin, by in zip_longest(step.pieces, step.origins, step.proposers):
            pieces.append((text, origin if by in (None, "model") else f"accepted: {by}"))
        show(pieces)


def color_console() -> Any:
    """Rich's console, which shows colours at a terminal; None elsewhere, or if NO_COLOR (no-color.org) is set."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def show(pieces: list[tuple[str, str | None]]) -> None:
    """Print (text, origin) pieces, in colour where that can be shown."""
    console = color_console()
    if console:
        from rich.text import Text

        styled = [(text.translate(PRINTABLE), STYLES.get(origin, FROM_OTHER)) for text, origin in pieces]
        console.print(Text.assemble(*styled), end="")
    else:
        print("".join([text for text, _ in pieces]).translate(PRINTABLE), end="", flush=True)


# ---- After both decoders ---------------------------------------------------------------------------------------------


def show_report(session: Session[Options], prompts: list[str], records: list[DecoderRecord]) -> RunRecord | None:
    """Print the lines after the blog's, and write the JSON file and the page -> the record of the run.

    prompts: one for each text. records: of both decoders, or with --only of one. With --quiet and no file there is
    nothing to show, and no record.
    """
    o = session.options
    if not o.has_report:
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
