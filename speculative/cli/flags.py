"""The command line's flags: one table that says for each its default, what its value must be, and what it does."""

import argparse
import difflib
import math
import os
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from speculative.drafters import drafter_names
from speculative.errors import UserError
from speculative.fetch import FetchError, check_url


class Option(NamedTuple):
    default: Any  # already parsed
    parse: Callable[[str], Any]  # what was typed -> value; raises ValueError, saying what a value must be
    help: str


# ---- What a value may be ---------------------------------------------------------------------------------------------


def text(value: str) -> str:
    if not value:
        raise ValueError("a text that is not empty")
    try:  # bytes that Python could not decode, for it took them for ASCII maybe, arrive as halves of surrogate pairs
        return value.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise ValueError("text in UTF-8") from None


def path(value: str) -> str:
    try:
        if os.fsencode(value) and "\0" not in value:
            return value
    except UnicodeError:  # half of a surrogate pair that stands for no byte either
        pass
    raise ValueError("the name of a file or folder")


def folder_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", value):
        raise ValueError("a plain folder name such as 124M, without slashes")
    return value


def switch(value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError("given without a value")
    return value == "True"


def integer(at_least: int, at_most: int | None = None) -> Callable[[str], int]:
    def parse(value):
        limits = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value) or not at_least <= int(value) <= (at_most or math.inf):
            raise ValueError(f"a whole number {limits}")
        return int(value)

    return parse


def number(must_be: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    def parse(value):
        is_number = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value)
        if not is_number or not math.isfinite(float(value)) or not allowed(float(value)):
            raise ValueError(must_be)
        return float(value)

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    def parse(value):
        if value not in names:
            near = difflib.get_close_matches(value, names, n=1)
            raise ValueError(f"one of {', '.join(names)}" + (f" (did you mean {near[0]}?)" if near else ""))
        return value

    return parse


def lookahead(value: str) -> int | str:
    try:
        return value if value == "auto" else integer(1)(value)
    except ValueError as must_be:
        raise ValueError(f"{must_be}, or auto") from None


def source(value: str) -> str:
    try:
        return value if value in ("openai", "huggingface") else check_url(value)
    except FetchError:
        raise ValueError("openai, huggingface or an https address") from None


def drafter(value: str) -> str:
    drafter_names(value)  # raises UserError, which says what there is
    return value


def argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """One of these as the type of an argparse argument, whose message is lost unless the exception is argparse's."""

    def checked(value):
        try:
            return parse(value)
        except ValueError as must_be:
            raise argparse.ArgumentTypeError(f"must be {must_be}, not {value!r:.80}") from None

    return checked


temperature = number("a number of at least 0", lambda value: value >= 0)
share = number("a number above 0 and at most 1", lambda value: 0 < value <= 1)
lenience = number("a number from 0.000001 to 1", lambda value: 1e-6 <= value <= 1)
dtype = one_of("float32", "bfloat16", "int8")

# ---- The table -------------------------------------------------------------------------------------------------------

OPTIONS = {
    # The blog's eight, in its order; the defaults are its run.
    "prompt": Option("Alan Turing theorized that computers would one day become", text, "the text to continue"),
    "n_tokens_to_generate": Option(40, integer(1), "how many tokens to add to it (N)"),
    "draft_model_size": Option("124M", folder_name, "the draft model: 124M, 355M, 774M, 1558M or another folder"),
    "target_model_size": Option("1558M", folder_name, "the target model, likewise"),
    "models_dir": Option("models", path, "the folder that holds a folder for each model"),
    "K": Option(4, lookahead, "the lookahead: how many tokens are drafted at a time; auto chooses as it goes"),
    "temperature": Option(0.0, temperature, "0 is greedy; 1 is the model's own distribution"),
    "seed": Option(123, integer(0), "of the random numbers; both decoders start from it"),
    # Where the text comes from and where it ends
    "demo": Option(False, switch, "the bundled tiny pair, offline; only changes the defaults of the other flags"),
    "prompt_file": Option(None, path, "read the prompt from a file, UTF-8; --prompt_file=- is the standard input"),
    "unconditional": Option(False, switch, "no prompt: start from <|endoftext|>"),
    "stop": Option(None, text, "stop before this text; <|endoftext|> is understood"),
    "n_samples": Option(1, integer(1), "decode so many times from one prefill, each with a seed of its own"),
    # The distribution that is sampled
    "top_k": Option(None, integer(1), "keep the k likeliest tokens"),
    "top_p": Option(None, share, "keep the fewest tokens with this much probability (nucleus)"),
    "draft_temperature": Option(None, temperature, "for the draft alone; the output stays the target's"),
    "lenience": Option(1.0, lenience, "accept drafts more easily; below 1 the output is not the target's any more"),
    # Who drafts, and how it is computed
    "drafter": Option(
        "model", drafter, "model, prompt_lookup, ngram, staged, staged_lookup; or a+b: b where a has nothing"
    ),
    "ngram_text": Option(None, path, "a text file that the n-gram drafter counts in, besides the prompt"),
    "dtype": Option("float32", dtype, "how the target's weights are stored: float32, bfloat16 or int8"),
    "draft_dtype": Option("float32", dtype, "how the draft's are"),
    "engine": Option("numpy", one_of("numpy", "jax", "auto"), "numpy, jax, or auto: jax where it sees an accelerator"),
    "mesh": Option(1, integer(1), "split the models over so many devices of JAX"),
    "batch": Option(
        1, integer(1, 4096), "with jax, decode so many prompts together: a prompt file's lines, or one as often"
    ),
    "threads": Option(None, integer(1), "how many threads compute; as many as there are cores, if not given"),
    "source": Option("openai", source, "where missing models come from: openai, huggingface or the URL of a mirror"),
    # What is shown
    "quiet": Option(False, switch, "the blog's lines alone"),
    "verbose": Option(False, switch, "a line for every iteration"),
    "stream": Option(False, switch, "the text as it is decoded"),
    "color": Option(False, switch, "every token in the colour of its origin: accepted, resampled, bonus, plain"),
    "json": Option(None, path, "write everything to this file"),
    "verify": Option(False, switch, "instead of decoding, check that nothing is lost with these models and flags"),
}

# Of each group at most one may be given.
EXCLUSIVE = [("prompt", "prompt_file", "unconditional"), ("quiet", "verbose"), ("quiet", "color"), ("verify", "json")]
EXCLUSIVE += [("batch", flag) for flag in ("n_samples", "stop", "stream", "color", "verbose", "verify")]


def parse_flags(flags: dict[str, Any], demo_defaults: dict[str, Any]) -> SimpleNamespace:
    """What was typed, by flag -> the value of every option. Raises UserError for the first flag that is not right."""
    for flag in flags:
        if flag not in OPTIONS:
            same = [known for known in OPTIONS if known.lower() == flag.lower()]
            near = same or difflib.get_close_matches(flag, OPTIONS, n=1)
            raise UserError(f"unknown flag --{flag:.80}" + (f": did you mean --{near[0]}?" if near else ": see --help"))
    given = {flag: parse_one(flag, str(value)) for flag, value in flags.items()}
    for group in EXCLUSIVE:
        if len(both := [f"--{flag}" for flag in group if given.get(flag)]) > 1:
            raise UserError(f"{both[0]} and {both[1]} exclude each other: give one of them")
    defaults = {flag: option.default for flag, option in OPTIONS.items()}
    return SimpleNamespace(**defaults | (demo_defaults if given.get("demo") else {}) | given)


def parse_one(flag: str, value: str) -> Any:
    try:
        return OPTIONS[flag].parse(value)
    except ValueError as must_be:
        raise UserError(f"--{flag} must be {must_be}, not {value!r:.80}") from None


def with_values(words: list[str]) -> list[str]:
    """A command line's words, each flag as --flag=value, so that fire has nothing left to guess. Raises UserError.

    The word after a flag is its value, also where it looks like a number, a list or -x; but not where it begins with
    two dashes. A switch, which needs none, gets True.
    """
    words, values = list(words), {}
    while words:
        word = words.pop(0)
        match = re.fullmatch(r"--([A-Za-z][A-Za-z0-9_-]*)(?:=(.*))?", word, re.DOTALL)
        if not match:
            raise UserError(f"unexpected {word!r:.80}: every value follows its --flag, and a text goes in quotes")
        flag, value = match[1].replace("-", "_"), match[2]
        if flag in values:
            raise UserError(f"--{flag:.80} is given twice")
        if value is None and words and not words[0].startswith("--"):
            value = words.pop(0)
        if value is None and flag in OPTIONS and OPTIONS[flag].parse is not switch:
            raise UserError(f"--{flag} needs a value; one that begins with -- is written --{flag}=VALUE")
        values[flag] = "True" if value is None else value
    return [f"--{flag}={value}" for flag, value in values.items()]


def usage() -> str:
    lines = ["usage: python main.py [--FLAG VALUE ...]", ""]
    for flag, option in OPTIONS.items():
        default = "" if option.default in (None, False) else f" [{option.default}]"
        lines.append(f"  --{flag:22}{option.help}{default}")
    return "\n".join(lines)
