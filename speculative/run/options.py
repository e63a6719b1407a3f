"""The options of a run: for each its type, default, check and help, in one place.

main.py takes them as flags (--K 8), load_pair as keywords (K=8). values.py has the checks.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from speculative.checkpoints.names import checked_model_name, checked_path, is_of_hub
from speculative.engines.formats import FORMATS
from speculative.run.values import (
    OFF,
    as_Ks,
    as_not_negative,
    as_port,
    as_seed,
    as_share,
    as_source,
    as_stops,
    as_switch,
    as_text,
    as_widths,
    checked,
    one_of,
    whole,
)
from speculative.support.errors import Option, UserError, unknown_option
from speculative.support.texts import has_json_lines

T = TypeVar("T")


def option(default: T, check: Callable, takes: str, help: str, **more: object) -> T:
    """A field of Options. takes: the form of its value in --help, "" for a switch, which has none. more: group (a
    heading of --help; rare options are under "More", in --help all), short (a letter that stands for the name), live
    (whether a session can change it while its models stay loaded)."""
    return field(default=default, metadata={"check": check, "help": help, "takes": takes, **more})


def switch(help: str, **more: object) -> bool:
    """A field of Options that is on or off."""
    return option(False, as_switch, "", help, **more)


BLOG, TEXT, LAW = "The blog's run, which is the default", "The text", "The distribution"
DRAFT, ENGINE, SHOWN = "The drafter", "The engine", "What is shown"


# fmt: off
# A table: for each option its default, check and form, then its help and marks.
@dataclass(frozen=True)
class ModelOptions:
    """The options about models and decoding: those that load_pair takes."""

    draft_model_size: str = option("124M", checked_model_name, "MODEL",
        "draft model: 124M ... 1558M, a folder of models_dir, ./path, or OWNER/NAME of the Hugging Face hub",
        group=BLOG)
    target_model_size: str = option("1558M", checked_model_name, "MODEL",
        "target model, named in the same way", group=BLOG)
    models_dir: str = option("models", checked_path, "FOLDER",
        "folder of the models; missing ones are downloaded to it", group=BLOG)
    n_tokens_to_generate: int = option(40, whole(1), "N",
        "how many tokens to add to the prompt (N)", group=BLOG, short="n", live=True)
    K: int | str | tuple = option(4, as_Ks, "N|auto",
        "tokens drafted at a time; auto: chosen by measured acceptance and cost", group=BLOG, short="K", live=True)
    temperature: float = option(0.0, as_not_negative, "X",
        "0 is greedy; 1 is the target's own distribution", group=BLOG, short="t", live=True)
    seed: int = option(123, as_seed, "N|random",
        "random seed, the same for both decoders; random: drawn and printed", group=BLOG, short="s", live=True)
    demo: bool = switch(
        "decode with the bundled pair of models, offline", group=TEXT)
    stop: str | tuple[str, ...] | None = option(None, as_stops, "TEXT",
        "end before this text, which may be <|endoftext|>; more than once: before the first", group=TEXT, live=True)
    special: bool = switch(
        "read <|endoftext|> in a prompt as the token, not as plain text; a model with a tokenizer.json always does",
        group=TEXT, live=True)
    top_k: int | None = option(None, whole(1, more=OFF), "N",
        "keep the k likeliest tokens", group=LAW, live=True)
    top_p: float | None = option(None, as_share, "X",
        "nucleus: keep the fewest tokens whose probabilities sum to at least this", group=LAW, live=True)
    min_p: float | None = option(None, as_share, "X",
        "keep the tokens with at least this share of the largest probability", group=LAW, live=True)
    eta: float | None = option(None, as_share, "X",
        "keep the tokens above min(eta, √eta e^-entropy): fewer where the next token is clear", group=LAW, live=True)
    accept: str = option("token", as_text, "RULE",
        "acceptance rule: token, block (accepts more above temperature 0) or match (accepts less); lenient:B and "
        "typical:E are not lossless", group=LAW, live=True)
    drafter: str = option("model", as_text, "NAME",
        "model, prompt_lookup, ngram, heads, or int8 (the target's copy); a+b falls back to b; a/b: b drafts for a",
        group=DRAFT, live=True)
    fast: bool = switch(
        "draft by look-ups, by the draft model and by an int8 copy of the target; K is chosen as it goes; lossless",
        group=DRAFT, live=True)
    draft_temperature: float | None = option(None, as_not_negative, "X",
        "temperature of the drafter alone; the output stays lossless", live=True)
    tree: tuple[int, ...] | None = option(None, as_widths, "N,N,...",
        "draft a tree: the number of children at each depth, such as 2,2,1; instead of --K", live=True)
    ngram_text: str | None = option(None, checked_path, "FILE",
        "text file whose n-grams the ngram drafter counts")
    dtype: str = option("float32", one_of(*FORMATS), "FORMAT",
        "weights of the target: float32 (4 bytes), float16 and bfloat16 (2), int8 (1), int4 (9/16)", group=ENGINE)
    draft_dtype: str = option("auto", one_of("auto", *FORMATS), "FORMAT|auto",
        "weights of the draft model; auto: int8 with c, float32 with numpy, as --dtype with jax")
    threads: int | None = option(None, whole(1), "N",
        "most threads that the C engine uses [one for each core]")
    source: str = option("openai", as_source, "NAME|URL",
        "where to download missing models: openai, huggingface, or the URL of a mirror")
    refresh: bool = switch(
        "ask the hub for a newer version of a model that is in its cache")
    engine: str = option("c", one_of("c", "numpy", "jax", "auto"), "c|numpy|jax|auto",
        "c (engine.c), numpy (gpt2.py itself), jax, or auto: jax if it sees an accelerator", group=ENGINE)
    mesh: int = option(1, whole(1), "N",
        "with jax: split the models over this many devices")
    data_parallel: int = option(1, whole(1), "N",
        "with jax: copies of the models, each with a share of --batch")
    batch: int = option(1, whole(1, 4096), "N",
        "decode this many prompts of --prompt_file at a time, with c or jax")


@dataclass(frozen=True)
class Options(ModelOptions):
    """All options, with the blog's names and defaults."""

    prompt: str = option("Alan Turing theorized that computers would one day become", as_text, "TEXT",
        'the text to continue; "" starts from <|endoftext|>', group=BLOG, short="p")
    prompt_file: str | None = option(None, checked_path, "FILE",
        "read the prompt from a file, including its last newline; - is standard input", group=TEXT)
    n_samples: int = option(1, whole(1, 10**6), "N",
        "decode this many times, each time with another seed", group=TEXT, live=True)
    only: str | None = option(None, one_of("autoregressive", "speculative"), "autoregressive|speculative",
        "run one decoder only: autoregressive or speculative", group=SHOWN, live=True)
    quiet: bool = switch(
        "print only the blog's lines", group=SHOWN, live=True)
    text: bool = switch(
        "print only the generated text, of one decoder: for pipes", group=SHOWN)
    verbose: bool = switch(
        "also print the prompt's tokens, every iteration, and every figure with its formula", group=SHOWN, live=True)
    stream: bool = switch(
        "print the text as it is decoded, as at a terminal", group=SHOWN, live=True)
    json: str | None = option(None, checked_path, "FILE",
        "write the run to this file, as JSON; a file .jsonl gets a line for each text; - is standard output",
        group=SHOWN)
    html: str | None = option(None, checked_path, "FILE",
        "write the run to this file as a page that replays it; - is standard output", group=SHOWN)
    verify: bool = switch(
        "instead of the run, check that the output has the target's distribution", group=SHOWN)
    score: str | None = option(None, checked_path, "FILE",
        "instead of the run, score a text: its perplexity under both models, and the acceptance and speedup to expect",
        group=SHOWN)
    interactive: bool = switch(
        "load the models once, and decode each line that is typed", group=SHOWN)
    serve: int | None = option(None, as_port, "[PORT]",
        "serve the workbench to this machine's browser, at this port [8000]", group=SHOWN)
    pack: bool = switch(
        "write the packed weights to the disk, and end; later runs begin sooner")
# fmt: on

    @property
    def has_report(self) -> bool:
        """Whether more of a run is shown or written than the blog's lines."""
        return bool(self.html or self.json or not self.quiet)

    @property
    def has_document(self) -> bool:
        """Whether all of a run is written to a file: as a page, or as a document."""
        return bool(self.html or (self.json and not has_json_lines(self.json)))


MODES = ("text", "verify", "score", "serve", "pack")  # options that ask for something in place of the run
AnyOptions = TypeVar("AnyOptions", bound=ModelOptions)
FIELDS = {f.name: f for f in fields(Options)}
SHORT = {f.metadata["short"]: name for name, f in FIELDS.items() if "short" in f.metadata}

HERE = Path(__file__).parents[1]
BESIDE = HERE / "models", HERE.parent / "models"  # inside the package in a wheel, beside it in the repository
DEMO = {
    "prompt": '"From the first, two facts were very obvious to me,',  # a text of the kind on which the pair was trained
    "n_tokens_to_generate": 54,  # the text then ends with a sentence
    "draft_model_size": "tiny-draft",
    "target_model_size": "padded-target",  # tiny-target, whose tokens cost what those of GPT-2 124M cost
    "models_dir": str(next((folder for folder in BESIDE if folder.is_dir()), BESIDE[-1])),
}

# Options that cannot be given together.
CONFLICTS = (
    ({"tree"}, {"K"}),
    ({"fast"}, {"drafter", "K", "tree", "accept"}),  # --fast stands for these
    ({"prompt_file"}, {"prompt"}),
    ({"batch"}, {"stream", "verbose", "verify", "html"}),
    ({"only"}, {"verify"}),
    ({"quiet"}, {"verbose", "verify"}),
    ({"verify"}, {"verbose", "stream", "json", "html", "n_samples", "stop"}),
    ({"html"}, {"n_samples"}),
    ({"score"}, {"prompt", "prompt_file", "n_samples", "batch", "seed", "stop", "tree"}),
    ({"score"}, {"text", "only", "quiet", "stream", "verify", "interactive", "serve", "pack"}),
    ({"interactive", "serve"}, {"prompt", "prompt_file", "batch", "json", "html", "verify", "pack"}),
    ({"interactive"}, {"serve"}),
    ({"text"}, {"n_samples", "batch", "quiet", "verbose", "stream", "json", "html", "verify"}),
    ({"text"}, {"interactive", "serve", "pack"}),
    ({"pack"}, {"n_samples", "batch", "only", "verbose", "stream", "json", "html", "verify", "stop", "prompt_file"}),
)


class NoEffect(NamedTuple):
    """Options that do nothing beside others."""

    names: Sequence[str]
    useless: Callable  # options -> whether they do nothing in these options
    reason: Sequence[str]  # the parts of the sentence, as of a UserError


def is_greedy(o: ModelOptions) -> bool:
    return o.temperature == 0 and not getattr(o, "verify", False)  # --verify also samples at temperature 1


def drafts_with(name: str, o: ModelOptions) -> bool:
    return name in re.split("[+/]", o.drafter)


def has_model_of_hub(o: ModelOptions) -> bool:
    return any(is_of_hub(size, o.models_dir) for size in (o.target_model_size, o.draft_model_size))


NO_EFFECT = (
    NoEffect(("top_k", "top_p", "min_p", "eta"), is_greedy, ["at temperature 0 the likeliest token is taken"]),
    NoEffect(("mesh", "data_parallel"), lambda o: o.engine in ("c", "numpy"), ["it is for ", Option("engine"), " jax"]),
    NoEffect(("batch",), lambda o: o.engine == "numpy", ["it is for ", Option("engine"), " c or jax"]),
    NoEffect(("tree", "fast"), lambda o: o.engine == "jax", ["it is for ", Option("engine"), " c or numpy"]),
    NoEffect(("threads", "pack"), lambda o: o.engine not in ("c", "auto"), ["it is for ", Option("engine"), " c"]),
    NoEffect(("ngram_text",), lambda o: not drafts_with("ngram", o), [Option("drafter"), " ngram is not asked for"]),
    NoEffect(("refresh",), lambda o: not has_model_of_hub(o), ["no model of this run is of the Hugging Face hub"]),
    NoEffect(("draft_dtype",), lambda o: not drafts_with("model", o), ["the drafter has no draft model"]),
)


# ---- From given values to options ------------------------------------------------------------------------------------


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
    o = replace(base, **reset_by(values, base), **values) if base else kind(**values)
    check_effects(values, o)
    return o


def read_values(given: dict, names: Collection[str], base: ModelOptions | None) -> dict:
    """Check each name and each value. Raises UserError."""
    values = {}
    for name, value in given.items():
        if name not in names:
            raise unknown_option(Option(name), names)
        f = FIELDS[name]
        if base and not f.metadata.get("live"):
            if name in MODES:
                raise UserError(
                    Option(name), " is not for a session: start the program with it in place of --interactive"
                )
            raise UserError(Option(name), " cannot change while models are loaded: start again with it")
        values[name] = f.default if value is None else checked(Option(name), f.metadata["check"], value)
    return values


def meant(values: dict) -> list[str]:
    """The names of values that are not as good as none. A prompt or a K is meant even if it is the default."""
    return [name for name, value in values.items() if value != FIELDS[name].default or name in ("prompt", "K")]


def excluded_by(name: str) -> set[str]:
    """The options that cannot be given together with this one."""
    excluded: set[str] = set()
    for some, others in CONFLICTS:
        if name in some:
            excluded |= others
        if name in others:
            excluded |= some
    return excluded


def check_conflicts(values: dict) -> None:
    """Raise UserError if two of these options exclude each other."""
    for name, other in combinations(meant(values), 2):
        if other in excluded_by(name):
            raise UserError(Option(name), " and ", Option(other), " cannot be combined: give one of them")


def reset_by(values: dict, base: ModelOptions) -> dict:
    """Return the options of base that a changed one excludes: they go back to their defaults."""
    excluded: set[str] = set()
    for name, value in values.items():
        if value != getattr(base, name):
            excluded |= excluded_by(name)
    if base.fast and "fast" in excluded:  # the options that it stood for go with it
        excluded |= excluded_by("fast")
    reset = excluded.difference(values)
    return {f.name: f.default for f in fields(base) if f.name in reset}


def check_demo(values: dict) -> None:
    """Raise UserError if an official model is asked for beside --demo."""
    for role in ("draft_model_size", "target_model_size"):
        size = values.get(role, "")
        if re.fullmatch("[0-9]+M", size) and "models_dir" not in values:
            raise UserError(
                Option("demo"), " is the bundled pair: leave it out to decode with ", Option(role), f" {size}"
            )


def check_effects(values: dict, o: ModelOptions) -> None:
    """Raise UserError if one of these values does nothing in these options."""
    for name in meant(values):
        for row in NO_EFFECT:
            if name in row.names and row.useless(o):
                raise UserError(Option(name), " has no effect here: ", *row.reason)
