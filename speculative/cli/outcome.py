"""The last words of a run, when both decoders are done: our lines after the blog's, the JSON file, the page."""

import os
import sys
import textwrap

from speculative.blog.encoder import Encoder
from speculative.cli.display import columns, painter, show
from speculative.engines import memory, runtime
from speculative.loading import networks_of
from speculative.measure import report
from speculative.measure.page import page
from speculative.measure.record import Iteration
from speculative.measure.recorder import Recorder
from speculative.session import Session
from speculative.support.files import write_json, write_text
from speculative.support.terminal import SHOWN, one_line

ORIGINS = ("accepted", "resampled", "bonus", "autoregressive")


def show_report(session: Session, prompts: list[str], runs: dict[str, Recorder]) -> None:
    """Print the lines after the blog's, and write the JSON file and the page.

    prompts: one, or with --batch several. runs: {decoder: its record}, of both or with --only of one.
    """
    o = session.options
    if o.only:
        [alone] = runs.values()
        if not o.quiet:
            print(f"\nTokens per second = {alone.n_tokens / alone.seconds:.1f}")
        return
    if o.quiet and not o.json and not o.html:
        return
    run = session.document(prompts, [runs["autoregressive"], runs["speculative"]])
    if o.json:
        write_json(o.json, run)
    if o.html:
        write_text(o.html, page(run))
    if o.quiet:
        return
    if painter():
        show_legend(runs["speculative"])
    print()
    for line in run["summary"]:
        print(textwrap.fill(line, columns(), break_long_words=False, break_on_hyphens=False))
    if o.verbose:
        show_tables(session, run["figures"], runs["speculative"])
    for path, what in ((o.json, "the run as JSON"), (o.html, "the run as a page, for any browser")):
        if path:
            print(one_line(f"Wrote {path}: {what}, {os.path.getsize(path) / 1e3:,.0f} kB"))


def show_legend(speculative: Recorder) -> None:
    """Each origin in its colour; of the drafters, those of which a token was accepted."""
    of_drafters = {origin for i in speculative.iterations for origin in i.origins}.difference(ORIGINS)
    accepted, *others = ORIGINS
    pieces = [("\n", None)]
    for origin in (accepted, *sorted(of_drafters), *others):
        pieces += [(origin.replace("_", " "), origin), ("  ", None)]
    show([*pieces, ("\n", None)])


def show_tables(session: Session, f: dict, speculative: Recorder) -> None:
    """--verbose: all iterations in a table, and all figures in another."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    models = {role: session.models[role] for role in networks_of(session.roles)}
    on_numpy = session.options.engine == "numpy"  # on JAX, weights lie and are read elsewhere
    rows = report.table(f, speculative.rule)
    peak = memory.peak() if on_numpy else None
    if peak:
        weights = sum(model.weight_bytes for model in models.values())
        rows.append(("peak memory", f"{peak / 1e9:.2f} GB", f"of which {weights / 1e9:.2f} GB are weights"))
    if on_numpy:
        rows += [(f"kernels, {need}", *runtime.choices(model)) for need, model in models.items()]
    iterations = Table("#", "accepted", "draft", "score", "α", "tokens", box=None, header_style="bold")
    for number, iteration in enumerate(speculative.iterations, start=1):
        iterations.add_row(str(number), *map(Text, iteration_row(iteration, session.encoder)))
    every_figure = Table("figure", "value", "formula", box=None, header_style="bold")
    for row in rows:
        every_figure.add_row(*map(Text, row))
    width = None if sys.stdout.isatty() else 200  # None: the terminal's own
    console = Console(highlight=False, width=width)
    for part in (iterations, every_figure):
        print(flush=True)
        console.print(part)


def iteration_row(iteration: Iteration, encoder: Encoder) -> tuple[str, ...]:
    """One iteration: the number of accepted drafts, times of the draft and of the target, each chance, the tokens."""
    chances = " ".join(f"{a:.2f}" for a in iteration.alpha)
    times = ("" if s is None else report.ms(s) for s in (iteration.drafting, iteration.scoring))
    text = repr(encoder.decode(iteration.tokens)).translate(SHOWN)
    return f"{iteration.accepted} of {iteration.drafted}", *times, chances, text
