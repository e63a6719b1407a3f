"""What may be typed: every flag's values, and what becomes of a command line's words."""

import inspect
import re
from dataclasses import FrozenInstanceError

import fire
import pytest

import main
from plumbing.errors import UserError
from speculative.cli.devices import choose_draft_dtype
from speculative.cli.flags import DEMO, EXCLUSIVE, HEADINGS, OPTIONS, Options, parse_options, usage, with_values
from speculative.engines import cpu

BLOGS = {name: parameter.default for name, parameter in inspect.signature(main.main).parameters.items()}
BLOGS.pop("more_flags")
SWITCHES = [flag for flag, option in OPTIONS.items() if option.default is False]


def parse(**flags) -> Options:
    """As main() does, with its defaults."""
    return parse_options(**BLOGS | flags)


def refusal(call, *args, **flags):
    """The line that bad input gets."""
    with pytest.raises(UserError) as caught:
        call(*args, **flags)
    line = str(caught.value)
    assert line and len(line) < 500 and line.isprintable()
    return line


def refused(**flags):
    return refusal(parse, **flags)


# What a value may be


def test_the_defaults_are_the_blogs_run():
    o = parse()
    assert (o.prompt, o.n_tokens_to_generate) == ("Alan Turing theorized that computers would one day become", 40)
    assert (o.draft_model_size, o.target_model_size, o.models_dir) == ("124M", "1558M", "models")
    assert (o.K, o.temperature, o.seed) == (4, 0.0, 123)
    assert list(OPTIONS)[:8] == [
        *("prompt", "n_tokens_to_generate", "draft_model_size", "target_model_size"),
        *("models_dir", "K", "temperature", "seed"),
    ]


def test_demo_only_changes_defaults():
    assert with_values(["--demo"]) == [*(f"--{flag}={value}" for flag, value in DEMO.items()), "--demo=True"]
    words = with_values(["--demo", "--models_dir", "here", "--K", "2"])
    assert "--models_dir=here" in words and "--K=2" in words and f"--prompt={DEMO['prompt']}" in words
    assert len(words) == len(DEMO) + 2  # K, and demo itself
    for other in ("--unconditional", "--prompt_file=a"):
        assert not any(word.startswith("--prompt=") for word in with_values(["--demo", other]))


def test_options_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        parse().K = 5


def test_values_need_not_be_strings():
    assert parse(K=7, temperature=0.5, top_k=None, quiet=True) == parse(K="7", temperature="0.5", quiet="True")


@pytest.mark.parametrize("value", ["3.10", "a,b", "[1,2]", "True", "None", "1e3", "'quoted'", '"', " ", "é\n\t", "# a"])
def test_a_text_stays_as_it_was_typed(value):
    """fire would turn most of these into something else."""
    for words in (["--prompt", value], [f"--prompt={value}"]):
        flags = fire.Fire(fire.decorators.SetParseFn(str)(lambda **flags: Kept(flags)), command=with_values(words))
        assert parse(**flags.value).prompt == value


class Kept:
    """Hides a value from fire, which prints what a command returns."""

    def __init__(self, value):
        self.value = value

    def __str__(self):
        return ""


@pytest.mark.parametrize(
    "flag, good",
    {
        "K": {"1": 1, "+4": 4, "0007": 7, "auto": "auto", "9" * 18: 10**18 - 1},
        "seed": {"0": 0, "-0": 0, "123": 123},
        "temperature": {"0": 0.0, ".5": 0.5, "1.": 1.0, "1e-3": 0.001, "-0": 0.0, "1e-999": 0.0},
        "top_p": {"1": 1.0, "0.9": 0.9},
        "lenience": {"1e-6": 1e-6, "1": 1.0},
        "typical": {"1e-6": 1e-6, ".999": 0.999},
        "top_k": {"50257": 50257, "1": 1},
        "prompt": {"th\udcc3\udca9": "thé"},  # how Python hands on UTF-8 where it expects ASCII
        "stop": {"<|endoftext|>": "<|endoftext|>", "\n": "\n"},
        "drafter": {"model": "model", "prompt_lookup+ngram": "prompt_lookup+ngram"},
        "source": {"openai": "openai", "huggingface": "huggingface", "https://a.example/gpt-2": ...},
        "dtype": {"bfloat16": "bfloat16"},
        "tree": {"2,2,1": (2, 2, 1), "64": (64,), "auto": "auto", "1": (1,)},
        "target_model_size": {"1558M": "1558M", "my.model-2_b": "my.model-2_b"},
    }.items(),
)
def test_what_is_right(flag, good):
    for value, parsed in good.items():
        assert getattr(parse(**{flag: value}), flag) == (value if parsed is ... else parsed)


WRONG_NUMBERS = ["", " ", "4.5", "four", "nan", "inf", "-inf", "-1", "1e999", "0x4", "1_000", "٤", "4 ", "4\n", "True"]
WRONG_NUMBERS += ["9" * 30, "½", "--4", "4,5", "None"]
INTEGERS, NUMBERS = ["n_tokens_to_generate", "K", "seed", "n_samples", "top_k", "threads"], ["temperature", "top_p"]
NUMBERS += ["draft_temperature", "lenience", "typical"]


@pytest.mark.parametrize("flag", INTEGERS + NUMBERS)
def test_numbers_are_numbers(flag):
    for value in WRONG_NUMBERS:
        if flag in NUMBERS and value in ("4.5", "9" * 30) and "temperature" in flag:
            continue  # these are numbers
        assert refused(**{flag: value}).startswith(f"--{flag} must be a")
    if flag != "seed" and "temperature" not in flag:
        assert re.search("at least 1|above 0|from 0.000001 to ", refused(**{flag: "0"}))


@pytest.mark.parametrize(
    "flag, bad",
    {
        "prompt": ["", "\udcff", "a\ud800b"],
        "stop": ["", "\udc80"],
        "draft_model_size": ["", "../124M", "/etc", "a/b", "a\\b", ".hidden", "..", "a\0b", "124M\n", "é", "a" * 300],
        "models_dir": ["", "a\0b"],
        "prompt_file": ["", "\0"],
        "json": ["", "a\0"],
        "dtype": ["", "float16", "Int8", "float32 "],
        "drafter": ["", "modle", "model+", "+", "model+modle", "model,ngram"],
        "source": ["", "ftp://a.example", "http://a.example", "a.example", "https://", "file:///etc/passwd", "OpenAI"],
        "tree": ["", "0", "2,0", "2,,1", "2 2", "-1", "65", "8,8", "4,4,4", "two", "2,2,", "auto,1", "1e1", "٢"],
        "demo": ["false", "1", "", "yes"],
    }.items(),
)
def test_what_is_wrong(flag, bad):
    for value in bad:
        line = refused(**{flag: value})
        assert flag in line


def test_a_long_value_does_not_make_a_long_line():
    for flag in OPTIONS:
        for value in ("/" * 10**6, "\udcff" * 10**6):
            try:
                parse(**{flag: value})
            except UserError as error:
                assert len(str(error)) < 500


@pytest.mark.parametrize("flag, near", [("promt", "prompt"), ("k", "K"), ("tempreature", "temperature"), ("N", None)])
def test_unknown_flags_and_near_misses(flag, near):
    assert (f"did you mean --{near}?" if near else "see --help") in refused(**{flag: "4"})


def test_a_near_miss_of_a_value():
    assert "did you mean float32?" in refused(dtype="float23")


@pytest.mark.parametrize("group", EXCLUSIVE)
def test_what_excludes_each_other(group):
    words = [f"--{flag}" if flag in SWITCHES else f"--{flag}=2" for flag in group[:2]]
    assert refusal(with_values, words) == f"--{group[0]} and --{group[1]} cannot be combined: give one of them"
    for word in words:
        assert len(with_values([word])) == 1


def test_the_usage_has_every_flag_with_its_default_in_groups():
    lines = usage(main.main).splitlines()
    for flag, option in OPTIONS.items():
        [line] = [line for line in lines if line.startswith(f"  --{flag} ")]
        default = BLOGS.get(flag, option.default)
        assert line.endswith(f" [{default}]") or default is None or default is False
    assert max(map(len, lines)) <= 120
    assert [line for line in lines if line and line[0] != " "][1:] == [*HEADINGS.values()]


# A command line's words


@pytest.mark.parametrize(
    "words, flags",
    [
        ("--K 4 --seed=5", ["--K=4", "--seed=5"]),
        ("--n-samples 3", ["--n_samples=3"]),
        ("--quiet --K 4", ["--quiet=True", "--K=4"]),
        ("--K 4 --quiet", ["--K=4", "--quiet=True"]),
        ("--seed -1", ["--seed=-1"]),
        ("--prompt -hello --quiet", ["--prompt=-hello", "--quiet=True"]),
        ("--prompt_file - --quiet", ["--prompt_file=-", "--quiet=True"]),
        ("--prompt=--a=b--", ["--prompt=--a=b--"]),
        ("--prompt=", ["--prompt="]),
        ("--bogus", ["--bogus=True"]),
        ("", []),
    ],
)
def test_words(words, flags):
    assert with_values(words.split()) == flags


@pytest.mark.parametrize(
    "words, word",
    {"4": "4", "-": "-", "-- --trace": "--", "-K 4": "-K", "---K 4": "---K", "--=4": "--=4", "--K=4 5": "5"}.items(),
)
def test_words_out_of_place(words, word):
    expected = f"unexpected '{word}': every value follows its --flag, and a text goes in quotes"
    assert refusal(with_values, words.split()) == expected


def test_a_name_may_hold_nothing_that_breaks_the_line():
    for word in ("--a\nb", "--\u2028=1", "--\udcff", "--K\r=4", "--é"):
        assert "unexpected" in refusal(with_values, [word])


@pytest.mark.parametrize("words", ["--K", "--K --demo", "--demo --prompt", "--prompt --seed=4", "--prompt --"])
def test_a_flag_without_its_value(words):
    assert "needs a value; one that begins with -- is written --" in refusal(with_values, words.split())


def test_a_flag_that_is_given_twice():
    assert refusal(with_values, ["--n-samples=1", "--K=4", "--n_samples", "2"]) == "--n_samples is given twice"


@pytest.mark.parametrize(
    ("given", "engine", "numba", "chosen"),
    [
        ("auto", "numpy", True, "int8"),
        ("auto", "numpy", False, "float32"),
        ("auto", "jax", True, "bfloat16"),
        ("float32", "numpy", True, "float32"),
        ("int8", "jax", True, "int8"),
    ],
)
def test_the_draft_is_stored_as_small_as_its_engine_likes(monkeypatch, given, engine, numba, chosen):
    monkeypatch.setattr(cpu, "has_numba", lambda: numba)
    assert choose_draft_dtype(given, "bfloat16", engine) == chosen


@pytest.mark.parametrize("read", ["prompt_file", "ngram_text"])
@pytest.mark.parametrize("written", ["json", "html"])
def test_what_is_read_is_not_overwritten(read, written):
    assert "would be overwritten" in refused(**{read: "a/../text", written: "text"})
    assert "would be overwritten" not in str(parse(**{read: "text", written: "other"}))
