"""The command line's flags: one table that says of each what its value must be, what it does, and its default."""

import difflib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from plumbing import exits
from plumbing.errors import UserError
from speculative.cli import values
from speculative.drafters import DRAFTERS
from speculative.typical import ALL


def flag(parse: Callable[[str], Any], help: str, default: Any = MISSING) -> Any:
    """A field of Options. parse: what was typed -> value; raises ValueError, saying what a value must be.

    A flag without a default has that of main's signature.
    """
    return field(metadata={"parse": parse, "help": help}, default=default)


@dataclass(frozen=True)
class Options:
    """The value of every flag; the first eight are the blog's."""

    prompt: str | None = flag(values.text, "the text to continue")
    n_tokens_to_generate: int = flag(values.integer(1), "how many tokens to add to it (N)")
    draft_model_size: str = flag(values.folder_name, "draft model: 124M, 355M, 774M, 1558M or a folder of models_dir")
    target_model_size: str = flag(values.folder_name, "target model, likewise")
    models_dir: str = flag(values.path, "where the models are; official ones that are missing are downloaded")
    K: int | str = flag(
        values.lookahead, "lookahead: how many tokens are drafted at a time; auto: by measured acceptance and cost"
    )
    temperature: float = flag(values.temperature, "0 is greedy; 1 is the target's own distribution")
    seed: int = flag(values.integer(0), "random seed, the same for both decoders")

    demo: bool = flag(values.switch, "the bundled pair of tiny models, offline, with a prompt that suits them", False)
    prompt_file: str | None = flag(values.path, "read the prompt from a file; --prompt_file=- is standard input", None)
    unconditional: bool = flag(values.switch, "no prompt: start from <|endoftext|>", False)
    stop: str | None = flag(values.text, "end before this text, which may be <|endoftext|>", None)
    n_samples: int = flag(values.integer(1), "decode this many times, each time with a seed of its own", 1)

    top_k: int | None = flag(values.integer(1), "keep the k likeliest tokens", None)
    top_p: float | None = flag(
        values.share, "nucleus: keep the fewest tokens whose probabilities sum to at least this", None
    )
    draft_temperature: float | None = flag(
        values.temperature, "temperature of the draft model alone; the output stays lossless", None
    )
    lenience: float = flag(
        values.lenience, "below 1, more drafts are accepted, and the output is not the target's", 1.0
    )
    typical: float | None = flag(
        values.typical, "Medusa's typical acceptance with this ε; the output is not the target's", None
    )

    drafter: str = flag(values.drafter, f"{', '.join(DRAFTERS)}; a+b: b where a has none", "model")
    tree: tuple[int, ...] | str | None = flag(
        values.tree, "draft a tree: children per node at each depth, as 2,2,1,1, or auto; in place of --K", None
    )
    ngram_text: str | None = flag(values.path, "a text file that the n-gram drafter is trained on", None)

    dtype: str = flag(values.dtype, "weight format of the target model: float32, bfloat16 or int8", "float32")
    draft_dtype: str = flag(
        values.draft_dtype,
        "of the draft model; the output stays lossless; auto: int8, with jax the target's",
        "auto",
    )
    engine: str = flag(values.engine, "numpy, jax, or auto: jax where it sees an accelerator", "numpy")
    threads: int | None = flag(values.integer(1), "threads of the NumPy engine [one for each core]", None)
    mesh: int = flag(values.integer(1), "with jax: split the models over this many devices", 1)
    data_parallel: int = flag(values.integer(1), "with jax: copies of the models, each with a share of --batch", 1)
    batch: int = flag(values.integer(1, 4096), "with jax: decode this many prompts of --prompt_file at a time", 1)
    source: str = flag(
        values.source, "where to download missing models: openai, huggingface or the URL of a mirror", "openai"
    )

    quiet: bool = flag(values.switch, "only the blog's lines", False)
    verbose: bool = flag(values.switch, "every iteration, and every figure with its formula", False)
    stream: bool = flag(values.switch, "the text as it is decoded", False)
    color: bool = flag(values.switch, "tokens by origin: accepted (and whose), resampled, bonus, autoregressive", False)
    json: str | None = flag(values.path, "write the run to this file, as JSON", None)
    details: bool = flag(values.switch, "to --json also p, q and u of every draft, as --html has them", False)
    html: str | None = flag(values.path, "write a page to this file that replays the run, for any browser", None)
    verify: bool = flag(values.switch, "instead of decoding, check that nothing is lost with these models", False)


HEADINGS = {  # --help has one before each of these
    "prompt": "The blog's run, which is the default",
    "demo": "The text",
    "top_k": "The distribution",
    "drafter": "The drafter",
    "dtype": "The engine",
    "quiet": "What is shown",
}

OPTIONS = {option.name: option for option in fields(Options)}

# Of each group at most one may be given.
EXCLUSIVE = [("prompt", "prompt_file", "unconditional"), ("quiet", "verbose"), ("quiet", "color"), ("verify", "json")]
EXCLUSIVE += [("tree", "K"), ("verify", "html"), ("n_samples", "html"), ("typical", "lenience")]
EXCLUSIVE += [("batch", x) for x in ("n_samples", "stream", "color", "verbose", "verify", "details", "html")]

# What --demo stands for: the bundled pair, and a prompt of the kind that it was trained on, to the end of a sentence.
DEMO = {
    "prompt": '"From the first, two facts were very obvious to me,',
    "n_tokens_to_generate": "54",
    "draft_model_size": "tiny-draft",
    "target_model_size": "tiny-target",
    "models_dir": str(Path(__file__).parents[2] / "models"),
}


def parse_options(**given) -> Options:
    """Options from values, or from the strings that were typed. Raises UserError for the first that is not right."""
    for name in given:
        if name not in OPTIONS:
            same = [known for known in OPTIONS if known.lower() == name.lower()]
            near = same or difflib.get_close_matches(name, OPTIONS, n=1)
            raise UserError(f"unknown flag --{name:.80}" + (f": did you mean --{near[0]}?" if near else ": see --help"))
    o = Options(**{name: parse_one(name, value) for name, value in given.items() if value is not None})
    check_exclusive({name for name, option in OPTIONS.items() if getattr(o, name) != option.default} - {"prompt", "K"})
    if o.details and not (o.json or o.html):
        raise UserError("--details is about what --json writes: add --json FILE")
    if o.json and o.html and os.path.realpath(o.json) == os.path.realpath(o.html):
        raise UserError("--json and --html would write to the same file: give each its own")
    read = {os.path.realpath(path) for path in (o.prompt_file, o.ngram_text) if path}
    if overwritten := [path for path in (o.json, o.html) if path and os.path.realpath(path) in read]:
        raise UserError(f"{overwritten[0]!r:.80} is read in this run, and would be overwritten: write to another file")
    if o.prompt_file or o.unconditional:
        o = replace(o, prompt=None)  # main's default, which is not what is continued
    return replace(o, lenience=ALL) if o.typical else o


def parse_one(name: str, value: Any) -> Any:
    try:
        return OPTIONS[name].metadata["parse"](str(value))
    except ValueError as must_be:
        raise UserError(f"--{name} must be {must_be}, not {str(value)!r:.80}") from None


def check_exclusive(given: Collection[str]) -> None:
    for group in EXCLUSIVE:
        if len(both := [f"--{name}" for name in group if name in given]) > 1:
            raise UserError(f"{both[0]} and {both[1]} cannot be combined: give one of them")


def with_values(words: list[str]) -> list[str]:
    """A command line's words, each flag as --flag=value, so that fire has nothing left to guess. Raises UserError.

    The word after a flag is its value, also where it looks like a number, a list or -x; but not where it begins with
    two dashes. A switch, which needs none, gets True.
    """
    words, given = list(words), {}
    while words:
        word = words.pop(0)
        match = re.fullmatch(r"--([A-Za-z][A-Za-z0-9_-]*)(?:=(.*))?", word, re.DOTALL)
        if not match:
            raise UserError(f"unexpected {word!r:.80}: every value follows its --flag, and a text goes in quotes")
        name, value = match[1].replace("-", "_"), match[2]
        if name in given:
            raise UserError(f"--{name:.80} is given twice")
        if value is None and words and not words[0].startswith("--"):
            value = words.pop(0)
        if value is None and name in OPTIONS and OPTIONS[name].metadata["parse"] is not values.switch:
            raise UserError(f"--{name} needs a value; one that begins with -- is written --{name}=VALUE")
        given[name] = "True" if value is None else value
    check_exclusive(given)
    if given.get("demo") == "True":
        others = {name for name in EXCLUSIVE[0] if name in given}
        given = {name: value for name, value in DEMO.items() if name != "prompt" or not others} | given
    return [f"--{name}={value}" for name, value in given.items()]


def usage(main: Callable) -> str:
    """--help: the flags in groups, with the defaults of Options and, for the blog's, of main's signature."""
    of_main, lines = inspect.signature(main).parameters, ["usage: python main.py [--FLAG VALUE ...]"]
    for name, option in OPTIONS.items():
        if name in HEADINGS:
            lines += ["", HEADINGS[name]]
        default = of_main[name].default if option.default is MISSING else option.default
        lines.append(
            f"  --{name:21} {option.metadata['help']}"
            + ("" if default is None or default is False else f" [{default}]")
        )
    return "\n".join(lines)


def run(main: Callable, doc: str) -> None:
    """Calls main with the flags that were typed. Ends as exits.guarded does."""
    import fire

    def typed():
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(f"{doc}\n{usage(main)}")
        else:
            fire.Fire(fire.decorators.SetParseFn(str)(main), command=with_values(sys.argv[1:]))

    exits.guarded(typed)
