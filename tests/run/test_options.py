"""The options: each with its type, default, check and help; from words and from Python; which exclude others."""

import inspect
import re
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import refusal

import main
from speculative import load_pair
from speculative.cli.command import USAGE, read_command, read_options, read_words
from speculative.cli.help import help_text, session_help, wrapped
from speculative.cli.interactive import WELCOME, read_changes
from speculative.cli.workbench import options_of
from speculative.filters import Filters
from speculative.run.options import CONFLICTS, DEMO, FIELDS, NO_EFFECT, ModelOptions, Options
from speculative.run.values import as_typed
from speculative.support.errors import UserError


def typed(line):
    """The Options that main gets for these words."""
    return read_options(read_command("", line if isinstance(line, list) else line.split()))


def value_for(name):
    """A value of this option that is not its default."""
    f = FIELDS[name]
    texts = ["0.5", "2", "2,1", "int8", "model", "jax", "speculative", "huggingface", "8000", "block", "a", "True"]
    for text in {"tree": ["2,1"], "accept": ["block"]}.get(name, texts):
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
    if f.default is not None:
        assert f.metadata["check"](f.default) == f.default
        assert f.metadata["check"](str(f.default)) == f.default
    value_for(name)
    assert re.search(rf"^  (-\w, )?--{name}\b", help_text(True), re.MULTILINE)
    assert re.search(rf"--{name}\b", help_text()) or "group" not in f.metadata


@pytest.mark.parametrize("program", ["main.py", "__main__.py", "speculative-sampling"])
def test_help_and_the_lines_of_a_session_fit_80_columns(program, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [program])
    with pytest.raises(SystemExit):
        read_command(main.__doc__, ["--help", "all"])
    shown = capsys.readouterr().out
    assert f"{USAGE.get(program, program)} --demo\n" in shown
    lines = [*shown.splitlines(), *session_help(Options()).splitlines(), *wrapped(WELCOME).splitlines()]
    assert [line for line in lines if len(line) > 80] == []


def test_python_shows_every_option_with_its_type_and_default():
    parameters = inspect.signature(load_pair).parameters
    assert [*parameters] == [*(f.name for f in fields(ModelOptions)), "target", "encoder"]
    for name, parameter in [*parameters.items()][:-2]:
        assert parameter.annotation is not inspect.Parameter.empty
        assert parameter.default == FIELDS[name].default
    assert {*Filters._fields} <= {*parameters}


# ---- Words and values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "3.10", "a,b", "[1,2]", "None", "1e3", "'a'", '"', " ", "é\n\t", "# a", "-"])
def test_a_text_stays_as_it_was_typed(value):
    """A parser that guesses types would turn most of these into something else."""
    assert typed([f"--prompt={value}"]).prompt == value
    if value != "-":
        assert typed(["--prompt", value]).prompt == value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),  # the blog's defaults, which are in golden/help.txt
        ("-K 8 -s=5 -t .5 -n 3", {"K": 8, "seed": 5, "temperature": 0.5, "n_tokens_to_generate": 3}),
        (
            "-n5 -K8/2 -t.5 --drafter=model/ngram",
            {"n_tokens_to_generate": 5, "K": (8, 2), "temperature": 0.5, "drafter": "model/ngram"},
        ),
        (["It was a dark night", "-K", "2"], {"prompt": "It was a dark night", "K": 2}),  # as picoGPT has it
        ([""], {"prompt": ""}),
        ("Hello", {"prompt": "Hello"}),
        ("--quiet True --demo=False", {"quiet": True}),
        ("--quiet on --demo=off --stream off", {"quiet": True}),
        ("--n-samples 3 --quiet --K 7", {"n_samples": 3, "quiet": True, "K": 7}),
        ("--serve", {"serve": 8000}),
        ("--demo word", {"demo": True} | DEMO | {"prompt": "word"}),
        ("word --quiet", {"prompt": "word", "quiet": True}),
        ("--K 4 word --quiet", {"prompt": "word", "quiet": True}),
        ("--serve 9000 --temperature 1.", {"serve": 9000, "temperature": 1.0}),
        ("--K 8/auto --drafter model/ngram", {"K": (8, "auto"), "drafter": "model/ngram"}),
        ("--tree 2,2,1", {"tree": (2, 2, 1)}),
        ("--temperature 1 --top_p 0.9 --min_p=.1", {"temperature": 1.0, "top_p": 0.9, "min_p": 0.1}),
        ("--target_model_size a/b@refs/pr/1", {"target_model_size": "a/b@refs/pr/1"}),
        ("--models_dir=~/m --json=~", {"models_dir": "/home/me/m", "json": "/home/me"}),
        ("--prompt_file=~/p --draft_model_size ~/d", {"prompt_file": "/home/me/p", "draft_model_size": "/home/me/d"}),
        (f"--seed {2**63 - 1}", {"seed": 2**63 - 1}),
        ("--prompt=True --stop=True", {"prompt": "True", "stop": "True"}),
        ("--stop . --stop=zzz --quiet --stop .", {"stop": (".", "zzz", "."), "quiet": True}),
        (r"--stop \n\t --prompt \n", {"stop": "\n\t", "prompt": "\n"}),
        (r"--stop \\n --prompt \\n", {"stop": r"\n", "prompt": r"\n"}),
        (r"--stop \\n", {"stop": r"\n"}),
        ("--demo=True", {"demo": True} | DEMO),
        ("-p=True --demo --K=2 --models_dir=a", {"demo": True} | DEMO | {"prompt": "True", "K": 2, "models_dir": "a"}),
        ("--draft_model_size=/a/b --prompt_file -", {"draft_model_size": "/a/b", "prompt_file": "-"}),
    ],
)
def test_words_become_options(line, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert typed(line) == replace(Options(), **expected)


@given(st.lists(st.text(alphabet="\\\\nt\\n\\t a", min_size=1), min_size=1))
def test_stop_texts_are_typed_as_they_are_shown(texts):
    """Each session shows them in one line."""
    assert options_of({"stop": as_typed("stop", texts)}) == {"stop": texts}
    assert read_changes(f"/K 2 /stop {as_typed('stop', texts)}")["stop"] == texts


WORD = st.one_of(
    st.text(max_size=6),
    st.text(alphabet="-=nKt—", max_size=5),
    st.sampled_from([f"--{name}" for name in FIELDS]),
)


@given(st.lists(WORD, max_size=5))
def test_any_words_give_options_or_one_line(words):
    """Each option is one that there is; all else is a UserError, and no other exception."""
    try:
        given_options = read_words(words)
    except UserError as error:
        assert str(error).isprintable()
    else:
        assert given_options.keys() <= FIELDS.keys()


def test_a_line_of_a_session_changes_several_options():
    assert read_changes("/quiet /K 4 /stop /seed") == {"quiet": None, "K": "4", "stop": None, "seed": None}
    assert read_changes("/stop /a /stop=/K /seed=5") == {"stop": ["/a", "/K"], "seed": "5"}


# ---- Together --------------------------------------------------------------------------------------------------------


PAIRS = [(one, other) for some, others in CONFLICTS for one in some for other in others]


@pytest.mark.parametrize(("one", "other"), sorted(PAIRS))
def test_options_that_exclude_each_other(one, other):
    for names in ((one, other), (other, one)):
        line = refusal(read_options, {name: value_for(name) for name in names})
        assert re.fullmatch(r"--(\w+) and --(\w+) cannot be combined: give one of them", line)
        assert {*re.findall(r"--(\w+)", line)} == {one, other}


JAX = {"engine": "jax"}
EFFECTS = [
    # for each row of NO_EFFECT: options with which its options do nothing, and options with which they do something
    ({}, {"temperature": "1"}),
    ({}, JAX),
    ({"engine": "numpy"}, {}),
    (JAX, {}),
    (JAX, {}),
    ({}, {"drafter": "ngram"}),
    ({}, {"target_model_size": "gpt2"}),
    ({"drafter": "ngram"}, {"drafter": "model/ngram"}),
]
ROWS = [
    (name, str(UserError(*row[-1])), *others) for row, others in zip(NO_EFFECT, EFFECTS, strict=True) for name in row[0]
]


@pytest.mark.parametrize(("name", "reason", "useless", "useful"), ROWS)
def test_an_option_that_would_do_nothing_is_refused(name, reason, useless, useful):
    given = {name: value_for(name)}
    assert refusal(read_options, given | useless) == f"--{name} has no effect here: {reason}"
    if useful.get("engine") == "jax":
        pytest.importorskip("jax")
    read_options(given | useful)


def test_a_default_is_not_given():
    """A program that passes all the defaults on excludes nothing by it. --verify also decodes at temperature 1."""
    defaults = {name: f.default for name, f in FIELDS.items() if name not in ("prompt", "K", "tree")}
    assert read_options(defaults) == Options()
    assert read_options({"verify": True, "quiet": False, "n_samples": 1, "stop": None, "top_k": "2"}).verify
