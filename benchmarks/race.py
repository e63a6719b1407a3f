"""The race of a run's two decoders as a picture that moves: their calls and their texts on one time axis.

    python main.py --demo --json run.json
    python -m benchmarks race run.json docs/race.svg

It is light or dark as the reader's system is, and still where motion is unwanted.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import parser_of
from speculative.report.document import read_run
from speculative.support.errors import UserError
from speculative.support.files import write_text

WIDTH, MARGIN = 840, 20  # of the picture, in pixels
COLUMNS = 104  # characters in a line of text
LINE = 17  # pixels from a line of text to the next
GAP = 0.6  # pixels between two calls
SECONDS = 12.0  # of the picture, then it begins again
RACING = 0.75  # share of these seconds that the slower decoder takes
NAMES = {  # of what is drawn -> its words in the key
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
svg {{ --ink: #1f2328; --grey: #59636e; --rule: #d1d9e0; --draft: #e69f00; --target: #0072b2; --accepted: #00735a;
  --resampled: #c04800; --bonus: #8250df; --autoregressive: #1f2328 }}
@media (prefers-color-scheme: dark) {{ svg {{ --ink: #f0f6fc; --grey: #9198a1; --rule: #3d444d; --draft: #e69f00;
  --target: #3d9be0; --accepted: #2fc79a; --resampled: #ff8a4c; --bonus: #c297ff; --autoregressive: #f0f6fc }} }}
.now {{ animation: now {SECONDS}s linear infinite; transform-origin: {MARGIN}px 0 }}
@keyframes now {{ from {{ transform: scaleX(0) }} {100 * RACING}%, to {{ transform: none }} }}
@media (prefers-reduced-motion: reduce) {{ * {{ animation: none !important }} }}
"""


class Call(NamedTuple):
    """A call of a model, in seconds after the decoder's start."""

    role: str
    begin: float
    seconds: float


class Piece(NamedTuple):
    """The text of a token or of a word of the prompt, and the time at which it was known."""

    text: str
    origin: str
    time: float


class Lane(NamedTuple):
    """A decoder: its calls and its tokens."""

    title: str
    calls: list[Call]
    tokens: list[Piece]
    seconds: float

    def count(self) -> str:
        targets = sum(call.role == "target" for call in self.calls)
        time = f"{self.seconds:.2f} s" if self.seconds >= 1 else f"{1000 * self.seconds:.0f} ms"
        return f"{targets} calls of the target, {time}"


def lane_of(title: str, iterations: list[dict]) -> Lane:
    """Return a decoder of a run's JSON."""
    calls, tokens = [], []
    begin = 0.0
    for step in iterations:
        end = begin + step["seconds"]
        for role, after, seconds in step["calls"]:
            calls.append(Call(role, begin + after, seconds))
        for text, origin in zip(step["pieces"], step["origins"], strict=True):
            kind = origin.partition(":")[0]  # without the drafter's name
            tokens.append(Piece(text, kind, end))
        begin = end
    return Lane(title, calls, tokens, begin)


class Picture:
    """An SVG that is drawn from top to bottom, over a time axis of `seconds`."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.parts: list[str] = []
        self.rules: list[str] = []  # of the style: the time at which each token appears
        self.y = MARGIN

    def x(self, time: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * time / self.seconds

    def add(self, element: str) -> None:
        self.parts.append(element)

    def lane(self, lane: Lane, prompt: str) -> None:
        """Draw a decoder: its title, its calls, a block for each token, and its text."""
        right = WIDTH - MARGIN
        self.y += 14
        self.add(f'<text class="title" x="{MARGIN}" y="{self.y}">{escape(lane.title)}</text>')
        self.add(f'<text class="count" x="{right}" y="{self.y}" text-anchor="end">{lane.count()}</text>')
        self.y += 10
        self.add('<g clip-path="url(#now)">')
        for call in lane.calls:
            x = self.x(call.begin)
            width = self.x(call.begin + call.seconds) - x
            self.box("target" if call.role == "target" else "draft", x, max(width - GAP, GAP), 16)
        self.blocks(lane)
        self.add("</g>")
        self.text(lane, prompt)
        self.y += 14

    def blocks(self, lane: Lane) -> None:
        """Draw a block for each token, above those that were known at the same time."""
        times = [token.time for token in lane.tokens]
        most = max(map(times.count, times))
        self.y += 20 + 6 * most
        for number, token in enumerate(lane.tokens):
            n_below = number - times.index(token.time)
            x = self.x(token.time) - 5
            self.box(token.origin, x, 5, 5, above=6 * (n_below + 1))
        self.y += LINE

    def box(self, kind: str, x: float, width: float, height: float, above: float = 0) -> None:
        position = f'x="{x:.1f}" y="{self.y - above}" width="{width:.1f}" height="{height}"'
        self.add(f'<rect {position} fill="var(--{kind})"/>')

    def text(self, lane: Lane, prompt: str) -> None:
        """Draw the text: each token appears when it is known, in the colour of its origin."""
        pieces = [Piece(word, "prompt", 0.0) for word in re.findall(r"\s?\S+", prompt)]
        pieces += lane.tokens
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
        """Return the class of what appears at this time."""
        percent = 100 * RACING * time / self.seconds
        name = f"t{round(100 * percent)}"
        rule = f"@keyframes {name} {{ 0%, {percent:.2f}% {{ opacity: 0 }} {percent + 0.01:.2f}%, to {{ opacity: 1 }} }}"
        rule += f" .{name} {{ animation: {name} {SECONDS}s step-end infinite }}"
        if rule not in self.rules:
            self.rules.append(rule)
        return name

    def key(self) -> None:
        """Draw what the colours mean, and how much slower than the run the picture is."""
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
        return "\n".join([head, f"<title>{escape(title)}</title>", style, clip, *self.parts, "</svg>", ""])


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


def race(run: dict) -> str:
    """A run of one prompt, as --json wrote it -> the SVG. Raises UserError if it has one decoder only."""
    if not run["autoregressive"]:
        raise UserError("a race has two decoders: run it without --only")
    speedup = f"{run['figures']['speedup']:.2f} times as fast"
    titles = {"autoregressive": "Autoregressive", "speculative": f"Speculative: {speedup}"}
    lanes = [lane_of(title, run[name]["samples"][0]["iterations"]) for name, title in titles.items()]
    picture = Picture(max(lane.seconds for lane in lanes))
    for lane in lanes:
        picture.lane(lane, run["prompt"]["text"])
    picture.key()
    return picture.svg(f"Both decoders on one time axis. {lanes[0].count()}; {lanes[1].count()}.")


def main(argv: list[str]) -> None:
    parser = parser_of("race", __doc__)
    parser.add_argument("run", type=Path, help="a run's JSON")
    parser.add_argument("out", type=Path, help="the picture that is written")
    o = parser.parse_args(argv)
    read_run(str(o.run))  # a file that is no run is one line
    write_text(str(o.out), race(json.loads(o.run.read_text(encoding="utf-8"))))
