"""The command line's flags: one table that says for each its default, what its value must be, and what it does."""

import difflib
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from utils import UserError


class Option(NamedTuple):
    default: Any  # already parsed
    parse: Callable[[str], Any]  # what was typed -> value; raises ValueError saying what a value must be
    help: str


def text(value: str) -> str:
    if not value:
        raise ValueError("a text that is not empty")
    return value


def name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError("a plain folder name such as 124M, without slashes")
    return value


def switch(value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError("given without a value")
    return value == "True"


def integer(at_least: int) -> Callable[[str], int]:
    def parse(value):
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value) or int(value) < at_least:
            raise ValueError(f"a whole number of at least {at_least}")
        return int(value)

    return parse


def number(at_least: float) -> Callable[[str], float]:
    def parse(value):
        try:
            parsed = float(value)
        except ValueError:
            parsed = math.nan
        if not at_least <= parsed < math.inf:  # false for NaN too
            raise ValueError(f"a number of at least {at_least:g}")
        return parsed

    return parse


# The blog's eight, in its order; the defaults are its run.
OPTIONS = {
    "prompt": Option("Alan Turing theorized that computers would one day become", text, "the text to continue"),
    "n_tokens_to_generate": Option(40, integer(1), "how many tokens to add to it (N)"),
    "draft_model_size": Option("124M", name, "the draft model: 124M, 355M, 774M, 1558M or another folder"),
    "target_model_size": Option("1558M", name, "the target model, likewise"),
    "models_dir": Option("models", text, "the folder that holds a folder for each model"),
    "K": Option(4, integer(1), "the lookahead: how many tokens the draft proposes at a time"),
    "temperature": Option(0.0, number(0), "0 is greedy; 1 is the model's own distribution"),
    "seed": Option(123, integer(0), "of the random numbers; both decoders start from it"),
    "demo": Option(False, switch, "run the bundled tiny pair, offline; only changes the defaults of the other flags"),
}


def parse_flags(flags: dict[str, Any], demo_defaults: dict[str, Any]) -> dict[str, Any]:
    """What was typed, by flag -> the value of every option. Raises UserError for the first flag that is not right."""
    for flag in flags:
        if flag not in OPTIONS:
            near = difflib.get_close_matches(flag, OPTIONS, n=1)
            raise UserError(f"unknown flag --{flag}" + (f": did you mean --{near[0]}?" if near else ": see --help"))
    values = {flag: option.default for flag, option in OPTIONS.items()}
    given = {flag: parse_one(flag, str(value)) for flag, value in flags.items()}
    if given.get("demo"):
        values |= demo_defaults
    return values | given


def parse_one(flag: str, value: str) -> Any:
    try:
        return OPTIONS[flag].parse(value)
    except ValueError as must_be:
        raise UserError(f"--{flag} must be {must_be}, not {value!r:.80}") from None


def usage() -> str:
    lines = [
        f"  --{flag:22}{o.help}" + ("" if o.default is False else f" [{o.default}]") for flag, o in OPTIONS.items()
    ]
    return "\n".join(["usage: python main.py [--FLAG VALUE ...]", "", *lines])
