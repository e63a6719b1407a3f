"""The command line: every flag's values, and what its words become."""

import re

import fire
import pytest
from tiny import refusal

from speculative.cli.flags import all_flags, rooms, usage, with_values
from speculative.cli.flags import parse as parse_given
from speculative.engines.devices import choose_draft_dtype
from speculative.options import BLOG, DEMO
from speculative.support.errors import UserError

BLOGS = {flag.name: flag.default for flag in BLOG}
FLAGS = all_flags()

# Something that may be typed behind each flag that excludes others, or that is not for every run.
SOME = dict.fromkeys(("typical", "lenience"), "0.5") | {
    "tree": "2,1",
    "draft_dtype": "int8",
    "serve": "8000",
    "only": "speculative",
}
SOME |= {name: "True" for name, flag in FLAGS.items() if flag.default is False}


def parse(**flags):
    """The options of a command line, read as main() reads them."""
    return parse_given(flags)


def refused(**flags):
    return refusal(parse, **flags)


# What a value may be


def test_the_defaults_are_the_blogs_run():
    o = parse()
    assert (o.prompt, o.n_tokens_to_generate) == ("Alan Turing theorized that computers would one day become", 40)
    assert (o.draft_model_size, o.target_model_size, o.models_dir) == ("124M", "1558M", "models")
    assert (o.K, o.temperature, o.seed) == (4, 0.0, 123)
    names = "prompt n_tokens_to_generate draft_model_size target_model_size models_dir K temperature seed"
    assert list(FLAGS)[:8] == [*BLOGS] == names.split()


def test_demo_only_changes_defaults():
    demo = parse(demo=True)
    assert demo == parse().replaced(demo=True, **DEMO)
    chosen = {"models_dir": "here", "K": 2, "prompt": "mine"}
    assert parse(demo=True, **chosen) == demo.replaced(**chosen)
    for other in ({"unconditional": True}, {"prompt_file": "a"}):
        assert parse(demo=True, **other) == demo.replaced(prompt=None, **other)


def test_a_default_is_not_given():
    """So whoever calls main with all its values excludes nothing by those that change nothing."""
    defaults = BLOGS | {name: flag.default for name, flag in FLAGS.items() if name not in BLOGS}
    assert parse(**defaults) == parse()
    assert parse(verify=True, quiet=False, n_samples=1, stop=None).verify
    assert parse(drafter="prompt_lookup", draft_dtype="auto").draft_dtype == "auto"
    typed = {name: str(value) for name, value in defaults.items() if value is not None}
    assert parse(**typed) == parse()
    assert "cannot be combined" in refused(K="4", tree="2")  # which was typed


@pytest.mark.parametrize(
    "value", ["", "3.10", "a,b", "[1,2]", "True", "None", "1e3", "'quoted'", '"', " ", "é\n\t", "# a"]
)
def test_a_text_stays_as_it_was_typed(value):
    """fire would turn most of these into something else."""
    kept = []
    for words in (["--prompt", value], [f"--prompt={value}"]):
        fire.Fire(fire.decorators.SetParseFn(str)(lambda **flags: kept.append(flags)), command=with_values(words))
    assert [parse(**flags).prompt for flags in kept] == [value, value]


@pytest.mark.parametrize(
    "flag, good",
    {
        "K": {"1": 1, "+4": 4, "0007": 7, "auto": "auto", "9" * 18: 10**18 - 1},
        "seed": {"0": 0, "-0": 0, "123": 123},
        "temperature": {"0": 0.0, ".5": 0.5, "1.": 1.0, "1e-3": 0.001, "-0": 0.0, "1e-999": 0.0},
        "top_p": {"1": 1.0, "0.9": 0.9},
        "lenience": {"1e-6": 1e-6, "1": 1.0},
        "typical": {"1e-6": 1e-6, ".999": 0.999},
        "prompt": {"th\udcc3\udca9": "thé"},  # how Python hands on UTF-8 where it expects ASCII
        "stop": {"<|endoftext|>": "<|endoftext|>", "\n": "\n"},
        "drafter": {"model": "model", "prompt_lookup+ngram": "prompt_lookup+ngram", "model/ngram": "model/ngram"},
        "source": {"openai": "openai", "huggingface": "huggingface", "https://a.example/gpt-2": ...},
        "tree": {"2,2,1": (2, 2, 1), "(2, 2)": (2, 2), "(3,)": (3,), "64": (64,), "auto": "auto", "1": (1,)},
        "target_model_size": {"1558M": "1558M", "my.model-2_b": "my.model-2_b"},
    }.items(),
)
def test_what_is_right(flag, good):
    for value, parsed in good.items():
        given = {"temperature": "1"} | {flag: value}  # at temperature 0 a filter would be of no use
        assert getattr(parse(**given), flag) == (value if parsed is ... else parsed)


WRONG_NUMBERS = ["", " ", "4.5", "four", "nan", "inf", "-inf", "-1", "1e999", "0x4", "1_000", "٤", "4 ", "4\n", "True"]
WRONG_NUMBERS += ["9" * 30, "½", "--4", "4,5", "None"]
NO_TREES = "0 2,0 2,,1 -1 65 8,8 4,4,4 two 2,2, () (2 auto,1 1e1 ٢"
INTEGERS = ["n_tokens_to_generate", "K", "seed", "n_samples", "top_k", "threads"]
NUMBERS = ["temperature", "top_p", "draft_temperature", "lenience", "typical"]


@pytest.mark.parametrize("flag", INTEGERS + NUMBERS)
def test_numbers_are_numbers(flag):
    for value in WRONG_NUMBERS:
        if "temperature" not in flag or value not in ("4.5", "9" * 30):  # these are
            assert refused(**{flag: value}).startswith(f"--{flag} must be a")
    if flag != "seed" and "temperature" not in flag:
        assert re.search("at least 1|above 0|from 0.000001 to ", refused(**{flag: "0"}))
    if flag in INTEGERS:
        assert " and at most 18 digits" in refused(**{flag: "9" * 19})
    if flag in ("top_p", "lenience", "typical"):
        assert refused(**{flag: "2"}).startswith(f"--{flag} must be a")


@pytest.mark.parametrize(
    "flag, bad",
    {
        "prompt": ["\udcff", "a\ud800b"],
        "stop": ["", "\udc80"],
        "draft_model_size": ["", "a\\b", "/\0", "a\0b", "124M\n", "é", "a" * 300, "a/b/c", "a/../b", "a b/c", "C:a"],
        "models_dir": ["", "a\0b"],
        "dtype": ["", "float16", "Int8", "float32 "],
        "drafter": ["", "modle", "model+", "+", "model+modle", "model,ngram", "prompt_lookup/ngram", "staged"],
        "source": ["", "ftp://a.example", "http://a.example", "a.example", "https://", "file:///etc/passwd", "OpenAI"],
        "tree": ["", "2 2", *NO_TREES.split()],
        "demo": ["false", "1", "", "yes"],
    }.items(),
)
def test_what_is_wrong(flag, bad):
    for value in bad:
        assert flag in refused(**{flag: value})


def test_a_long_value_does_not_make_a_long_line():
    for flag in FLAGS:
        for value in ("/" * 10**5, "\udcff" * 10**5):
            try:
                parse(**{flag: value})
            except UserError as error:
                assert len(str(error)) < 500


def test_near_misses():
    near = {"promt": "prompt", "k": "K", "tempreature": "temperature", "N": "n_tokens_to_generate"}
    for flag, meant in near.items():
        assert f"did you mean --{meant}?" in refused(**{flag: "4"})
    assert "see --help" in refused(zz="4")
    assert "did you mean float32?" in refused(dtype="float23")
    assert "did you mean" not in refused(drafter="model/")  # every name begins with an empty one


# What goes together

PAIRS = [sorted((name, other), key=[*FLAGS].index) for name, flag in FLAGS.items() for other in flag.excludes]


def test_what_excludes_each_other():
    assert {name for pair in PAIRS for name in pair} <= {*FLAGS}
    assert ["K", "tree"] in PAIRS
    assert ["prompt", "prompt_file"] in PAIRS
    assert ["n_samples", "verify"] in PAIRS
    for first, second in PAIRS:
        flags = {flag: SOME.get(flag, "2") for flag in (first, second)}
        for given in (flags, dict(reversed(flags.items()))):
            assert refused(**given) == f"--{first} and --{second} cannot be combined: give one of them"
        for flag, value in flags.items():
            needs = {"details": {"json": "a"}, "batch": {"engine": "jax"}}.get(flag, {})
            assert getattr(parse(**{flag: value}, **needs), flag)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"draft_dtype": "int8", "drafter": "ngram"}, "--draft_dtype is of no use here: --drafter ngram needs no"),
        ({"draft_temperature": "0.5", "drafter": "prompt_lookup"}, "--draft_temperature is of no use here"),
        ({"ngram_text": "a"}, "--ngram_text is of no use here: --drafter model has no ngram in it"),
        ({"details": True}, "--details is of no use here: it is about what --json writes: add --json FILE"),
        ({"mesh": 2}, "--mesh is of no use here: it is about the devices of --engine jax"),
        ({"data_parallel": 2}, "--data_parallel is of no use here"),
    ],
)
def test_a_flag_that_would_be_ignored_is_refused(flags, why):
    assert refused(**flags).startswith(why)
    needs = {"drafter": "model/ngram", "json": "a", "engine": "jax"}
    if "data_parallel" in flags:
        needs |= {"drafter": "model", "batch": 2}
    assert parse(**flags | needs)


def test_what_is_for_one_engine_is_refused_on_the_other():
    of_numpy = [name for name, flag in FLAGS.items() if flag.only_engine == "numpy"]
    assert {"tree", "threads", "typical"} <= {*of_numpy}
    for name in of_numpy:
        flags = {name: SOME.get(name, "1")}
        assert parse(**flags)
        line = refused(**flags, engine="jax")
        assert line == f"--{name} is for --engine numpy: {FLAGS[name].why}"
    line = refused(drafter="prompt_lookup+heads", engine="jax")
    assert line.startswith("--drafter heads is for")


def test_the_draft_is_stored_as_small_as_its_engine_likes():
    for given, engine, numba, chosen in (
        ("auto", "numpy", True, "int8"),
        ("auto", "numpy", False, "float32"),
        ("auto", "jax", True, "bfloat16"),
        ("float32", "numpy", True, "float32"),
        ("int8", "jax", True, "int8"),
    ):
        assert choose_draft_dtype(given, "bfloat16", engine, lambda numba=numba: numba) == chosen


def test_the_usage_has_every_flag_with_its_default_in_groups():
    lines = usage().splitlines()
    for flag, option in FLAGS.items():
        [line] = [line for line in lines if line.startswith(f"  --{flag} ")]
        default = option.default
        assert line.endswith(f" [{default}]") or default is None or default is False
    assert max(map(len, lines)) <= 120
    assert [line for line in lines if line and line[0] != " "][1:] == [heading for heading, _ in rooms()]


# A command line's words


@pytest.mark.parametrize(
    "words, flags",
    [
        ("--K 4 --seed=5", ["--K=4", "--seed=5"]),
        ("--n-samples 3", ["--n_samples=3"]),
        ("--quiet --K 4 --stream", ["--quiet=True", "--K=4", "--stream=True"]),
        ("--seed -1", ["--seed=-1"]),
        ("--prompt -hello --prompt_file -", ["--prompt=-hello", "--prompt_file=-"]),
        ("--prompt=--a=b--", ["--prompt=--a=b--"]),
        ("--prompt=", ["--prompt="]),
        ("--bogus", ["--bogus=True"]),
        ("-K 4 -s=5 -t .5 -n 3", ["--K=4", "--seed=5", "--temperature=.5", "--n_tokens_to_generate=3"]),
        ("-p -t", ["--prompt=-t"]),
        ("--quiet -p x --serve -s 1", ["--quiet=True", "--prompt=x", "--serve=8000", "--seed=1"]),
        ("", []),
    ],
)
def test_words(words, flags):
    assert with_values(words.split()) == flags


def test_words_out_of_place():
    bad = {
        "4": "4",
        "-": "-",
        "-- --trace": "--",
        "-k 4": "-k",
        "---K 4": "---K",
        "--quiet -x 3": "-x",
        "--=4": "--=4",
        "--K=4 5": "5",
    }
    for words, word in bad.items():
        expected = f"unexpected '{word}': every value follows its --flag, and a text goes in quotes"
        assert refusal(with_values, words.split()) == expected
    for word in ("--a\nb", "--\u2028=1", "--\udcff", "--K\r=4", "--é"):  # which would break the line
        assert "unexpected" in refusal(with_values, [word])
    for words in ("--K", "--K --demo", "--demo --prompt", "--prompt --seed=4", "--prompt --"):
        assert "needs a value; one that begins with -- is written --" in refusal(with_values, words.split())
    assert refusal(with_values, ["--n-samples=1", "--K=4", "--n_samples", "2"]) == "--n_samples is given twice"


def test_a_draft_model_that_no_drafter_needs():
    line = refusal(with_values, ["--draft_model_size", "124M", "--drafter", "ngram"])
    assert line.startswith("--draft_model_size is of no use here: --drafter ngram needs no draft model")
    assert len(with_values(["--draft_model_size", "124M", "--drafter", "ngram+model"])) == 2
    assert with_values(["--draft_model_size=355M"]) == ["--draft_model_size=355M"]
