"""The lines of the blog, which a run prints while it decodes."""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from operator import attrgetter
from typing import Any

from speculative.report.record import DecoderRecord
from speculative.report.words import blog_time
from speculative.run.options import Options
from speculative.run.steps import TextStep
from speculative.support.progress import tqdm
from speculative.support.terminal import PRINTABLE

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
