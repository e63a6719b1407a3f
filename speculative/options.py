"""The options of a run: for each its type, default, check and help, in one place.

main.py takes them as flags (--K 8), load_pair as keywords (K=8). values.py has the checks.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from speculative.checkpoints.names import is_of_hub, model, path
from speculative.engines.formats import FORMATS
from speculative.support.errors import UserError
from speculative.support.synonyms import unknown_option
from speculative.values import (
    OFF,
    checked,
    lookahead,
    not_negative,
    one_of,
    port,
    share,
    stops,
    switch,
    text,
    whole,
    widths,
)


def option(default: Any, check: Callable[[Any], Any], help: str, takes: str = "", **more: Any) -> Any:
    """A field of Options. takes: the form of its value in --help, "" for a switch, which has none. more: group (a
    heading of --help; rare options are under "More", in --help all), short (a letter that stands for the name), live
    (whether a session can change it while its models stay loaded)."""
    return field(default=default, metadata={"check": check, "help": help, "takes": takes, **more})


BLOG, TEXT, LAW = "The blog's run, which is the default", "The text", "The distribution"
DRAFT, ENGINE, SHOWN = "The drafter", "The engine", "What is shown"


# fmt: off
# A table: for each option its default, check and marks, then its help.
@dataclass(frozen=True)
class ModelOptions:
    """The options about models and decoding: those that load_pair takes."""

    draft_model_size: str = option("124M", model, takes="MODEL", group=BLOG, help=
        "draft model: 124M ... 1558M, a folder of models_dir, ./path, or OWNER/NAME of the Hugging Face hub")
    target_model_size: str = option("1558M", model, takes="MODEL", group=BLOG, help=
        "target model, named in the same way")
    models_dir: str = option("models", path, takes="FOLDER", group=BLOG, help=
        "folder of the models; missing ones are downloaded to it")
    n_tokens_to_generate: int = option(40, whole(1), takes="N", group=BLOG, short="n", live=True, help=
        "how many tokens to add to the prompt (N)")
    K: int | str | tuple = option(4, lookahead, takes="N|auto", group=BLOG, short="K", live=True, help=
        "tokens drafted at a time; auto: chosen by measured acceptance and cost")
    temperature: float = option(0.0, not_negative, takes="X", group=BLOG, short="t", live=True, help=
        "0 is greedy; 1 is the target's own distribution")
    seed: int = option(123, whole(0), takes="N", group=BLOG, short="s", live=True, help=
        "random seed, the same for both decoders")
    demo: bool = option(False, switch, group=TEXT, help=
        "decode with the bundled pair of tiny models, offline")
    stop: str | tuple[str, ...] | None = option(None, stops, takes="TEXT", group=TEXT, live=True, help=
        "end before this text, which may be <|endoftext|>; more than once: before the first")
    special: bool = option(False, switch, group=TEXT, live=True, help=
        "read <|endoftext|> in a prompt as the token, not as plain text; a model with a tokenizer.json always does")
    top_k: int | None = option(None, whole(1, more=OFF), takes="N", group=LAW, live=True, help=
        "keep the k likeliest tokens")
    top_p: float | None = option(None, share, takes="X", group=LAW, live=True, help=
        "nucleus: keep the fewest tokens whose probabilities sum to at least this")
    min_p: float | None = option(None, share, takes="X", group=LAW, live=True, help=
        "keep the tokens with at least this share of the largest probability")
    eta: float | None = option(None, share, takes="X", group=LAW, live=True, help=
        "keep the tokens above min(eta, √eta e^-entropy): fewer where the next token is clear")
    accept: str = option("token", text, takes="RULE", group=LAW, live=True, help=
        "acceptance rule: token, block (accepts more above temperature 0) or match (accepts less); lenient:B and "
        "typical:E are not lossless")
    drafter: str = option("model", text, takes="NAME", group=DRAFT, live=True, help=
        "model, prompt_lookup, ngram, heads, or int8 (the target's copy); a+b falls back to b; a/b: b drafts for a")
    fast: bool = option(False, switch, group=BLOG, live=True, help=
        "look-ups, the draft model and an int8 copy of the target draft, with K chosen as it goes; lossless")
    draft_temperature: float | None = option(None, not_negative, takes="X", live=True, help=
        "temperature of the drafter alone; the output stays lossless")
    tree: tuple[int, ...] | None = option(None, widths, takes="N,N,...", live=True, help=
        "draft a tree: the number of children at each depth, such as 2,2,1; instead of --K")
    ngram_text: str | None = option(None, path, takes="FILE", help=
        "text file whose n-grams the ngram drafter counts")
    dtype: str = option("float32", one_of(*FORMATS), takes="FORMAT", group=ENGINE, help=
        "weights of the target: float32 (4 bytes), float16 and bfloat16 (2), int8 (1), int4 (9/16)")
    draft_dtype: str = option("auto", one_of("auto", *FORMATS), takes="FORMAT|auto", help=
        "weights of the draft model; auto: int8 with c, float32 with numpy, as --dtype with jax")
    threads: int | None = option(None, whole(1), takes="N", help=
        "most threads that the C engine uses [one for each core]")
    source: str = option("openai", text, takes="NAME|URL", help=
        "where to download missing models: openai, huggingface, or the URL of a mirror")
    refresh: bool = option(False, switch, help=
        "ask the hub for a newer version of a model that is in its cache")
    engine: str = option("c", one_of("c", "numpy", "jax", "auto"), takes="c|numpy|jax|auto", group=ENGINE, help=
        "c (engine.c), numpy (gpt2.py itself), jax, or auto: jax if it sees an accelerator")
    mesh: int = option(1, whole(1), takes="N", help=
        "with jax: split the models over this many devices")
    data_parallel: int = option(1, whole(1), takes="N", help=
        "with jax: copies of the models, each with a share of --batch")
    batch: int = option(1, whole(1, 4096), takes="N", help=
        "decode this many prompts of --prompt_file at a time, with c or jax")


@dataclass(frozen=True)
class Options(ModelOptions):
    """All options, with the blog's names and defaults."""

    prompt: str = option("Alan Turing theorized that computers would one day become", text, takes="TEXT", group=BLOG,
        short="p", help=
        'the text to continue; "" starts from <|endoftext|>')
    prompt_file: str | None = option(None, path, takes="FILE", group=TEXT, help=
        "read the prompt from a file, including its last newline; - is standard input")
    n_samples: int = option(1, whole(1), takes="N", group=TEXT, live=True, help=
        "decode this many times, each time with another seed")
    only: str | None = option(None, one_of("autoregressive", "speculative"), takes="autoregressive|speculative",
        group=SHOWN, live=True, help=
        "run one decoder only: autoregressive or speculative")
    quiet: bool = option(False, switch, group=SHOWN, live=True, help=
        "print only the blog's lines")
    verbose: bool = option(False, switch, group=SHOWN, live=True, help=
        "also print every iteration, and every figure with its formula")
    stream: bool = option(False, switch, group=SHOWN, live=True, help=
        "print the text as it is decoded, as at a terminal")
    json: str | None = option(None, path, takes="FILE", group=SHOWN, help=
        "write the run to this file, as JSON; - is standard output")
    html: str | None = option(None, path, takes="FILE", group=SHOWN, help=
        "write the run to this file as a page that replays it; - is standard output")
    verify: bool = option(False, switch, group=SHOWN, help=
        "instead of the run, check that the output has the target's distribution")
    interactive: bool = option(False, switch, group=SHOWN, help=
        "load the models once, and decode each line that is typed")
    serve: int | None = option(None, port, takes="[PORT]", group=SHOWN, help=
        "serve the workbench to this machine's browser, at this port [8000]")
    pack: bool = option(False, switch, help=
        "write the packed weights to the disk, and end; later runs begin sooner")
# fmt: on


FIELDS = {f.name: f for f in fields(Options)}
SHORT = {f.metadata["short"]: name for name, f in FIELDS.items() if "short" in f.metadata}

HERE = Path(__file__).parent
BESIDE = HERE / "models", HERE.parent / "models"  # inside the package in a wheel, beside it in the repository
DEMO = {
    "prompt": '"From the first, two facts were very obvious to me,',  # of the kind that the pair was trained on,
    "n_tokens_to_generate": 54,  # to the end of a sentence
    "draft_model_size": "tiny-draft",
    "target_model_size": "padded-target",  # tiny-target, whose tokens cost what those of GPT-2 124M cost
    "models_dir": str(next((folder for folder in BESIDE if folder.is_dir()), BESIDE[-1])),
}

# Options that cannot be given together.
CONFLICTS = (
    ({"tree"}, {"K"}),
    ({"fast"}, {"drafter", "K", "tree", "accept"}),  # which it stands for
    ({"prompt_file"}, {"prompt"}),
    ({"batch"}, {"stream", "verbose", "verify", "html"}),
    ({"only"}, {"verify"}),
    ({"quiet"}, {"verbose", "verify"}),
    ({"verify"}, {"verbose", "stream", "json", "html", "n_samples", "stop"}),
    ({"html"}, {"n_samples"}),
    ({"interactive", "serve"}, {"prompt", "prompt_file", "batch", "json", "html", "verify", "pack"}),
    ({"interactive"}, {"serve"}),
    ({"pack"}, {"n_samples", "batch", "only", "verbose", "stream", "json", "html", "verify", "stop", "prompt_file"}),
)


class NoEffect(NamedTuple):
    """Options that do nothing beside others."""

    names: Sequence[str]
    useless: Callable[[Any], bool]  # whether they do nothing in these options
    reason: str


def is_greedy(o: ModelOptions) -> bool:
    is_verified = isinstance(o, Options) and o.verify  # which also samples at temperature 1
    return o.temperature == 0 and not is_verified


def drafts_with(name: str, o: ModelOptions) -> bool:
    return name in re.split("[+/]", o.drafter)


def has_model_of_hub(o: ModelOptions) -> bool:
    return any(is_of_hub(size, o.models_dir) for size in (o.target_model_size, o.draft_model_size))


NO_EFFECT = (
    NoEffect(("top_k", "top_p", "min_p", "eta"), is_greedy, "at temperature 0 the likeliest token is taken"),
    NoEffect(("mesh", "data_parallel"), lambda o: o.engine in ("c", "numpy"), "it is for --engine jax"),
    NoEffect(("batch",), lambda o: o.engine == "numpy", "it is for --engine c or jax"),
    NoEffect(("tree", "fast"), lambda o: o.engine == "jax", "it is for --engine c or numpy"),
    NoEffect(("threads", "pack"), lambda o: o.engine not in ("c", "auto"), "it is for --engine c"),
    NoEffect(("ngram_text",), lambda o: not drafts_with("ngram", o), "--drafter ngram is not asked for"),
    NoEffect(("refresh",), lambda o: not has_model_of_hub(o), "no model of this run is of the Hugging Face hub"),
    NoEffect(("draft_dtype",), lambda o: not drafts_with("model", o), "the drafter has no draft model"),
)


# ---- From what was given to options ----------------------------------------------------------------------------------


def make_options(kind: type, given: dict[str, Any], base: ModelOptions | None = None) -> Any:
    """{name: value, or the text that was typed} -> the options, those of base where nothing is given.

    kind: Options or ModelOptions. None stands for the default. Raises UserError for the first value that is not right,
    cannot be combined with the others, or has no effect.
    """
    names = [f.name for f in fields(kind)]
    values = read_values(given, names, base)
    check_conflicts(values)
    if values.get("demo"):
        check_demo(values)
        values = {name: value for name, value in DEMO.items() if name in names} | values
    o = replace(base, **ended(values, base), **values) if base else kind(**values)
    check_effects(values, o)
    return o


def read_values(given: dict[str, Any], names: Collection[str], base: ModelOptions | None) -> dict[str, Any]:
    """Check each name and each value. Raises UserError."""
    values = {}
    for name, value in given.items():
        if name not in names:
            raise unknown_option(f"--{name}", names)
        f = FIELDS[name]
        if base and not f.metadata.get("live"):
            raise UserError(f"--{name} cannot change while models are loaded: start again with it")
        values[name] = f.default if value is None else checked(f"--{name}", f.metadata["check"], value)
    return values


def is_default(name: str, value: Any) -> bool:
    """Return True for a value that is as good as none. A prompt or a K is meant even if it is the default."""
    return value == FIELDS[name].default and name not in ("prompt", "K")


def excluded_by(name: str) -> set[str]:
    """Return the options that cannot be given beside this one."""
    excluded = set()
    for some, others in CONFLICTS:
        if name in some:
            excluded |= others
        if name in others:
            excluded |= some
    return excluded


def check_conflicts(values: dict[str, Any]) -> None:
    """Raise UserError if two of these options exclude each other."""
    used = [name for name, value in values.items() if not is_default(name, value)]
    for name, other in combinations(used, 2):
        if other in excluded_by(name):
            raise UserError(f"--{name} and --{other} cannot be combined: give one of them")


def ended(values: dict[str, Any], base: ModelOptions) -> dict[str, Any]:
    """Return the options of base that end because one that excludes them changes, with their defaults."""
    excluded = set()
    for name, value in values.items():
        if value != getattr(base, name):
            excluded |= excluded_by(name)
    names = {name for name in excluded - values.keys() if hasattr(base, name)}
    return {name: FIELDS[name].default for name in names}


def check_demo(values: dict[str, Any]) -> None:
    """Raise UserError if an official model is asked for beside --demo."""
    for role in ("draft_model_size", "target_model_size"):
        size = values.get(role, "")
        if re.fullmatch("[0-9]+M", size) and "models_dir" not in values:
            raise UserError(f"--demo is the bundled pair: leave it out to decode with --{role} {size}")


def check_effects(values: dict[str, Any], o: ModelOptions) -> None:
    """Raise UserError if one of these values does nothing in these options."""
    for row in NO_EFFECT:
        for name in row.names:
            if not is_default(name, values.get(name, FIELDS[name].default)) and row.useless(o):
                raise UserError(f"--{name} has no effect here: {row.reason}")
