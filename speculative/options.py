"""The flags about models and decoding, in order, and what they come to: an Options.

Each flag is declared in the module of its subject. The blog's stand here. speculative/cli adds those of the command
line.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from speculative import accept, decoding, drafters, filters, loading, stop, trees
from speculative.checkpoints.official import MODEL_SIZES
from speculative.engines import devices
from speculative.support import arguments, extras
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.options import Options, check_exclusive, check_useful, given_values

N_TOKENS = Flag(
    "n_tokens_to_generate",
    arguments.integer(1),
    "how many tokens to add to the prompt (N)",
    40,
    live=True,
    short="n",
)

# With the blog's defaults.
BLOG = (
    Flag(
        "prompt",
        arguments.prompt,
        "the text to continue",
        "Alan Turing theorized that computers would one day become",
        short="p",
    ),
    N_TOKENS,
    Flag(
        "draft_model_size",
        arguments.model,
        "draft model: 124M ... 1558M, a folder of models_dir, ./path, or OWNER/NAME of the hub",
        "124M",
    ),
    Flag("target_model_size", arguments.model, "target model, likewise", "1558M"),
    Flag(
        "models_dir",
        arguments.path,
        "where the models are; official ones and the hub's are downloaded to it",
        "models",
    ),
    Flag(
        "K",
        decoding.parse_K,
        "lookahead: tokens drafted at a time (levels: 8/4); auto: by measured acceptance and cost",
        4,
        live=True,
        short="K",
        joined_by="/",
    ),
    Flag(
        "temperature",
        arguments.temperature,
        "0 is greedy; 1 is the target's own distribution",
        0.0,
        live=True,
        short="t",
    ),
    Flag("seed", arguments.integer(0), "random seed, the same for both decoders", 123, live=True, short="s"),
)

DEMO_FLAG = Flag(
    "demo", arguments.switch, "the bundled pair of tiny models, offline, with a prompt that suits them", False
)

HERE = Path(__file__).parent
# The bundled pair: beside the package in the repository, in it where a wheel was installed.
BUNDLED = str(HERE / "models" if (HERE / "models").is_dir() else HERE.parent / "models")

# --demo stands for the bundled pair, and a prompt of the kind that it was trained on, to the end of a sentence.
DEMO = {
    "prompt": '"From the first, two facts were very obvious to me,',
    "n_tokens_to_generate": 54,
    "draft_model_size": "tiny-draft",
    "target_model_size": "tiny-target",
    "models_dir": BUNDLED,
}

Room = tuple[str, tuple[Flag, ...]]  # a heading of --help, and the flags below it


def rooms() -> list[Room]:
    """In the order of --help."""
    return [
        ("The blog's run, which is the default", BLOG),
        ("The text", (DEMO_FLAG, *stop.FLAGS)),
        ("The distribution", (*filters.FLAGS, *accept.FLAGS)),
        ("The drafter", (drafters.FLAG, drafters.TEMPERATURE, *trees.FLAGS, *drafters.flags_of_kinds())),
        ("The engine", (*loading.FLAGS, *devices.FLAGS)),
    ]


def flags_of(rooms: Iterable[Room]) -> dict[str, Flag]:
    """{name: flag}, in order."""
    return {flag.name: flag for _, flags in rooms for flag in flags}


def model_flags() -> dict[str, Flag]:
    return flags_of(rooms())


def parse_options(flags: dict[str, Flag], given: dict[str, Any], **changed: Any) -> Options:
    """{flag: value, or what was typed of it} -> the options, with an engine that can do what is asked for.

    changed: values that take the place of those that were given. Where there are any, these alone have to be of use.
    Raises UserError for the first value that is not right, or does not go with the others.
    """
    values = given_values(flags, given | changed)
    # One of the blog's counts as used where it is given, another flag where it says something else than its default.
    used = []
    for name, flag in flags.items():
        if name in values and (flag in BLOG or values[name] != flag.default):
            used.append(flag)
    check_exclusive(used)
    for flag in used:
        extras.check(f"--{flag.name}", flag.needs)
    if values.get("demo"):
        values = DEMO | values
        check_demo(values)
    o = Options(**{name: flag.default for name, flag in flags.items()} | values)
    for flag in used:
        if not changed or flag.name in changed:
            check_useful(flag, o)
    o = o.replaced(engine=devices.choose_engine(o.engine))
    check_engine(flags, o)
    accept.check_tree(o)
    return o


def check_demo(values: dict[str, Any]) -> None:
    """Raises UserError where --demo, whose models are there already, stands beside a model that would be downloaded."""
    for name in ("draft_model_size", "target_model_size"):
        size = values[name]
        if values["models_dir"] == DEMO["models_dir"] and size in MODEL_SIZES:
            raise UserError(f"--demo is the bundled pair: leave it out to decode with --{name} {size}")


def check_live(flags: dict[str, Flag], given: Collection[str]) -> None:
    """Raises UserError where one of the flags cannot change while the models stay loaded."""
    for name in given:
        if name in flags and not flags[name].live:
            raise UserError(f"--{name} cannot change while models are loaded: start again with it")


def check_engine(flags: dict[str, Flag], o: Options) -> None:
    """Raises UserError where an option is not for the engine that was chosen."""
    for name, flag in flags.items():
        if flag.only_engine and flag.only_engine != o.engine and getattr(o, name) != flag.default:
            raise UserError(f"--{name} is for --engine {flag.only_engine}: {flag.why}")
    for kind in drafters.kinds_of(o.drafter):
        if kind.only_engine and kind.only_engine != o.engine:
            raise UserError(f"--drafter {kind.name} is for --engine {kind.only_engine}: {kind.why}")
    devices.check(o)
