"""The lines of the blog, which a run prints while it decodes."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from speculative.checkpoints.loading import model_folder
from speculative.engines import devices
from speculative.measure.record import Iteration
from speculative.options import Options
from speculative.support.files import check_outputs
from speculative.support.terminal import SHOWN

MOST_COLUMNS = 110  # of a paragraph

# The colour of a token's origin, in rich's words; for readers who cannot tell it from the others bold or underlined.
STYLES = {
    "accepted": "green",
    "resampled": "red underline",
    "bonus": "cyan bold",
    "autoregressive": "yellow",
    "accepted: prompt_lookup": "blue italic",
    "accepted: ngram": "magenta italic",
    "accepted: heads": "blue",
}
FROM_OTHER = "bright_green"  # accepted from another drafter


def check_output(o: Options) -> Options:
    """Raises UserError where a file cannot be written, or is one that is read -> the options.

    Of several processes that compute the same, only the first writes.
    """
    if not o.json and not o.html:
        return o
    if not devices.writes_files():
        return replace(o, json=None, html=None)
    models = [model_folder(size, o.models_dir) for size in (o.target_model_size, o.draft_model_size)]
    check_outputs([o.json, o.html], [o.prompt_file, o.ngram_text, *models])
    return o


def style(origin: str | None) -> str:
    """The colour of an origin, in rich's words."""
    return STYLES.get(origin, FROM_OTHER) if origin else ""


class Display:
    """Prints the blog's lines of one decoder; meanwhile a progress bar or the stream. Ctrl-C prints the texts so far.

    with Display(title, o, prompts) as display:
        for step in session.speculative(prompts): display.push(step)
    display.print_time(seconds)
    """

    def __init__(self, title: str, o: Options, prompts: Sequence[str]):
        self.title = title
        self.o = o
        self.prompts = prompts
        self.bar = None
        self.texts = []  # for each text that has begun, the pieces that it consists of: (text, origin)

    def __enter__(self) -> "Display":
        print(f"\n{self.title}\n{'-' * len(self.title)}", flush=True)
        n_tokens = len(self.prompts) * self.o.n_samples * self.o.n_tokens_to_generate
        self.bar = tqdm(total=n_tokens, unit="token", leave=False, disable=self.o.stream or None)
        self.begin()
        return self

    def __exit__(self, kind, *_) -> None:
        self.bar.close()
        if kind and issubclass(kind, KeyboardInterrupt):
            self.print_texts()
        elif self.o.stream:
            print()

    def begin(self) -> None:
        """The next text."""
        prompt = self.prompts[len(self.texts) % len(self.prompts)]
        self.texts.append([])
        self.write("Text = ", None)
        self.write(prompt, None)

    def push(self, step: Iteration) -> None:
        while len(self.texts) <= step.number:
            if self.o.stream:
                print()
            self.begin()
        origins = step.origins or [self.texts[step.number][-1][1]]  # the last step may be the rest of a character
        for piece, origin in zip(step.pieces, origins, strict=True):
            self.write(piece, origin, step.number)
        self.bar.update(len(step.tokens))

    def write(self, text: str, origin: str | None, number: int = -1) -> None:
        self.texts[number].append((text, origin))
        if self.o.stream:
            show([(text, origin)])

    def print_time(self, seconds: float) -> None:
        print(f"Time = {seconds:.2f}s")
        if not self.o.stream:
            self.print_texts()

    def print_texts(self) -> None:
        if self.o.stream:
            print()  # the line that was interrupted
        else:
            for pieces in self.texts:
                show(pieces)
                print()
        sys.stdout.flush()


def columns() -> int:
    """Return the width of a paragraph: the terminal's, if that is not too wide to read."""
    return min(MOST_COLUMNS, shutil.get_terminal_size((MOST_COLUMNS, 24)).columns)


def painter() -> Any:
    """Rich's console, which shows colours at a terminal; None elsewhere, or if NO_COLOR (no-color.org) is set."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return None
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else None


def show(pieces: list[tuple[str, str | None]]) -> None:
    """Prints (text, origin) pieces, in colour where that can be shown."""
    console = painter()
    if console:
        from rich.text import Text

        console.print(Text.assemble(*((text.translate(SHOWN), style(origin)) for text, origin in pieces)), end="")
    else:
        print("".join(text for text, _ in pieces).translate(SHOWN), end="", flush=True)
