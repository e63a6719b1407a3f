"""The command line's flags: those that each module declares, put together; what was typed, checked; and --help.

A flag is declared in a module of its subject, as a plumbing.arguments.Flag: its name, what its value must be, what it
does, its default, what it excludes. Here they only get their order and the headings of --help.
"""

import inspect
import re
import sys
from collections import namedtuple
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from plumbing import arguments, exits
from plumbing.arguments import Flag, nearest
from plumbing.errors import UserError
from speculative import accept, decoding, drafters, filters, trees
from speculative.cli import devices, display, interactive, load, packing, prompts, serve
from speculative.version import __version__

# The blog's, whose defaults stand in main's signature.
BLOG = (
    Flag("prompt", arguments.text, "the text to continue"),
    Flag("n_tokens_to_generate", arguments.integer(1), "how many tokens to add to it (N)", live=True),
    Flag(
        "draft_model_size",
        arguments.model,
        "draft model: 124M ... 1558M, a folder of models_dir, ./path, or OWNER/NAME of the hub",
    ),
    Flag("target_model_size", arguments.model, "target model, likewise"),
    Flag("models_dir", arguments.path, "where the models are; official ones and the hub's are downloaded to it"),
    Flag(
        "K",
        decoding.K,
        "lookahead: tokens drafted at a time (levels: 8/4); auto: by measured acceptance and cost",
        live=True,
        joined_by="/",
    ),
    Flag("temperature", arguments.temperature, "0 is greedy; 1 is the target's own distribution", live=True),
    Flag("seed", arguments.integer(0), "random seed, the same for both decoders", live=True),
)

# What --demo stands for: the bundled pair, and a prompt of the kind that it was trained on, to the end of a sentence.
DEMO = {
    "prompt": '"From the first, two facts were very obvious to me,',
    "n_tokens_to_generate": 54,
    "draft_model_size": "tiny-draft",
    "target_model_size": "tiny-target",
    "models_dir": str(Path(__file__).parents[2] / "models"),
}


def rooms() -> list[tuple[str, tuple[Flag, ...]]]:
    """(heading of --help, its flags), in the order of --help."""
    return [
        ("The blog's run, which is the default", BLOG),
        ("The text", prompts.FLAGS),
        ("The distribution", (*filters.FLAGS, *accept.FLAGS)),
        ("The drafter", (drafters.FLAG, drafters.TEMPERATURE, *trees.FLAGS, *drafters.flags_of_kinds())),
        ("The engine", (*load.FLAGS, *devices.FLAGS)),
        ("What is shown", display.FLAGS),
        ("Many texts, one loading", (*interactive.FLAGS, *serve.FLAGS, *packing.FLAGS)),
    ]


def all_flags() -> dict[str, Flag]:
    return {flag.name: flag for _, flags in rooms() for flag in flags}


def live_flags() -> dict[str, Flag]:
    """Those that can change while the models stay loaded."""
    return {name: flag for name, flag in all_flags().items() if flag.live}


def parse_options(main: Callable, /, **given) -> Any:
    """{flag: value, or what was typed of it} -> a named tuple of all flags' values.

    main is the function whose signature has the defaults of the blog's flags. A value that is the default itself, or
    None, counts as not given. Raises UserError for the first value that is not right, or does not go with the others.
    """
    flags = all_flags()
    for name in given:
        if name not in flags:
            near = nearest(name, flags)
            hint = f"did you mean --{near}?" if near else "see --help"
            raise UserError(f"unknown flag --{name:.80}: {hint}")
    defaults = {name: flag.default for name, flag in flags.items()} | blogs_defaults(main)
    values = dict(defaults)
    used = set()  # the flags with another value than flag.default; the blog's have none there: those that were typed
    for name, value in given.items():
        if value is None or (name in defaults and value is defaults[name]):
            continue
        values[name] = parse_one(flags[name], value)
        if values[name] != flags[name].default:
            used.add(name)
    check_exclusive(flags, used)
    if values["demo"]:
        values |= {name: value for name, value in DEMO.items() if name not in used}
    o = namedtuple("Options", values)(**values)
    for name in flags:
        why = flags[name].in_vain(o) if name in used else ""
        if why:
            raise UserError(f"--{name} is of no use here: {why}")
    if o.prompt_file or o.unconditional:
        o = o._replace(prompt=None)  # it is the default, and not what is continued
    return o


def choose_options(main: Callable, /, **given) -> Any:
    """parse_options; then chooses the engine, and checks that it can do what was asked for. Raises UserError."""
    o = parse_options(main, **given)
    return check_engine(o._replace(engine=devices.choose_engine(o.engine)))


def blogs_defaults(main: Callable) -> dict[str, Any]:
    parameters = inspect.signature(main).parameters
    return {flag.name: parameters[flag.name].default for flag in BLOG if flag.name in parameters}


def parse_one(flag: Flag, value: Any) -> Any:
    try:
        parts = value if isinstance(value, tuple | list) else [value]
        return flag.parse(flag.joined_by.join(map(str, parts)))
    except ValueError as must_be:
        raise UserError(f"--{flag.name} must be {must_be}, not {str(value)!r:.80}") from None


def check_exclusive(flags: dict[str, Flag], given: Collection[str]) -> None:
    """Raises UserError where two of the given flags cannot be combined."""
    for name in flags:
        for other in flags[name].excludes:
            if name in given and other in given:
                first, second = sorted((name, other), key=list(flags).index)
                raise UserError(f"--{first} and --{second} cannot be combined: give one of them")


def check_engine(o: Any) -> Any:
    """Raises UserError where an option is not for the engine that was chosen -> the same options."""
    for name, flag in all_flags().items():
        if flag.only_engine and flag.only_engine != o.engine and getattr(o, name) != flag.default:
            raise UserError(f"--{name} is for --engine {flag.only_engine}: {flag.why}")
    for kind in drafters.kinds_of(o.drafter):
        if kind.only_engine and kind.only_engine != o.engine:
            raise UserError(f"--drafter {kind.name} is for --engine {kind.only_engine}: {kind.why}")
    devices.check(o)
    return o


# ---- The words of a command line -------------------------------------------------------------------------------------


def run(main: Callable, doc: str, words: list[str] | None = None) -> None:
    """Calls main with the flags that were typed, or with these words. Ends as exits.guarded does."""
    import fire

    words = sys.argv[1:] if words is None else words

    def typed():
        if {"-h", "--help"} & {*words}:
            print(f"{doc}\n{usage(main)}")
        elif "--version" in words:
            print(f"speculative-sampling {__version__}")
        else:
            fire.Fire(fire.decorators.SetParseFn(str)(main), command=with_values(words))

    exits.guarded(typed)


def with_values(words: list[str]) -> list[str]:
    """A command line's words, each flag as --flag=value, so that fire has nothing left to guess. Raises UserError.

    The word after a flag is its value, also where it looks like a number, a list or -x; but not where it begins with
    two dashes. A switch, which needs none, gets True.
    """
    words = list(words)
    flags = all_flags()
    given = {}
    while words:
        word = words.pop(0)
        match = re.fullmatch(r"--([A-Za-z][A-Za-z0-9_-]*)(?:=(.*))?", word, re.DOTALL)
        if not match:
            raise UserError(f"unexpected {word!r:.80}: every value follows its --flag, and a text goes in quotes")
        name = match[1].replace("-", "_")
        value = match[2]
        if name in given:
            raise UserError(f"--{name:.80} is given twice")
        if value is None and words and not words[0].startswith("--"):
            value = words.pop(0)
        if value is None and name in flags and flags[name].bare:
            value = flags[name].bare
        elif value is None and name in flags and flags[name].parse is not arguments.switch:
            raise UserError(f"--{name} needs a value; one that begins with -- is written --{name}=VALUE")
        given[name] = "True" if value is None else value
    check_typed(given)
    return [f"--{name}={value}" for name, value in given.items()]


def check_typed(given: dict[str, str]) -> None:
    """Raises UserError where a draft model is named that nobody needs. (Not from Python, where a pair keeps the name of
    its draft model while its drafter changes.)"""
    drafter = given.get("drafter", drafters.FLAG.default)
    if "draft_model_size" in given and not drafters.needs(drafter, "draft"):
        raise UserError(f"--draft_model_size is of no use here: --drafter {drafter} needs no draft model")


def usage(main: Callable) -> str:
    """--help: the flags in groups, with their defaults."""
    of_main = blogs_defaults(main)
    lines = ["usage: python main.py [--FLAG VALUE ...]"]
    for heading, flags in rooms():
        lines += ["", heading]
        for flag in flags:
            default = of_main.get(flag.name, flag.default)
            shown = "" if default is None or default is False else f" [{default}]"
            help = flag.help() if callable(flag.help) else flag.help
            lines.append(f"  --{flag.name:21} {help}{shown}")
            if flag is drafters.FLAG:
                lines += [f"{'':26}{line}" for line in drafters.help_of_kinds()]
    return "\n".join(lines)
