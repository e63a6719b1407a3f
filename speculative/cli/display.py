"""What a run prints while it decodes: the blog's lines."""

import os
import sys
from typing import Any

import numpy as np
from tqdm import tqdm

from checkpoints.folders import model_folder
from encoder import Encoder, StreamDecoder
from plumbing import arguments
from plumbing.arguments import Flag
from plumbing.files import check_outputs
from plumbing.signals import LAST_WORDS
from plumbing.terminal import SHOWN
from speculative import drafters
from speculative.cli import devices
from speculative.cli.load import encode
from speculative.measure.recorder import Recorder, origins
from speculative.sampling import Step

COLUMNS = 110  # of a paragraph, at most

# A colour, and for readers who cannot tell it from the others bold, underlined, or neither.
STYLES = {"accepted": "green", "resampled": "red underline", "bonus": "cyan bold", "autoregressive": "yellow"}


def without_file(o: Any) -> str:
    """Why --details would do nothing with these options; "" where it does something."""
    if o.json or o.html:
        return ""
    return "it is about what --json writes: add --json FILE"


FLAGS = (
    Flag(
        "quiet",
        arguments.switch,
        "print the blog's lines alone",
        False,
        excludes=("verbose", "color", "verify"),
        live=True,
    ),
    Flag(
        "verbose",
        arguments.switch,
        "also print every iteration, and every figure with its formula",
        False,
        excludes=("verify",),
        live=True,
    ),
    Flag("stream", arguments.switch, "print the text as it is decoded", False, excludes=("verify",), live=True),
    Flag(
        "color",
        arguments.switch,
        "colour each token by its origin: accepted (and whose), resampled, bonus, autoregressive",
        False,
        excludes=("verify",),
        live=True,
    ),
    Flag("json", arguments.path, "write the run to this file, as JSON", excludes=("verify",)),
    Flag(
        "details",
        arguments.switch,
        "with --json: p, q and u of every draft, too (--html always has them)",
        False,
        in_vain=without_file,
    ),
    Flag(
        "html",
        arguments.path,
        "write the run to this file as a page for any browser, which replays it",
        excludes=("verify", "n_samples"),
    ),
    Flag(
        "verify",
        arguments.switch,
        "instead of the run, check that nothing is lost, on texts of --n_tokens_to_generate tokens",
        False,
        excludes=("n_samples", "stop"),
    ),
)


def check_output(o: Any) -> Any:
    """Raises UserError where a file cannot be written, or is one that is read -> the options.

    Of several processes that compute the same, only the first writes.
    """
    if not devices.writes_files():
        return o._replace(json=None, html=None)
    models = [model_folder(size, o.models_dir) for size in (o.target_model_size, o.draft_model_size)]
    check_outputs([o.json, o.html], [o.prompt_file, o.ngram_text, *models])
    return o


def style(origin: str | None) -> str:
    """The colour of an origin, in rich's words: for a draft, that of who proposed it."""
    name = (origin or "").removeprefix("accepted: ")
    if name in drafters.KINDS:
        return drafters.KINDS[name].color
    return STYLES.get(origin, "")


class Display:
    """Prints the blog's lines of one decoder; meanwhile a progress bar or the stream. Ctrl-C prints the texts so far.

    with Display(...) as display:
        display.begin(prompt); display.push(step, origins) for each step; display.end(); and again for the next sample
    display.print_time(seconds)

    Prompts that are decoded together are all begun first. push() and end() then name them by number, from 0.
    """

    def __init__(self, title: str, o: Any, encoder: Encoder, n_texts: int):
        self.title = title
        self.o = o
        self.encoder = encoder
        self.bar = tqdm(total=n_texts * o.n_tokens_to_generate, unit="token", leave=False, disable=o.stream or None)
        self.texts = []  # for each text, the pieces that it consists of: (text, origin)
        self.decoders = []

    def __enter__(self) -> "Display":
        print(f"\n{self.title}\n{'-' * len(self.title)}", flush=True)
        LAST_WORDS.append(self.print_texts)
        return self

    def __exit__(self, kind, *_) -> None:
        self.bar.close()
        LAST_WORDS.remove(self.print_texts)
        if kind and issubclass(kind, KeyboardInterrupt):
            self.print_texts()

    def begin(self, prompt: str) -> None:
        self.texts.append([])
        self.decoders.append(StreamDecoder(self.encoder, self.o.stop))
        self.write("Text = ", None)
        self.write(prompt, None)

    def push(self, step: Step, origins: list[str], i: int = -1) -> None:
        """origins: of each of the step's tokens (recorder.origins)."""
        for token, origin in zip(step.tokens, origins, strict=True):
            self.write(self.decoders[i].push([token]), origin, i)
        self.bar.update(len(step.tokens))

    def end(self, i: int = -1) -> None:
        self.write(self.decoders[i].flush(), self.texts[i][-1][1], i)
        self.write("\n", None, i)

    def write(self, text: str, origin: str | None, i: int = -1) -> None:
        self.texts[i].append((text, origin))
        if self.o.stream:
            show([(text, origin)], self.o.color)

    def print_time(self, seconds: float) -> None:
        print(f"Time = {seconds:.2f}s")
        self.print_texts()

    def print_texts(self) -> None:
        for pieces in self.texts:
            if not self.o.stream:
                show(pieces, self.o.color)
            if pieces[-1][0] != "\n":  # it was interrupted
                print()
        sys.stdout.flush()


def run_batch_fn(title: str, name: str, texts: Any, prompts: list[str]) -> Recorder:
    """main.run_sampling_fn for prompts that are decoded together. texts: a pair.TextPair.

    The decoder yields, for each call of the target, the Rows of the prompts that it served.
    """
    o = texts.o
    pair = texts.loaded
    decode_fn = getattr(pair, name)
    input_ids = [encode(pair.encoder, prompt) for prompt in prompts]
    pair.forget()
    recorder = Recorder(pair.accept)
    with Display(title, o, pair.encoder, len(prompts)) as display:
        for prompt in prompts:
            display.begin(prompt)
        rng = np.random.default_rng(o.seed)
        calls = decode_fn(input_ids, o.n_tokens_to_generate, rng, recorder, o.batch, o.stop)
        for rows in recorder.watch_batch(calls, len(prompts), min(o.batch, len(prompts))):
            for row in rows:
                display.push(row.step, origins(recorder.samples[row.number][-1]), row.number)
        for i in range(len(prompts)):
            display.end(i)
    display.print_time(recorder.seconds)
    return recorder


def painter(color: bool) -> Any:
    """What shows colours: rich's console on a terminal, unless NO_COLOR (no-color.org) is set; else None."""
    if not color or os.environ.get("NO_COLOR"):
        return None
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else None


def show(pieces: list[tuple[str, str | None]], color: bool) -> None:
    """Prints (text, origin) pieces, in colour where that can be shown."""
    pieces = [(text.translate(SHOWN), origin) for text, origin in pieces]
    console = painter(color)
    if console:
        from rich.text import Text

        console.print(Text.assemble(*((text, style(origin)) for text, origin in pieces)), end="")
    else:
        print("".join(text for text, _ in pieces), end="", flush=True)
