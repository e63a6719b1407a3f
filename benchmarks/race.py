"""The race of a run's two decoders as a picture that moves: their calls and their texts on one time axis.

    python main.py --demo --json run.json
    python -m benchmarks race run.json docs/race.svg

It is light or dark as the reader's system is, on a background of its own, and still where motion is unwanted.
"""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from benchmarks.quiet import trouble
from benchmarks.tables import parser_of
from speculative.report.document import naming_run, read_run
from speculative.report.race import lanes, placed_steps, race_seconds
from speculative.report.record import RunRecord
from speculative.support.errors import UserError
from speculative.support.files import write_text

WIDTH, MARGIN = 840, 20  # the width and the margin of the picture, in pixels
COLUMNS = 104  # characters in a line of text
LINE = 17  # pixels from a line of text to the next
GAP = 0.6  # pixels between two calls
LEAST = 1.2  # pixels of a call's width, so that a draft model's can be seen
HEIGHT = 9  # pixels of a line of calls: the drafts' lines are above the target's
SECONDS = 12.0  # seconds of the picture, then it begins again
RACING = 0.75  # share of these seconds that the slower decoder takes
NAMES = {  # a kind of mark -> its words in the key
    "draft": "call of the draft model",
    "target": "call of the target",
    "accepted": "accepted draft",
    "resampled": "resampled",
    "bonus": "bonus",
}
STYLE = f"""
text {{ font: 12px ui-sans-serif, system-ui, sans-serif; fill: var(--ink) }}
.title {{ font-size: 15px; font-weight: 600 }}
.count, .key {{ fill: var(--grey) }}
.text {{ font: 12.5px ui-monospace, Menlo, Consolas, monospace; white-space: pre }}
.text .prompt {{ fill: var(--grey) }}
.line {{ stroke: var(--rule) }}
svg {{ --paper: #ffffff; --ink: #1f2328; --grey: #59636e; --rule: #d1d9e0; --draft: #e69f00; --target: #0072b2;
  --accepted: #00735a; --resampled: #c04800; --bonus: #8250df; --autoregressive: #1f2328; --level: #cc79a7 }}
@media (prefers-color-scheme: dark) {{ svg {{ --paper: #0d1117; --ink: #f0f6fc; --grey: #9198a1; --rule: #3d444d;
  --draft: #e69f00; --level: #cc79a7; --target: #3d9be0; --accepted: #2fc79a; --resampled: #ff8a4c;
  --bonus: #c297ff; --autoregressive: #f0f6fc }} }}
.now {{ animation: now {SECONDS}s linear infinite; transform-origin: {MARGIN}px 0 }}
@keyframes now {{ from {{ transform: scaleX(0) }} {100 * RACING}%, to {{ transform: none }} }}
@media (prefers-reduced-motion: reduce) {{ * {{ animation: none !important }} }}
"""


class Piece(NamedTuple):
    """The text of a token or of a word of the prompt, and the time at which it was known."""

    text: str
    origin: str
    time: float


class Picture:
    """An SVG that is drawn from top to bottom, over a time axis of `seconds`."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.parts: list[str] = []
        self.rules: list[str] = []  # rules of the style: the time at which each token appears
        self.y = MARGIN

    def x(self, time: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * time / self.seconds

    def add(self, element: str) -> None:
        self.parts.append(element)

    def lane(self, lane: dict, prompt: str, note: str) -> None:
        """Draw a decoder: its title, its calls, a block for each token, and its text. lane: as report.race has it.
        note: the words after the calls and their time."""
        right = WIDTH - MARGIN
        self.y += 14
        title, _, count = lane["label"].partition(": ")
        self.add(f'<text class="title" x="{MARGIN}" y="{self.y}">{escape(title)}</text>')
        self.add(f'<text class="count" x="{right}" y="{self.y}" text-anchor="end">{escape(count + note)}</text>')
        self.y += 10
        self.add('<g clip-path="url(#now)">')
        for call in lane["calls"]:
            x = self.x(call["begin"])
            width = self.x(call["begin"] + call["seconds"]) - x
            self.box(call["kind"], x, max(width - GAP, LEAST), HEIGHT, above=-HEIGHT * call["line"])
        self.y += HEIGHT * (lane["lines"] - 1)
        self.blocks(lane["tokens"])
        self.add("</g>")
        self.text(lane["tokens"], prompt)
        self.y += 14

    def blocks(self, tokens: list[dict]) -> None:
        """Draw a block for each token, above those that were known at the same time."""
        highest = max(token["stack"] for token in tokens)
        self.y += HEIGHT + 10 + 6 * (highest + 1)
        for token in tokens:
            x = self.x(token["time"]) - 5
            self.box(origin_of(token), x, 5, 5, above=6 * (token["stack"] + 1))
        self.y += LINE

    def box(self, kind: str, x: float, width: float, height: float, above: float = 0) -> None:
        position = f'x="{x:.1f}" y="{self.y - above}" width="{width:.1f}" height="{height}"'
        self.add(f'<rect {position} fill="var(--{kind})"/>')

    def text(self, tokens: list[dict], prompt: str) -> None:
        """Draw the text: each token appears when it is known, in the colour of its origin."""
        pieces = [Piece(word, "prompt", 0.0) for word in re.findall(r"\s?\S+", prompt)]
        pieces += [Piece(token["text"], origin_of(token), token["time"]) for token in tokens]
        for line in wrapped(pieces):
            spans = "".join(map(self.span, line))
            position = f'x="{MARGIN}" y="{self.y}"'
            self.add(f'<text class="text" {position} xml:space="preserve">{spans}</text>')
            self.y += LINE

    def span(self, piece: Piece) -> str:
        text = escape(piece.text)
        if piece.origin == "prompt":
            return f'<tspan class="prompt">{text}</tspan>'
        return f'<tspan class="{self.appears(piece.time)}" fill="var(--{piece.origin})">{text}</tspan>'

    def appears(self, time: float) -> str:
        """Return the class of marks that appear at this time."""
        percent = 100 * RACING * time / self.seconds
        name = f"t{round(100 * percent)}"
        rule = f"@keyframes {name} {{ 0%, {percent:.2f}% {{ opacity: 0 }} {percent + 0.01:.2f}%, to {{ opacity: 1 }} }}"
        rule += f" .{name} {{ animation: {name} {SECONDS}s step-end infinite }}"
        if rule not in self.rules:
            self.rules.append(rule)
        return name

    def key(self) -> None:
        """Draw the meaning of the colours, and how much slower than the run the picture is."""
        x = MARGIN
        self.y += 6
        for name, words in NAMES.items():
            self.box(name, x, 10, 10, above=9)
            self.add(f'<text class="key" x="{x + 15}" y="{self.y}">{words}</text>')
            x += 32 + round(6 * len(words))
        slower = SECONDS * RACING / self.seconds
        speed = f"{slower:.1f} times slower than the run" if slower > 1 else "faster than the run"
        self.add(f'<text class="key" x="{WIDTH - MARGIN}" y="{self.y}" text-anchor="end">{speed}</text>')
        self.y += MARGIN

    def svg(self, title: str) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y}" role="img">'
        clip = f'<clipPath id="now"><rect class="now" x="{MARGIN}" width="{WIDTH}" height="{self.y}"/></clipPath>'
        style = "\n".join(["<style>", STYLE, *self.rules, "</style>"])
        paper = f'<rect width="{WIDTH}" height="{self.y}" rx="8" fill="var(--paper)"/>'
        return "\n".join([head, f"<title>{escape(title)}</title>", style, clip, paper, *self.parts, "</svg>", ""])


def origin_of(token: dict) -> str:
    """Return the meaning of a token's colour. The rest of a character has the colour of autoregressive text."""
    return (token["origin"] or "autoregressive").partition(":")[0]  # without the drafter's name


def words_of(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces of each word. A word begins with a space, or with a line end, which it loses."""
    word: list[Piece] = []
    for piece in pieces:
        if word and piece.text[:1] in (" ", "\n"):
            yield word
            word = []
        word.append(piece)
    yield word


def wrapped(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Yield lines of at most COLUMNS characters. A line end of the text ends a line, and several are as good as one."""
    line: list[Piece] = []
    for word in words_of(pieces):
        n = sum(len(piece.text) for piece in [*line, *word])
        ends = any("\n" in piece.text for piece in word)
        if line and (ends or n > COLUMNS):
            yield line
            line = []
        for piece in word:
            text = piece.text.replace("\n", "")
            line.append(piece._replace(text=text if line else text.lstrip(" ")))
    yield line


def race(record: RunRecord) -> str:
    """Return the SVG of a run. Raises UserError if it has one decoder only, or several texts."""
    comparison = record.comparison
    if not comparison or len(record.prompts) > 1:
        raise UserError("a race has two decoders and one text: run it without --only, with one prompt")
    placed = {name: placed_steps(decoder) for name, decoder in record.decoders.items()}
    picture = Picture(race_seconds(placed))
    data = lanes(record, placed)
    notes = {"autoregressive": "", "speculative": f": {comparison.speedup:.2f} times as fast"}
    for name, lane in data.items():
        picture.lane(lane, record.prompts[0].text, notes[name])
    picture.key()
    words = "; ".join(lane["label"] + notes[name] for name, lane in data.items())
    return picture.svg(f"Both decoders on one time axis, K = {record.options.K}. {words}.")


def main(argv: list[str]) -> None:
    parser = parser_of("race", __doc__)
    parser.add_argument("run", type=Path, help="a run's JSON")
    parser.add_argument("out", type=Path, help="the picture that is written")
    o = parser.parse_args(argv)
    record = read_run(str(o.run))
    with naming_run(str(o.run)):
        picture = race(record)
    if reason := trouble(record.figures):
        raise UserError(f"{o.run} is not drawn: {reason}. Decode again on a machine that is at rest")
    write_text(str(o.out), picture)
