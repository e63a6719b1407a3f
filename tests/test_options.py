"""The options: each with its type, default, check and help; refusals, from the command line and from Python."""

import inspect
import re
from dataclasses import fields, replace

import pytest
from tiny import refusal

import main
from speculative import load_pair
from speculative.cli.command import RENAMED, parse, run
from speculative.filters import Filters
from speculative.options import (
    CONFLICTS,
    DEMO,
    FIELDS,
    NO_EFFECT,
    ModelOptions,
    Options,
    help_text,
    make_options,
)
from speculative.support.errors import UserError


def typed(line):
    """The Options that main gets for these words."""
    found = []
    run(lambda **flags: found.append(parse(flags)), "", line if isinstance(line, list) else line.split())
    return found[0]


def value_for(name):
    """A value of this option that is not its default."""
    f = FIELDS[name]
    texts = ["0.5", "2", "2,1", "int8", "model", "jax", "speculative", "huggingface", "8000", "block", "a", "True"]
    for text in texts:
        try:
            if f.metadata["check"](text) != f.default:
                return text
        except ValueError:
            pass
    raise AssertionError(f"add a text that --{name} takes")


# ---- Every option ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_has_a_help_a_check_and_a_default_that_passes_it(name):
    f = FIELDS[name]
    assert f.metadata["help"]
    if f.default is not None:
        assert f.metadata["check"](f.default) == f.default
        assert f.metadata["check"](str(f.default)) == f.default
    value_for(name)
    assert re.search(rf"^  --{name} +\S", help_text(True), re.MULTILINE)
    assert f"--{name} " in help_text() or "group" not in f.metadata


def test_the_blogs_options_have_its_defaults():
    o = typed("")
    assert o == Options()
    assert (o.prompt, o.n_tokens_to_generate) == ("Alan Turing theorized that computers would one day become", 40)
    assert (o.draft_model_size, o.target_model_size, o.models_dir) == ("124M", "1558M", "models")
    assert (o.K, o.temperature, o.seed) == (4, 0.0, 123)


def test_python_shows_every_option_with_its_type_and_default():
    parameters = inspect.signature(load_pair).parameters
    assert [*parameters] == [f.name for f in fields(ModelOptions)]
    for name, parameter in parameters.items():
        assert parameter.annotation is not inspect.Parameter.empty
        assert parameter.default == FIELDS[name].default


def test_a_filter_is_a_field_and_an_option():
    assert {*Filters._fields} <= {*FIELDS}


def test_the_demo_changes_defaults_alone():
    assert typed("--demo") == replace(Options(), demo=True, **DEMO)
    chosen = typed(["--demo", "--K=2", "--prompt=mine", "--models_dir=here"])
    assert (chosen.K, chosen.prompt, chosen.models_dir) == (2, "mine", "here")
    assert chosen.target_model_size == "tiny-target"


# ---- The words of a command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "3.10", "a,b", "[1,2]", "None", "1e3", "'a'", '"', " ", "é\n\t", "# a", "-"])
def test_a_text_stays_as_it_was_typed(value):
    """fire would turn most of these into something else."""
    assert typed([f"--prompt={value}"]).prompt == value
    if value != "-":
        assert typed(["--prompt", value]).prompt == value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--K 8 --seed=5", {"K": 8, "seed": 5}),
        ("-K 8 -s=5 -t .5 -n 3", {"K": 8, "seed": 5, "temperature": 0.5, "n_tokens_to_generate": 3}),
        ("--n-samples 3 --quiet --K 7", {"n_samples": 3, "quiet": True, "K": 7}),
        ("--serve", {"serve": 8000}),
        ("--serve 9000 --temperature 1.", {"serve": 9000, "temperature": 1.0}),
        ("--K auto", {"K": "auto"}),
        ("--K 16/4 --drafter int8/model", {"K": (16, 4), "drafter": "int8/model"}),
        ("--K 8/auto --drafter model/ngram", {"K": (8, "auto"), "drafter": "model/ngram"}),
        ("--tree 2,2,1", {"tree": (2, 2, 1)}),
        ("--tree 3", {"tree": (3,)}),
        ("--temperature 1 --top_p 0.9 --min_p=.1", {"temperature": 1.0, "top_p": 0.9, "min_p": 0.1}),
        ("--draft_model_size=/a/b", {"draft_model_size": "/a/b"}),
        ("--prompt_file -", {"prompt_file": "-"}),
    ],
)
def test_words_become_options(line, expected):
    assert typed(line) == replace(Options(), **expected)


def test_python_may_give_values_or_texts():
    for K in ((8, 2), [8, 2], "8/2"):
        o = make_options(ModelOptions, {"K": K, "temperature": "0.7", "drafter": "model/ngram"})
        assert (o.K, o.temperature) == ((8, 2), 0.7)
    for tree in ((2, 1), [2, 1], "2,1"):
        assert make_options(ModelOptions, {"tree": tree}).tree == (2, 1)
    assert make_options(ModelOptions, {"K": None, "stop": None}) == ModelOptions()


# ---- Refusals --------------------------------------------------------------------------------------------------------

WHOLE = "must be a whole number of at least 1"
REFUSED = [
    # (the words, what is said)
    ("--K 0", "--K must be a whole number of at least 1 and at most 1024, or auto; for a staged drafter one for each"),
    ("--K 4.5", "--K must be a whole number of at least 1 and at most 1024, or auto"),
    ("--n_tokens_to_generate four", f"--n_tokens_to_generate {WHOLE}, not 'four'"),
    ("--n_samples 1e3", f"--n_samples {WHOLE}, not '1e3'"),
    ("--top_k 0", f"--top_k {WHOLE}, not '0'"),
    ("--threads ٤", f"--threads {WHOLE}, not '٤'"),
    ("--seed -1", "--seed must be a whole number of at least 0, not '-1'"),
    ("--seed 1_000", "--seed must be a whole number of at least 0"),
    ("--temperature nan", "--temperature must be a number of at least 0, not 'nan'"),
    ("--temperature -0.5", "--temperature must be a number of at least 0, not '-0.5'"),
    ("--temperature 1e999", "--temperature must be a number of at least 0"),
    ("--top_p 2", "--top_p must be a number above 0 and at most 1, not '2'"),
    ("--min_p 0", "--min_p must be a number above 0 and at most 1, not '0'"),
    ("--tree 2,0", "--tree must be children by depth, as 2,2,1, of at most 64 nodes in all, not '2,0'"),
    ("--tree 8,8", "--tree must be children by depth, as 2,2,1, of at most 64 nodes in all, not '8,8'"),
    ("--tree auto", "--tree must be children by depth"),
    ("--dtype float23", "--dtype must be one of float32, bfloat16, int8, int4; did you mean float32?, not 'float23'"),
    ("--engine cuda", "--engine must be one of numpy, jax, auto, not 'cuda'"),
    ("--target_model_size a/b/c", "--target_model_size must be 124M, a folder of models_dir, a path that begins with"),
    ("--json=", "--json must be the name of a file or folder, not ''"),
    ("--serve 80", "--serve must be a port from 1024 to 65535, or 0 for one that is free, not '80'"),
    ("--demo=yes", "--demo must be given without a value, not 'yes'"),
    ("--promt a", "unknown option --promt; did you mean prompt?"),
    ("--k 4", "unknown option --k; did you mean K?"),
    ("--zz 4", "unknown option --zz; see --help"),
    ("--K", "--K needs a value; one that begins with - is written --K=VALUE"),
    ("--prompt --K 4", "--prompt needs a value"),
    ("hello", "unexpected 'hello': a value follows its --option; quote a text with spaces"),
    ("--demo --target_model_size 124M", "--demo is the bundled pair: leave it out to decode with --target_model_size"),
    ("--top_k 5", "--top_k is of no use here: at temperature 0 the likeliest token is taken"),
    ("--ngram_text a", "--ngram_text is of no use here: --drafter ngram is not asked for"),
    ("--draft_dtype int8 --drafter ngram", "--draft_dtype is of no use here: the drafter has no draft model"),
    ("--mesh 2", "--mesh is of no use here: it is for --engine jax"),
    ("--tree 2,1 --engine jax", "--tree is of no use here: it is for --engine numpy"),
    ("--tree 2,1 --accept block", "--accept is of no use here: block verification tests a chain, not a tree"),
]


@pytest.mark.parametrize(("line", "said"), REFUSED)
def test_a_command_line_is_refused_in_a_line(line, said):
    assert said in refusal(typed, line)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 4}, "unknown option k; did you mean K?"),
        ({"K": True}, "K must be a whole number"),
        ({"K": (8, 0), "drafter": "model/ngram"}, "K must be a whole number of at least 1"),
        ({"temperature": "warm"}, "temperature must be a number of at least 0, not 'warm'"),
        ({"tree": [2, 2], "K": 5}, "tree and K cannot be combined: give one of them"),
        ({"stop": ["a", "b"]}, "stop must be a text in UTF-8, not \"['a', 'b']\""),
        ({"html": "a.html"}, "unknown option html"),
        ({"prompt": "a"}, "load_pair takes no prompt: give it to session.compare or session.speculative"),
        (
            {"demo": True, "accept": "blok"},
            "accept must be token, block, lenient:B (B from 0.000001 to 1)",
        ),
        ({"demo": True, "accept": "token:1"}, "accept must be token, block"),
        ({"demo": True, "drafter": "modle"}, "drafter 'modle' is unknown; did you mean model?"),
        ({"demo": True, "drafter": "model+"}, "drafter '' is unknown; there are model, "),
        ({"demo": True, "drafter": "prompt_lookup/model"}, "prompt_lookup has no model to draft for; model, "),
        ({"demo": True, "drafter": "model+ngram/heads"}, "+ can only join drafters of the last level"),
        ({"demo": True, "drafter": "model/ngram+model"}, "names model twice: once is enough"),
        ({"demo": True, "drafter": "self"}, "drafter self is now written int8"),
        ({"demo": True, "drafter": "a" * 10**6}, "there are model, "),
        ({"demo": True, "drafter": "model/ngram", "tree": "2"}, "a staged drafter drafts a chain"),
    ],
)
def test_python_is_refused_in_its_own_words(options, said):
    line = refusal(load_pair, **options)
    assert said in line
    assert "--" not in line


@pytest.mark.parametrize("name", RENAMED)
def test_an_option_of_an_earlier_version_says_what_to_write_now(name):
    assert refusal(typed, f"--{name} 1") == f"--{name} is now {RENAMED[name]}"


PAIRS = [(one, other) for some, others in CONFLICTS for one in some for other in others]


def given(*names):
    return {name: "2,1" if name == "tree" else "block" if name == "accept" else value_for(name) for name in names}


@pytest.mark.parametrize(("one", "other"), sorted(PAIRS))
def test_options_that_exclude_each_other(one, other):
    for values in (given(one, other), given(other, one)):
        line = refusal(parse, values)
        assert re.fullmatch(r"--(\w+) and --(\w+) cannot be combined: give one of them", line)
        assert {*re.findall(r"--(\w+)", line)} == {one, other}


@pytest.mark.parametrize("name", [name for names, _, _ in NO_EFFECT for name in names if name != "accept"])
def test_an_option_that_would_do_nothing_is_refused(name):
    """And neither its default nor an engine or drafter that has a use for it."""
    useless = [condition for names, condition, _ in NO_EFFECT if name in names]
    settings = [{}, {"engine": "jax"}, {"drafter": "ngram"}, {"temperature": "1"}]
    outcomes = set()
    for setting in settings:
        values = given(name) | setting
        o = Options(**{key: FIELDS[key].metadata["check"](value) for key, value in values.items()})
        refused = any(condition(o) for condition in useless)
        outcomes.add(refused)
        if refused:
            assert f"--{name} is of no use here: " in refusal(parse, values)
        else:
            assert parse(values) == o
    assert outcomes == {True, False}


def test_a_default_is_not_given():
    """A program that passes all the defaults on excludes nothing by it."""
    defaults = {name: f.default for name, f in FIELDS.items() if name not in ("prompt", "K", "tree")}
    assert parse(defaults) == Options()
    assert parse({"verify": True, "quiet": False, "n_samples": 1, "stop": None}).verify


def test_a_long_value_does_not_make_a_long_line():
    for name in FIELDS:
        for value in ("/" * 10**5, "\udcff" * 10**5):
            try:
                parse({name: value})
            except UserError as error:
                assert len(str(error)) < 500


def test_main_is_the_blogs_function():
    assert callable(main.main)
    assert {"autoregressive_sampling", "max_fn", "sample", "speculative_sampling"} <= {*main.__all__}
