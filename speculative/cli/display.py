"""The lines of the blog, which a run prints while it decodes."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from tqdm import tqdm

from speculative.measure.recorder import Iteration
from speculative.support.terminal import SHOWN

MOST_COLUMNS = 110  # of a paragraph

# The colour of a token's origin, in rich's words; for readers who cannot tell it from the others bold or underlined.
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


def print_title(title: str) -> None:
    print(f"\n{title}\n{'-' * len(title)}", flush=True)


def show_bar(steps: Iterable[Iteration], n_tokens: int) -> None:
    """Take the steps, while a bar shows how many of the tokens there are."""
    with tqdm(total=n_tokens, unit="token", leave=False, disable=None) as bar:
        for step in steps:
            bar.update(len(step.tokens))


def print_texts(steps: Iterable[Iteration], prompts: Sequence[str]) -> None:
    """Print the text of each prompt as its steps come, in colour where that can be shown.

    prompts: those of the texts, again and again if each is decoded several times.
    """
    show([(f"Text = {prompts[0]}", None)])
    number = 0
    try:
        for step in steps:
            if step.number > number:
                number = step.number
                show([(f"\nText = {prompts[number % len(prompts)]}", None)])
            show([*zip_longest(step.pieces, step.origins)])  # the last piece may be a part of a character
    finally:
        print(flush=True)


def columns() -> int:
    """Return the width of a paragraph: the terminal's, if that is not too wide to read."""
    return min(MOST_COLUMNS, shutil.get_terminal_size((MOST_COLUMNS, 24)).columns)


def painter() -> Any:
    """Rich's console, which shows colours at a terminal; None elsewhere, or if NO_COLOR (no-color.org) is set."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def show(pieces: list[tuple[str, str | None]]) -> None:
    """Print (text, origin) pieces, in colour where that can be shown."""
    console = painter()
    if console:
        from rich.text import Text

        styled = [(text.translate(SHOWN), STYLES.get(origin, FROM_OTHER)) for text, origin in pieces]
        console.print(Text.assemble(*styled), end="")
    else:
        print("".join(text for text, _ in pieces).translate(SHOWN), end="", flush=True)
