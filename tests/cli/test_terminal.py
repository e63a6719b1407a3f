"""At a terminal: texts appear as they are decoded, in colour; a session has Tab, a history and its own commands."""

import io
import os
import re
import select
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tiny import MAIN, ROOT, refusal

from speculative.cli.display import show_ending
from speculative.cli.interactive import Conversation, completions, history_file, interact
from speculative.run.options import FIELDS, Options

pytest.importorskip("readline")
pty = pytest.importorskip("pty")  # which Windows lacks
TIMEOUT = 60  # seconds; of a test that fails


class Terminal:
    """A process at a terminal of its own, and what it has printed."""

    def __init__(self, words, env):
        self.screen = ""
        self.side, theirs = pty.openpty()
        env = {name: value for name, value in (os.environ | env).items() if value is not None}
        self.process = subprocess.Popen(
            [sys.executable, *MAIN, *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env
        )
        os.close(theirs)

    def type(self, keys):
        os.write(self.side, keys.encode())

    def wait_for(self, pattern):
        """Read until the screen has the pattern, which is then taken from it with all before it."""
        end = time.monotonic() + TIMEOUT
        while not (match := re.search(pattern, self.screen, re.DOTALL)):
            assert select.select([self.side], [], [], max(0, end - time.monotonic()))[0], self.screen
            try:
                self.screen += os.read(self.side, 4096).decode(errors="replace")
            except OSError:  # the other side is closed
                raise AssertionError(f"{pattern} is not on the screen: {self.screen}") from None
        self.screen = self.screen[match.end() :]
        return match[0]


@pytest.fixture
def terminal(tmp_path):
    """words -> a Terminal; its history and its cache are of this test."""
    running = []

    def start(*words, **env):
        home = {"XDG_CACHE_HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": None, "HISTFILE": None}
        running.append(Terminal([*words, "--demo", "--target_model_size=tiny-target", "--engine=numpy"], home | env))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()
        os.close(each.side)


def test_a_text_appears_as_it_is_decoded_in_the_colours_of_its_origins(terminal):
    screen = terminal("-n12")
    autoregressive = screen.wait_for(r"Autoregressive Decode.*?Time = ")
    assert autoregressive.count("\x1b[33m") == 12  # yellow: a step each
    assert screen.wait_for(r"Speculative Decode.*?Time = ").count("\x1b[32m") > 0  # green: accepted


def test_quiet_shows_the_bar_and_then_the_blogs_lines(terminal):
    screen = terminal("-n12", "--quiet", "--only=autoregressive")
    screen.wait_for(r"-----\r\n[^\n]*Time = [^\r\n]+\r\nText = ")


def test_a_session_has_tab_and_the_lines_of_the_one_before(terminal, tmp_path):
    screen = terminal("--interactive")
    screen.wait_for("> ")
    screen.type("/tem\t1\n")
    screen.wait_for("temperature = 1")
    screen.type("/temperature hot\n")
    screen.wait_for("error: /temperature must be a number of at least 0, not 'hot'")
    screen.type("quit\n")
    assert screen.process.wait(TIMEOUT) == 0
    assert history_of(tmp_path) == ["/temperature 1", "/temperature hot", "quit"]

    screen = terminal("--interactive")
    screen.wait_for("> ")
    screen.type("\x1b[A\x1b[A\x1b[A\n")  # three lines up
    screen.wait_for("temperature = 1")


def test_an_empty_line_goes_on_from_the_last_text(terminal):
    screen = terminal("--interactive", "-n4")
    screen.wait_for("> ")
    screen.type("\n")
    screen.wait_for("> ")
    screen.type("The man\n")
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen.wait_for(r"Speculative Decode.*?Text = [^\r\n]+"))
    screen.wait_for("> ")
    screen.type("\n")
    screen.wait_for("Decode")
    again = re.sub(r"\x1b\[[0-9;]*m", "", screen.wait_for(r"Text = [^\r\n]+"))
    assert again.startswith(text[text.index("Text = ") :])
    screen.wait_for("> ")


def history_of(folder):
    [file] = folder.glob("*/session_history")
    return [line for line in file.read_text().splitlines() if not line.startswith("_HiStOrY")]


def test_an_empty_line_goes_on_from_no_run_without_a_record():
    texts = []
    conversation = Conversation(SimpleNamespace(options=Options()), lambda session, prompts: texts.append(prompts))
    conversation.go_on()
    assert not texts
    conversation.answer("It was")
    assert texts == [["It was"]]
    assert "no text to go on from: the last run had /quiet, or was interrupted" in refusal(conversation.go_on)


@pytest.mark.parametrize("line", [r"a\nb \\n", r"/p a\nb \\n", r"/K 2 /p a\nb \\n"])
def test_a_prompt_has_its_escapes_read_once(line):
    texts = []
    session = SimpleNamespace(options=Options(), changed=lambda **options: session)
    Conversation(session, lambda session, prompts: texts.append(prompts)).answer(line)
    assert texts == [["a\nb \\n"]]


def test_why_has_no_iterations_of_a_run_without_drafts(pair, capsys):
    record = pair.compare("It was", 8, repeats=1).record
    options = replace(record.options, verbose=True)
    show_ending(replace(record, options=options, speculative=None, figures=None))
    assert "'It'" in capsys.readouterr().out


def test_a_session_explains_help_with_a_word(capsys):
    Conversation(SimpleNamespace(options=Options()), print).answer("/help K")
    assert "/why explains the last run" in capsys.readouterr().out


def test_an_empty_histfile_keeps_no_history(monkeypatch):
    monkeypatch.setenv("HISTFILE", "")
    assert history_file() is None
    monkeypatch.delenv("HISTFILE")
    assert history_file().name == "session_history"


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("", "/temp", ["/temperature "]),
        ("", "/to", ["/top_k ", "/top_p "]),
        ("/K 4 ", "/q", ["/quiet ", "/quit "]),
        ("/K ", "a", ["auto "]),
        ("/K 4 /only ", "s", ["speculative "]),
        ("/fast ", "o", ["on ", "off "]),
        ("/accept=", "lenient", ["lenient:0.5 "]),
        ("It was ", "a", []),
        ("", "the", []),
    ],
)
def test_tab_completes_options_and_values(before, word, expected):
    assert [*completions(before.replace("=", " "), word)] == expected


def test_tab_knows_every_option_that_a_session_changes():
    live = {f"/{name} " for name, f in FIELDS.items() if f.metadata.get("live")}
    assert {*completions("", "/")} == live | {"/help ", "/? ", "/why ", "/quit ", "/exit "}


def test_a_notebook_is_told_what_to_use_instead_of_a_session(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOBase())
    assert "in a notebook take session = load_pair(...)" in refusal(interact, None, None)
