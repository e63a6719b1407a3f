"""The options of a run: for each its type, default, check and help, in one place.

main.py takes them as flags (--K 8), load_pair as keywords (K=8). A check takes a value, or the text that was typed, and
returns the value; it raises ValueError, which says what the value must be.
"""

import contextlib
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from speculative.checkpoints.names import model, path
from speculative.engines.formats import FORMATS
from speculative.support.errors import UserError, did_you_mean
from speculative.support.synonyms import unknown_option

LARGEST = 2**63 - 1  # whole number that all libraries take

# ---- Checks ----------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """Any text. (An empty prompt stands for <|endoftext|>.)"""
    try:  # bytes that Python took for ASCII arrive from a command line as halves of surrogate pairs
        return value.encode("utf-8", "surrogateescape").decode("utf-8")
    except (AttributeError, UnicodeError):
        raise ValueError("a text in UTF-8") from None


def stops(value: Any) -> str | tuple[str, ...]:
    """A stop text, or several."""
    several = tuple(map(text, value if isinstance(value, tuple | list) else [value]))
    return several[0] if len(several) == 1 else several


def without_escapes(typed: str) -> str:
    r"""Return a line that was typed with \n and \t as newline and tab; \\n is the two characters."""
    meant = {"n": "\n", "t": "\t"}
    return re.sub(r"\\(\\?)([nt])", lambda match: "\\" + match[2] if match[1] else meant[match[2]], typed)


def switch(value: Any) -> bool:
    if str(value) not in ("True", "False"):
        raise ValueError("given without a value")
    return str(value) == "True"


def whole(least: int, most: int = LARGEST, more: str = "") -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not re.fullmatch(r"\+?[0-9]{1,19}", str(value)) or not least <= int(value) <= most:
            is_bounded = most < LARGEST or len(str(value)) > 18
            raise ValueError(f"a whole number of at least {least}" + f" and at most {most}" * is_bounded + more)
        return int(value)

    return check


def check_number(must_be: str, allowed: Callable[[float], bool]) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        with contextlib.suppress(ValueError):
            number = float(str(value))
            if math.isfinite(number) and allowed(number):
                return number
        raise ValueError(must_be)

    return check


def one_of(*names: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}{did_you_mean(str(value), names)}")
        return value

    return check


def lookahead(value: Any) -> int | str | tuple:
    """K: a number or "auto"; for a staged drafter one for each level, as "16/4" or (16, 4), from the outermost in."""
    number = whole(1, 1024, ", or auto; for a staged drafter one for each level, as 16/4")
    parts = value if isinstance(value, tuple | list) else str(value).split("/")
    Ks = tuple("auto" if part == "auto" else number(part) for part in parts or [""])
    return Ks if len(Ks) > 1 else Ks[0]


def n_nodes(sizes: Collection[int]) -> int:
    """The nodes of a tree, without its root, in which each node of depth d has sizes[d] children."""
    return sum(accumulate(sizes, mul))


def widths(value: Any) -> tuple[int, ...]:
    """--tree 2,2,1: the number of children at each depth."""
    parts = value if isinstance(value, tuple | list) else str(value).split(",")
    sizes = [int(part) if re.fullmatch("[1-9][0-9]?", str(part)) else 0 for part in parts]
    if 0 in sizes or n_nodes(sizes) > MOST_NODES:
        raise ValueError(f"children by depth, as 2,2,1, of at most {MOST_NODES} nodes in all")
    return tuple(sizes)


def port(value: Any) -> int:
    n = 8000 if value == "True" else whole(0, 65535)(value)  # "True" without a value
    if 0 < n < 1024:
        raise ValueError("a port from 1024 to 65535, or 0 for one that is free")
    return n


MOST_NODES = 64  # of a tree
STOP = " /stop "  # between two stop texts in one line
OFF = ", or left out, which turns it off"
not_negative = check_number("a number of at least 0", lambda value: value >= 0)
share = check_number(f"a number above 0 and at most 1{OFF}", lambda value: 0 < value <= 1)


# ---- The options -----------------------------------------------------------------------------------------------------


def option(default: Any, check: Callable[[Any], Any], help: str, takes: str = "", **more: Any) -> Any:
    """A field of Options. takes: the form of its value in --help, "" for a switch, which has none. more: group (a
    heading of --help; rare options are under "More", in --help all), short (a letter that stands for the name), live
    (whether a session can change it while its models stay loaded)."""
    return field(default=default, metadata={"check": check, "help": help, "takes": takes, **more})


BLOG, TEXT, LAW = "The blog's run, which is the default", "The text", "The distribution"
DRAFT, ENGINE, SHOWN = "The drafter", "The engine", "What is shown"


# fmt: off
# A table: one line for each option.
@dataclass(frozen=True)
class ModelOptions:
    """The options about models and decoding: those that load_pair takes."""

    draft_model_size: str = option("124M", model, "draft model: 124M ... 1558M, a folder of models_dir, ./path, or OWNER/NAME of the Hugging Face hub", takes="MODEL", group=BLOG)
    target_model_size: str = option("1558M", model, "target model, named in the same way", takes="MODEL", group=BLOG)
    models_dir: str = option("models", path, "folder of the models; missing ones are downloaded to it", takes="FOLDER", group=BLOG)
    n_tokens_to_generate: int = option(40, whole(1), "how many tokens to add to the prompt (N)", takes="N", group=BLOG, short="n", live=True)
    K: int | str | tuple = option(4, lookahead, "lookahead: tokens drafted at a time; auto: chosen by measured acceptance and cost", takes="N|auto", group=BLOG, short="K", live=True)
    temperature: float = option(0.0, not_negative, "0 is greedy; 1 is the target's own distribution", takes="X", group=BLOG, short="t", live=True)
    seed: int = option(123, whole(0), "random seed, the same for both decoders", takes="N", group=BLOG, short="s", live=True)
    demo: bool = option(False, switch, "decode with the bundled pair of tiny models, offline", group=TEXT)
    stop: str | tuple[str, ...] | None = option(None, stops, "end before this text, which may be <|endoftext|>; more than once: before the first", takes="TEXT", group=TEXT, live=True)
    special: bool = option(False, switch, "read <|endoftext|> in a prompt as the token, not as plain text; a model with a tokenizer.json always does", group=TEXT, live=True)
    top_k: int | None = option(None, whole(1, more=OFF), "keep the k likeliest tokens", takes="N", group=LAW, live=True)
    top_p: float | None = option(None, share, "nucleus: keep the fewest tokens whose probabilities sum to at least this", takes="X", group=LAW, live=True)
    min_p: float | None = option(None, share, "keep the tokens with at least this share of the largest probability", takes="X", group=LAW, live=True)
    eta: float | None = option(None, share, "keep the tokens above min(eta, √eta e^-entropy): fewer where the next token is clear", takes="X", group=LAW, live=True)
    accept: str = option("token", text, "acceptance rule: token, or block (accepts more above temperature 0); lenient:B and typical:E are not lossless", takes="RULE", group=LAW, live=True)
    drafter: str = option("model", text, "model, prompt_lookup, ngram, heads, or int8 (the target's copy); a+b falls back to b; a/b: b drafts for a", takes="NAME", group=DRAFT, live=True)
    fast: bool = option(False, switch, "look-ups and the draft model draft for an int8 copy of the target, and K chooses itself; lossless, best in long texts", group=BLOG, live=True)
    draft_temperature: float | None = option(None, not_negative, "temperature of the drafter alone; the output stays lossless", takes="X", live=True)
    tree: tuple[int, ...] | None = option(None, widths, "draft a tree: the number of children at each depth, such as 2,2,1; instead of --K", takes="N,N,...", live=True)
    ngram_text: str | None = option(None, path, "text file whose n-grams the ngram drafter counts", takes="FILE")
    dtype: str = option("float32", one_of(*FORMATS), "weights of the target: float32 (4 bytes), float16 and bfloat16 (2), int8 (1), int4 (9/16)", takes="FORMAT", group=ENGINE)
    draft_dtype: str = option("auto", one_of("auto", *FORMATS), "weights of the draft model; auto: int8 with c, float32 with numpy, as --dtype with jax", takes="FORMAT|auto")
    threads: int | None = option(None, whole(1), "most threads that the C engine uses [one for each core]", takes="N")
    source: str = option("openai", text, "where to download missing models: openai, huggingface, or the URL of a mirror", takes="NAME|URL")
    engine: str = option("c", one_of("c", "numpy", "jax", "auto"), "c (engine.c), numpy (gpt2.py itself), jax, or auto: jax if it sees an accelerator", takes="c|numpy|jax|auto", group=ENGINE)
    mesh: int = option(1, whole(1), "with jax: split the models over this many devices", takes="N")
    data_parallel: int = option(1, whole(1), "with jax: copies of the models, each with a share of --batch", takes="N")
    batch: int = option(1, whole(1, 4096), "with jax: decode this many prompts of --prompt_file at a time", takes="N")


@dataclass(frozen=True)
class Options(ModelOptions):
    """All options, with the blog's names and defaults."""

    prompt: str = option("Alan Turing theorized that computers would one day become", text, 'the text to continue; "" starts from <|endoftext|>', takes="TEXT", group=BLOG, short="p")
    prompt_file: str | None = option(None, path, "read the prompt from a file, including its last newline; - is standard input", takes="FILE", group=TEXT)
    n_samples: int = option(1, whole(1), "decode this many times, each time with another seed", takes="N", group=TEXT, live=True)
    only: str | None = option(None, one_of("autoregressive", "speculative"), "run one decoder only: autoregressive or speculative", takes="autoregressive|speculative", group=SHOWN, live=True)
    quiet: bool = option(False, switch, "print only the blog's lines", group=SHOWN, live=True)
    verbose: bool = option(False, switch, "also print every iteration, and every figure with its formula", group=SHOWN, live=True)
    stream: bool = option(False, switch, "print the text as it is decoded, as at a terminal", group=SHOWN, live=True)
    json: str | None = option(None, path, "write the run to this file, as JSON; - is standard output", takes="FILE", group=SHOWN)
    html: str | None = option(None, path, "write the run to this file as a page that replays it; - is standard output", takes="FILE", group=SHOWN)
    verify: bool = option(False, switch, "instead of the run, check that the output has the target's distribution", group=SHOWN)
    interactive: bool = option(False, switch, "load the models once, and decode each line that is typed", group=SHOWN)
    serve: int | None = option(None, port, "serve the workbench to this machine's browser, at this port [8000]", takes="[PORT]", group=SHOWN)
    pack: bool = option(False, switch, "write the packed weights to the disk, and end; later runs begin sooner")
# fmt: on


FIELDS = {f.name: f for f in fields(Options)}
SHORT = {f.metadata["short"]: name for name, f in FIELDS.items() if "short" in f.metadata}

HERE = Path(__file__).parent
DEMO = {
    "prompt": '"From the first, two facts were very obvious to me,',  # of the kind that the pair was trained on,
    "n_tokens_to_generate": 54,  # to the end of a sentence
    "draft_model_size": "tiny-draft",
    "target_model_size": "padded-target",  # tiny-target, whose tokens cost what those of GPT-2 124M cost
    # beside the package in the repository, inside it in a wheel
    "models_dir": str(HERE / "models" if (HERE / "models").is_dir() else HERE.parent / "models"),
}

# Options that cannot be given together.
CONFLICTS = (
    ({"tree"}, {"K", "batch"}),
    ({"fast"}, {"drafter", "K", "tree", "accept"}),  # which it stands for
    ({"prompt_file"}, {"prompt"}),
    ({"batch"}, {"n_samples", "stream", "verbose", "verify", "html"}),
    ({"only"}, {"verify"}),
    ({"quiet"}, {"verbose", "verify"}),
    ({"verify"}, {"verbose", "stream", "json", "html", "n_samples", "stop"}),
    ({"html"}, {"n_samples"}),
    ({"interactive", "serve"}, {"prompt", "prompt_file", "batch", "json", "html", "verify", "pack"}),
    ({"interactive"}, {"serve"}),
    ({"pack"}, {"n_samples", "batch", "only", "verbose", "stream", "json", "html", "verify", "stop", "prompt_file"}),
)

# (options, condition under which they do nothing, the reason)
NO_EFFECT = (
    (("top_k", "top_p", "min_p", "eta"), lambda o: o.temperature == 0 and not getattr(o, "verify", False),
     "at temperature 0 the likeliest token is taken"),
    (("mesh", "data_parallel", "batch"), lambda o: o.engine in ("c", "numpy"), "it is for --engine jax"),
    (("tree", "fast"), lambda o: o.engine == "jax", "it is for --engine c or numpy"),
    (("threads", "pack"), lambda o: o.engine not in ("c", "auto"), "it is for --engine c"),
    (("ngram_text",), lambda o: "ngram" not in o.drafter, "--drafter ngram is not asked for"),
    (("draft_dtype",), lambda o: "model" not in re.split("[+/]", o.drafter), "the drafter has no draft model"),
)  # fmt: skip


def as_typed(name: str, value: Any) -> str:
    """Return the text that is typed for a value: 8/2 for several K, 2,1 for a tree."""
    if name == "stop" and value is not None:
        line = re.sub(r"\\(?=[nt])", r"\\\\", STOP.join([value] if isinstance(value, str) else value))
        return line.replace("\n", r"\n").replace("\t", r"\t")
    if isinstance(value, list | tuple):
        return ("/" if name == "K" else ",").join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def checked(name: str, check: Callable[[Any], Any], value: Any) -> Any:
    """Return check(value). Raises UserError, which names the value."""
    try:
        return check(value)
    except ValueError as error:
        must_be, *hint = str(error).partition("; did you mean")
        raise UserError(f"{name} must be {must_be}, not {value!r:.80}{''.join(hint)}") from None


def make_options(kind: type, given: dict[str, Any], base: ModelOptions | None = None) -> Any:
    """{name: value, or the text that was typed} -> the options, those of base where nothing is given.

    kind: Options or ModelOptions. None stands for the default. Raises UserError for the first value that is not right,
    cannot be combined with the others, or has no effect.
    """
    names = [f.name for f in fields(kind)]
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in names:
            raise unknown_option(f"--{name}", names)
        f = FIELDS[name]
        if base and not f.metadata.get("live"):
            raise UserError(f"--{name} cannot change while models are loaded: start again with it")
        values[name] = f.default if value is None else checked(f"--{name}", f.metadata["check"], value)
    used = {name for name, value in values.items() if name in ("prompt", "K") or value != FIELDS[name].default}
    for some, others in CONFLICTS:
        if some & used and others & used:
            raise UserError(f"--{min(some & used)} and --{min(others & used)} cannot be combined: give one of them")
    if values.get("demo"):
        for role in ("draft_model_size", "target_model_size"):
            if re.fullmatch("[0-9]+M", values.get(role, "")) and "models_dir" not in values:
                raise UserError(f"--demo is the bundled pair: leave it out to decode with --{role} {values[role]}")
        values = {name: value for name, value in DEMO.items() if name in names} | values
    changed = {name for name, value in values.items() if base and value != getattr(base, name)}
    for some, others in CONFLICTS:  # an option of base ends if one that excludes it changes
        ended = (others if some & changed else set()) | (some if others & changed else set())
        values = {name: FIELDS[name].default for name in names if name in ended} | values
    o = replace(base, **values) if base else kind(**values)
    for group, useless, reason in NO_EFFECT:
        for name in group:
            if name in values and values[name] not in (None, FIELDS[name].default) and useless(o):
                raise UserError(f"--{name} has no effect here: {reason}")
    return o
