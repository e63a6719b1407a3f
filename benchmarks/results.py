"""The table of README: both samplers with the settings that it names, after prompts of prose, in turns.

    python -m benchmarks full_size full
    python -m benchmarks results --models_dir full --draft_model_size 124M --target_model_size 1558M

After each prompt the autoregressive sampler runs once and every setting once, in another order each time, so that a
machine that slows down for a while does so for all. Seconds are means over the prompts, of decoding alone; "times as
fast" is the mean over the prompts, and the least and the most.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from statistics import mean
from typing import NamedTuple

import numpy as np

from benchmarks.quiet import add_busy, undisturbed
from benchmarks.runs import MODELS, PROMPTS
from benchmarks.tables import parser_of, whole
from speculative.cli.command import read_options
from speculative.report.doubt import NOISE, is_quiet
from speculative.report.turns import timed_turns
from speculative.run.session import Session
from speculative.support.texts import read_prompts

AUTOREGRESSIVE = "autoregressive"


class Setting(NamedTuple):
    """A row of the table."""

    flags: str
    session: Session
    decoder: str = "speculative"


class Decode(NamedTuple):
    """The result of one decode."""

    seconds: float
    tokens: list[int]
    n_calls: int  # calls of the target
    waited: float  # seconds, of all threads together, without a free core


class Rounds(NamedTuple):
    """The decodes of a setting, one for each prompt, beside the autoregressive ones of the same prompts."""

    flags: str
    decodes: list[Decode]
    baseline: list[Decode]

    def cells(self) -> list[str]:
        """The cells of the table: flags, seconds, times as fast, tokens of a call."""
        seconds = f"{mean(decode.seconds for decode in self.decodes):.1f} s"
        if self.flags == AUTOREGRESSIVE:
            return [self.flags, seconds, "", ""]
        times = [before.seconds / decode.seconds for before, decode in self.pairs()]
        tokens = mean(len(decode.tokens) / decode.n_calls for decode in self.decodes)
        spread = f"({min(times):.2f} to {max(times):.2f})"
        return [self.flags, seconds, f"{mean(times):.2f} {spread}", f"{tokens:.1f}"]

    def pairs(self) -> list[tuple[Decode, Decode]]:
        """The autoregressive decode of each prompt, and this one."""
        return [*zip(self.baseline, self.decodes, strict=True)]

    def unlike(self) -> int:
        """Return how many texts differ from the autoregressive ones."""
        return sum(decode.tokens != before.tokens for before, decode in self.pairs())


def settings_of(o: argparse.Namespace, prompts: list[str]) -> Iterator[Setting]:
    """Load the models as main.py does, and yield the rows. The two formats of the draft model are two pairs."""
    names = ("models_dir", "draft_model_size", "target_model_size", "threads", "n_tokens_to_generate")
    flags = {name: getattr(o, name) for name in names}
    session = Session(read_options(flags), prompts=prompts)
    yield Setting(AUTOREGRESSIVE, session, AUTOREGRESSIVE)
    yield Setting("default", session)
    blogs = Session(read_options(flags | {"draft_dtype": "float32"}), prompts=prompts)
    yield Setting("`--draft_dtype float32`, the blog's", blogs)
    fast = read_options(flags | {"fast": True})
    yield Setting("`--fast`", Session(fast, session.models, prompts[:1]))  # as in a command with one prompt


def decode(setting: Setting, prompt: str, N: int) -> Decode:
    """Decode N tokens once."""
    turns = timed_turns(setting.session, [prompt], N, [setting.decoder], with_chances=False, repeats=1)
    [record] = turns
    return Decode(record.seconds, record.tokens[0], len(record.steps), record.waited)


def trouble_of(decodes: dict[str, Decode]) -> str | None:
    """Return why the times of these decodes of one prompt, one of each setting, cannot be shown."""
    before = decodes[AUTOREGRESSIVE]
    for flags, decode in decodes.items():
        if not is_quiet(decode.waited, decode.seconds):
            return f"the threads of {flags} waited {decode.waited:.3g} s for cores that other programs used"
        times, most = before.seconds / decode.seconds, len(decode.tokens) / decode.n_calls
        if times > (1 + NOISE) * most:
            return f"{flags} is {times:.2f} times as fast, which {most:.2f} tokens a call do not allow"
    return None


def measure(settings: list[Setting], prompts: list[str], N: int, busy: bool = False) -> list[Rounds]:
    """Decode each prompt with each setting, in turns. A first decode of each is not counted. busy: see quiet."""

    def decode_in_turns(prompt: str) -> dict[str, Decode]:
        order = [settings[index] for index in rng.permutation(len(settings))]
        return {setting.flags: decode(setting, prompt, N) for setting in order}

    for setting in settings:
        decode(setting, prompts[0], min(N, 8))
    decodes: dict[str, list[Decode]] = {setting.flags: [] for setting in settings}
    rng = np.random.default_rng(0)
    for number, prompt in enumerate(prompts, start=1):
        print(f"prompt {number} of {len(prompts)} ...", file=sys.stderr, flush=True)
        for flags, one in undisturbed(partial(decode_in_turns, prompt), trouble_of, busy).items():
            decodes[flags].append(one)
    baseline = decodes[AUTOREGRESSIVE]
    return [Rounds(flags, decodes[flags], baseline) for flags in decodes]


def main(argv: list[str]) -> None:
    parser = parser_of("results", __doc__)
    parser.add_argument("--models_dir", default=str(MODELS), help="folder of the models")
    parser.add_argument("--draft_model_size", default="tiny-draft", help="draft model")
    parser.add_argument("--target_model_size", default="padded-target", help="target model")
    parser.add_argument("--prompts", default=str(PROMPTS["prose"]), help="a file of prompts")
    parser.add_argument("--n_prompts", type=whole, default=20, help="prompts of it, at most")
    parser.add_argument("--n_tokens_to_generate", type=whole, default=40, help="tokens after each")
    parser.add_argument("--threads", type=whole, default=None, help="most threads")
    add_busy(parser.add_argument)
    o = parser.parse_args(argv)
    prompts = read_prompts(o.prompts, o.n_prompts)
    rows = measure([*settings_of(o, prompts)], prompts, o.n_tokens_to_generate, o.busy)
    print_row("flags", f"{o.n_tokens_to_generate} tokens", "times as fast", "tokens a call")
    print_row("---", "---", "---", "---")
    for row in rows:
        print_row(*row.cells())
    print(f"\nTexts that differ from the autoregressive ones: {sum(row.unlike() for row in rows)}")


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |")
