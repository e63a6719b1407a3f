"""The screens: each is a file in golden/, compared to the letter. A clock counts the calls of models, so that times
are the same on every machine. After a change that is meant: pytest tests/cli/test_screens.py --update-golden."""

import re
import sys
from functools import partial
from pathlib import Path

import pytest
from tiny import type_in

from speculative.cli import modes
from speculative.report import turns
from speculative.run.options import DEMO

GOLDEN = Path(__file__).parent / "golden"


MEASURED = ("ceiling", "of the ceiling", "peak memory", "kernels")  # figures of this machine


def without_this_machine(text):
    """The screen without its figures of memory and bandwidth, the widths of their column, and p-values."""
    lines = [line for line in text.splitlines() if not line.strip().startswith(MEASURED)]
    lines = [re.sub(r"Engine: C \(.*?\), \d+ threads?", "Engine: C (#), # threads", line) for line in lines]
    lines = [re.sub(r"p = [0-9.e-]+", "p = #", re.sub(r"(?<=\S) {2,}", "  ", line)).rstrip() for line in lines]
    return "\n".join([*lines, ""])


SCREENS = {
    "demo": ["--demo"],
    "help": ["--help"],
    "help_all": ["--help", "all"],
    "quiet": ["--demo", "--quiet", "--prompt_file=prompt.txt", "--json=run.json", "-n", "20"],
    "verbose": ["--demo", "--verbose", "-n", "20"],
    "staged": ["--demo", "--drafter=model/ngram", "--K=6/2", "-n", "20"],
    "sampled": ["--demo", "--temperature=1", "--tree=2,1", "--n_samples=2", "-n", "12"],
    "auto": ["--demo", "--K=auto", "-n", "40"],
    "lenient": ["--demo", "--accept=lenient:0.5", "--temperature=1", "-n", "12"],
    "only": ["--demo", "--only=speculative", "--stop=very", "--stream"],
    "only_autoregressive": ["--demo", "--only=autoregressive", "--verbose"],
    "verify": ["--demo", "--verify", "-n", "8"],
    "score": ["--demo", "--score=prompt.txt", "--temperature=1", "--drafter=int8/model"],
    "score_greedy": ["--demo", "--score=prompt.txt", "--K=3", "--verbose"],
    "wrong": ["--demo", "--K=0"],
    "interactive": ["--demo", "--interactive", "--quiet", "-n", "12"],
    "session": ["--demo", "--interactive", "-n", "12"],
}
TYPED = {
    "session": ["The man", "/why", "/accept lenient:0.5 /temperature 1", "The man"],
    "interactive": [
        "\ufeffThe man",
        "/K 8/2 /drafter model/ngram\r",  # as a pipe on Windows ends a line
        "The man\r",
        "/temperature=0.7",
        r"/stop a b /stop \n" + "\r",
        r"// a \n b \\n",
        "/stop off",
        "/stream",
        "/K /dtype",
        "/n 8 /t 1 /s 4",
        "/only speculative",
        "/only off",
        "/p The man",
        "/?",
        "/k 4",
    ],
}


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(name, command, clock, tmp_path, monkeypatch, request):
    """Standard output, then the last line of standard error."""
    words = SCREENS[name]
    type_in(monkeypatch, *(TYPED.get(name, [])))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text(DEMO["prompt"], encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.setattr(modes, "verify", partial(modes.verify, draws=10))
    monkeypatch.setenv("COLUMNS", "200")  # of which a paragraph uses 110
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


@pytest.mark.parametrize("line", ["/quit", "/exit", "quit", "exit"])
def test_a_session_ends_with_its_lines(line, command, pair_words, monkeypatch):
    type_in(monkeypatch, "", line, "the thing in")
    assert command("--interactive", *pair_words)[:2] == (0, "")


def test_what_is_shown_costs_no_time_that_is_counted(pair, clock):
    def watch(name, step):
        clock.now += 100

    records = turns.timed_turns(pair, ["The man"], 12, watch=watch, repeats=1)
    assert all(record.seconds < 1 for record in records)
