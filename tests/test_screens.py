"""The screens: each is a file in golden/, compared to the letter. A clock counts the calls of models, so that times
are the same on every machine. After a change that is meant: pytest tests/test_screens.py --update-golden."""

import io
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from enumeration import Clock
from tiny import refusal

import main
from speculative import lookahead
from speculative.engines import model
from speculative.measure import check_sampling, predictions, recorder

GOLDEN = Path(__file__).parent / "golden"
SECONDS = {"the target": 0.01, "the draft": 0.001, "the int8": 0.003}  # of a row


@pytest.fixture
def clock(repeating, monkeypatch):
    """Time passes when a network is fed, and at no other time."""
    clock = Clock()
    for module in (lookahead, model, check_sampling, predictions, recorder):
        if hasattr(module, "time"):
            monkeypatch.setattr(module, "time", clock)
    feed = model.CachedNetwork.feed

    def timed(network, x, n, n_last, *tree):
        row = next(seconds for name, seconds in SECONDS.items() if network.name.startswith(name))
        clock.now += row * (1 + 0.1 * (len(x) - n - 1))
        return feed(network, x, n, n_last, *tree)

    monkeypatch.setattr(model.CachedNetwork, "feed", timed)
    return clock


@pytest.fixture
def stdin(monkeypatch):
    """lines -> standard input has them."""

    def stdin(*lines):
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), "utf-8"))

    return stdin


MEASURED = ("ceiling", "of the ceiling", "peak memory", "kernels")  # figures of this machine


def without_this_machine(text):
    """The screen without its figures of memory and bandwidth, the widths of their column, and p-values."""
    lines = [line for line in text.splitlines() if not line.strip().startswith(MEASURED)]
    lines = [re.sub(r"p = [0-9.e-]+", "p = #", re.sub(r"(?<=\S) {2,}", "  ", line)).rstrip() for line in lines]
    return "\n".join([*lines, ""])


SCREENS = {
    "demo": ["--demo"],
    "help": ["--help"],
    "help_all": ["--help", "all"],
    "quiet": ["--demo", "--quiet", "--json=run.json", "-n", "20"],
    "verbose": ["--demo", "--verbose", "-n", "20"],
    "staged": ["--demo", "--drafter=int8/model", "--K=6/2", "-n", "20"],
    "sampled": ["--demo", "--temperature=1", "--tree=2,1", "--n_samples=2", "-n", "12"],
    "auto": ["--demo", "--K=auto", "-n", "40"],
    "lenient": ["--demo", "--accept=lenient:0.5", "--temperature=1", "-n", "12"],
    "only": ["--demo", "--only=speculative", "--stop=very", "--stream"],
    "verify": ["--demo", "--verify", "-n", "8"],
    "wrong": ["--demo", "--K=0"],
    "interactive": ["--demo", "--interactive", "--quiet", "-n", "12"],
}
LINES = [
    "The man",
    "/K 8/2 /drafter model/ngram",
    "The man",
    "/temperature=0.7",
    "/stop a b",
    "/stop",
    "/stream",
    "/help",
    "/k 4",
]


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(name, command, clock, stdin, tmp_path, monkeypatch, request):
    """Standard output, then the last line of standard error."""
    words = SCREENS[name]
    stdin(*(LINES if name == "interactive" else []))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.setattr(main, "verify", partial(main.verify, draws=25))
    monkeypatch.setenv("COLUMNS", "110")
    status, out, err = command(*words)
    said = err.splitlines()[-1:] if status else []
    shown = "\n".join([f"$ main.py {' '.join(words)}", out.rstrip("\n"), *said, f"status {status}"])
    shown = without_this_machine(shown)
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.iterdir()} == {*SCREENS}


# ---- Lines of a session ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/k 8", "unknown option --k; did you mean K?"),
        ("/K 0", "--K must be a whole number of at least 1"),
        ("/dtype int8", "--dtype cannot change while models are loaded: start again with it"),
        (
            "--temperature 1 Hello",
            "this line would be a prompt: change options in another line, such as /temperature 1 /K",
        ),
        ("-K 4", "this line would be a prompt"),
        ("/tree 2,2 /K 4", "--tree and --K cannot be combined: give one of them"),
        ("x" * 300, "tokens and 12 more exceed the context of"),
        ("caf\udce9", "the prompt must be a text in UTF-8, not 'caf\\udce9'"),
    ],
)
def test_a_wrong_line_ends_a_session_that_nobody_types(run, stdin, line, said):
    stdin("/K 5", line)
    assert said in refusal(run, interactive=True, prompt=None)


@pytest.mark.parametrize("line", ["/quit", "/exit"])
def test_a_session_ends_with_its_lines(run, stdin, line):
    stdin("", line, "the thing in")
    assert run(interactive=True, prompt=None) == ""


def test_a_prompt_comes_from_a_file(run_json, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("the thing in", encoding="utf-8")
    expected, found = (run_json(**how)[1] for how in ({}, {"prompt": None, "prompt_file": path}))
    assert found["prompt"] == expected["prompt"]
    assert found["speculative"]["samples"][0]["tokens"] == expected["speculative"]["samples"][0]["tokens"]
