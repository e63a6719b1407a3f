"""What a run prints: the blog's lines and, after them, ours."""

import os
import sys
import textwrap
from typing import Any

import numpy as np
from tqdm import tqdm

from checkpoints.folders import model_folder
from encoder import Encoder, StreamDecoder
from plumbing import arguments, checksums
from plumbing.arguments import Flag
from plumbing.files import check_outputs, write_json, write_text
from plumbing.signals import LAST_WORDS
from plumbing.terminal import SHOWN
from speculative import drafters
from speculative.cli import devices
from speculative.cli.load import encode
from speculative.decoding import Pair
from speculative.engines import memory
from speculative.measure import report
from speculative.measure.document import document
from speculative.measure.figures import figures
from speculative.measure.machine import read_bandwidth
from speculative.measure.page import page
from speculative.measure.recorder import Iteration, Recorder, origins
from speculative.sampling import Step

COLUMNS = 110

# A colour, and for those who do not tell colours apart something else: bold, underlined, or neither.
STYLES = {"accepted": "green", "resampled": "red underline", "bonus": "cyan bold", "autoregressive": "yellow"}


FLAGS = (
    Flag(
        "quiet",
        arguments.switch,
        "only the blog's lines",
        False,
        excludes=("verbose", "color", "verify"),
        live=True,
    ),
    Flag(
        "verbose",
        arguments.switch,
        "every iteration, and every figure with its formula",
        False,
        excludes=("verify",),
        live=True,
    ),
    Flag("stream", arguments.switch, "the text as it is decoded", False, excludes=("verify",), live=True),
    Flag(
        "color",
        arguments.switch,
        "tokens by origin: accepted (and whose), resampled, bonus, autoregressive",
        False,
        excludes=("verify",),
        live=True,
    ),
    Flag("json", arguments.path, "write the run to this file, as JSON", excludes=("verify",)),
    Flag(
        "details",
        arguments.switch,
        "also write p, q and u of every draft to --json; --html has them always",
        False,
        in_vain=lambda o: "" if o.json or o.html else "it is about what --json writes: add --json FILE",
    ),
    Flag(
        "html",
        arguments.path,
        "write a page to this file that replays the run, for any browser",
        excludes=("verify", "n_samples"),
    ),
    Flag(
        "verify",
        arguments.switch,
        "instead of decoding, check that nothing is lost with these models",
        False,
        excludes=("n_samples", "stop"),
    ),
)


def check_output(o: Any) -> Any:
    """The options, whose files can be written and are not read. Of several processes that compute the same, only the
    first writes. Raises UserError."""
    if not devices.writes_files():
        return o._replace(json=None, html=None)
    models = [model_folder(size, o.models_dir) for size in (o.target_model_size, o.draft_model_size)]
    check_outputs([o.json, o.html], [o.prompt_file, o.ngram_text, *models])
    return o


def style(origin: str | None) -> str:
    """Of an origin, for rich. A draft has the colour of who proposed it."""
    name = (origin or "").removeprefix("accepted: ")
    if name in drafters.KINDS:
        return drafters.KINDS[name].color
    return STYLES.get(origin, "")


class Display:
    """The blog's lines of one decoder, and meanwhile a progress bar or the stream. Ctrl-C prints the texts so far.

    with Display(...) as display:
        display.begin(prompt); display.push(step) for each step; display.end(); and again for each further sample
    display.print_time(seconds)

    Prompts that are decoded together are begun at once, and pushed to by their number, the first being 0.
    """

    def __init__(self, title: str, o: Any, encoder: Encoder, n_texts: int):
        self.title, self.o, self.encoder = title, o, encoder
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
        self.write(self.decoders[i].flush(), "autoregressive", i)
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
    """main.run_sampling_fn for prompts that are decoded together: the decoder of texts.loaded yields, for each call of
    the target, the Rows of the prompts that it served."""
    o = texts.o
    pair = texts.loaded
    decode_fn = getattr(pair, name)
    input_ids = [encode(pair.encoder, prompt) for prompt in prompts]
    pair.forget()
    recorder = Recorder(pair.lenience)
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


def show_report(o: Any, pair: Pair, prompts: list[str], runs: list[Recorder]) -> None:
    """What stands after the blog's lines, the JSON file and the page.

    prompts: one, or with --batch several. runs: the autoregressive and the speculative one.
    """
    input_ids = [encode(pair.encoder, prompt) for prompt in prompts]
    found = stand_ins(o, pair)
    if o.json or o.html:
        run = document(o._asdict(), pair.encoder, prompts, input_ids, *runs, found)
    if o.json:
        write_json(o.json, run)
    if o.html:
        write_text(o.html, page(run))
    if o.quiet:
        return
    if painter(o.color):  # without colours there is nothing to explain
        written = sorted({origin for i in runs[1].iterations for origin in origins(i)} - {*STYLES})
        first, *others = STYLES
        shown = [first, *written, *others]
        legend = [piece for origin in shown for piece in ((origin.replace("_", " "), origin), ("  ", None))]
        show([("\n", None), *legend, ("\n", None)], o.color)
    f = figures(*runs)
    print()
    for line in [*report.summary(f, o.K), *notes(o, found), *differences(o, pair, input_ids, runs)]:
        print(textwrap.fill(line, COLUMNS))
    if o.verbose:
        show_details(o, pair, f, runs[1])
    for path, what in ((o.json, "the run as JSON"), (o.html, "the run as a page, for any browser")):
        if path:
            print(f"Wrote {path}: {what}, {os.path.getsize(path) / 1e3:,.0f} kB")


def stand_ins(o: Any, pair: Pair) -> dict[str, str]:
    """{model with an official name, but not the official weights: what it is instead}"""
    sizes = [o.target_model_size, *([o.draft_model_size] if "draft" in pair.models else [])]
    found = {size: checksums.stand_in(model_folder(size, o.models_dir)) for size in sizes}
    return {size: what for size, what in found.items() if what}


def differences(o: Any, pair: Pair, input_ids: list, runs: list[Recorder]) -> list[str]:
    """Where greedy texts part, on an engine that rounds by the number of rows."""
    if o.engine == "numpy" or o.temperature > 0:
        return []
    from speculative.engines.jax.pair import greedy_differences

    texts = [[[token for i in sample for token in i.step.tokens] for sample in run.samples] for run in runs]
    return greedy_differences(input_ids * o.n_samples, pair.target, *texts)


def notes(o: Any, stand_ins: dict[str, str]) -> list[str]:
    """What a reader has to know of runs with such flags. stand_ins: {model: what it is in place of the official one}"""
    found = [f"Note: {size} is a stand-in for the official model: {what}." for size, what in stand_ins.items()]
    if (o.typical or o.lenience < 1) and o.temperature > 0:
        how = f"typical acceptance, ε = {o.typical:g}," if o.typical else f"lenience {o.lenience:g}"
        found.append(f"Note: with {how} the speculative text is not distributed as the target's.")
    if "auto" in (o.K, o.tree) and o.temperature > 0:
        flag = "--tree" if o.tree else "--K"
        found.append(f"Note: {flag} auto depends on measured times, so the same seed may give another text next time.")
    return found


def show_details(o: Any, pair: Pair, f: dict, speculative: Recorder) -> None:
    """--verbose: a table of every iteration, and one of every figure."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    on_numpy = o.engine == "numpy"  # on JAX, weights lie and are read elsewhere
    bandwidth = read_bandwidth(n_bytes=2**28, repeats=30) if on_numpy else None
    rows = report.details(f, speculative.lenience, pair.target.weight_bytes, bandwidth)
    if on_numpy and (peak := memory.peak()):
        weights = sum(model.weight_bytes for model in pair.models.values())
        rows.append(("peak memory", f"{peak / 1e9:.2f} GB", f"of which {weights / 1e9:.2f} GB are weights"))
    iterations = Table("#", "accepted", "draft", "score", "α", "tokens", box=None, header_style="bold")
    for number, iteration in enumerate(speculative.iterations, start=1):
        iterations.add_row(str(number), *map(Text, iteration_row(iteration, pair.encoder)))
    table = Table("figure", "value", "formula", box=None, header_style="bold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for part in (iterations, table):
        print(flush=True)
        console.print(part)


def iteration_row(iteration: Iteration, encoder: Encoder) -> tuple[str, ...]:
    """One iteration: what was accepted, seconds of the draft and of the target, each chance, the tokens."""
    step, chances = iteration.step, " ".join(f"{a:.2f}" for a in iteration.alpha)
    times = ("" if s is None else report.ms(s) for s in (iteration.drafting, iteration.scoring))
    return f"{step.accepted} of {step.drafted}", *times, chances, repr(encoder.decode(step.tokens)).translate(SHOWN)
