"""--interactive: lines as prompts, lines that change a flag, and a session at a real terminal."""

import io
import os
import re
import select
import subprocess
import sys
import time

import pytest
from tiny import ROOT, refusal

import main
from speculative.cli.flags import all_flags


@pytest.fixture
def flags(tiny_pair):
    models = {"target_model_size": "target", "draft_model_size": "draft", "models_dir": str(tiny_pair)}
    return models | {"threads": "1", "n_tokens_to_generate": "12"}


@pytest.fixture
def session(flags, monkeypatch, capsys):
    """lines -> what main.py --interactive prints for them."""

    def session(*lines, **more):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        main.main(interactive="True", **flags | more)
        return capsys.readouterr().out

    return session


def test_each_line_is_printed_as_main_prints_it(session, flags, capsys):
    prompts = ["the thing in", "another one", "the thing in"]
    lines = iter(session(*prompts, quiet="True").split("\nAutoregressive")[1:])
    for prompt in prompts:
        main.main(prompt=prompt, quiet="True", **flags)
        alone = capsys.readouterr().out.removeprefix("\nAutoregressive")
        assert re.sub(r"\d+\.\d\d", "", next(lines)) == re.sub(r"\d+\.\d\d", "", alone)
    assert "Acceptance rate r" in session("the thing in")


def test_a_flag_changes_for_the_lines_after_it(session, flags, capsys):
    lines = ["/drafter model/ngram", "/K 8/2", "/temperature 1", "/top_p 0.9", "/quiet"]
    out = session(*lines, "the", "/temperature", "the")
    said = "drafter = model/ngram\nK = 8/2\ntemperature = 1\ntop_p = 0.9\nquiet = True\n"
    assert out.startswith(said)
    assert "temperature = 0.0\n" in out
    changed = {"K": "8/2", "top_p": "0.9", "drafter": "model/ngram", "quiet": "True"}
    main.main(prompt="the", temperature="1", **changed, **flags)
    main.main(prompt="the", **{name: value for name, value in changed.items() if name != "top_p"}, **flags)
    sampled_and_greedy = capsys.readouterr().out
    assert "quiet = False" in session("/quiet", "/quiet")
    clock = re.compile(r"\d+\.\d\ds")
    assert clock.sub("", out.removeprefix(said).replace("temperature = 0.0\n", "")) == clock.sub("", sampled_and_greedy)


def test_several_flags_stand_on_one_line(session):
    out = session("/K=8/4 /drafter self/model", "/stop a b /c", "/quiet /temperature 1", "/stop")
    assert out == "K = 8/4\ndrafter = self/model\nstop = a b /c\nquiet = True\ntemperature = 1\nstop = None\n"


@pytest.mark.parametrize("line", ["/quit", "/exit", " /quit "[1:]])
def test_a_session_ends_where_it_is_told_to(session, line):
    assert session(line, "the thing in") == ""


def test_help_lists_what_can_change(session):
    out = session("/help", K="7")
    assert session("/", K="7") == out
    for name, flag in all_flags().items():
        assert (f"  /{name:21} {flag.help_now()} [" in out) == flag.live
    assert "the rule of acceptance: token, block" in out
    assert "[7]" in out
    assert "/dtype" not in out
    assert "/models_dir" not in out


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/k 8", "unknown flag --k: did you mean --K?"),
        ("/K 0", "--K must be a whole number of at least 1, or auto"),
        ("/dtype int8", "--dtype cannot change while models are loaded: start again with it"),
        ("--temperature 1 Hello", "a line is a prompt: flags change with a line like /temperature 1"),
        ("-K 4", "a line is a prompt: flags change with a line like"),
        ("/quit /K 4", "/quit stands alone on its line"),
        ("/stop a /K 4 /stop b", "--stop is given twice"),
        ("/tree 2,2", "--K and --tree cannot be combined: give one of them"),
        ("x" * 120, "the prompt's 120 tokens and 12 more exceed the context of 128 tokens"),
        ("half a pair \udcff", "a line must be text in UTF-8"),
        ("x" * 2**20, "a line must be at most 1,048,576 characters"),
    ],
)
def test_what_is_wrong_ends_a_session_that_nobody_types(session, line, why):
    assert refusal(session, "/K 5", line).startswith(why)


def test_what_it_does_not_go_with(session):
    for other in ({"prompt": "a"}, {"json": "a.json"}, {"verify": "True"}, {"unconditional": "True"}):
        assert "cannot be combined" in refusal(session, **other)


def test_no_standard_input(pair_words, command, monkeypatch):
    """Nobody sits there: Python has no sys.stdin where it is closed."""
    monkeypatch.setattr(sys, "stdin", None)
    status, out, err = command("--interactive", *pair_words)
    assert (status, out) == (0, "")
    assert "error" not in err


class Terminal:
    """main.py at a terminal of its own."""

    def __init__(self, *words):
        self.main, other = os.openpty()
        ends = {"stdin": other, "stdout": other, "stderr": other}
        own = {"start_new_session": True, "preexec_fn": owns_terminal}
        self.process = subprocess.Popen([sys.executable, "main.py", *words], cwd=ROOT, **ends, **own)
        os.close(other)
        self.shown = ""

    def until(self, text, seconds=120):
        """Waits until this is shown."""
        end = time.monotonic() + seconds
        while text not in self.shown and time.monotonic() < end:
            if select.select([self.main], [], [], 1)[0]:
                try:
                    self.shown += os.read(self.main, 65536).decode(errors="replace").replace("\r\n", "\n")
                except OSError:  # it has ended
                    break
        assert text in self.shown, self.shown
        self.shown = self.shown.partition(text)[2]

    def ask(self, text, *answers):
        """Types this at the next prompt, and waits for each answer."""
        self.until("> ")
        os.write(self.main, text.encode())
        for answer in answers:
            self.until(answer)


def owns_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal")
def test_at_a_terminal(pair_words):
    """On a busy machine Python may hear Ctrl-C too late, and the session ends: then it is tried once more."""
    for tries_left in (2, 1, 0):
        try:
            return whole_session(pair_words)
        except AssertionError:
            if not tries_left:
                raise


def whole_session(pair_words):
    """Mistakes, Ctrl-C at the prompt and while decoding, the history, Ctrl-D."""
    terminal = Terminal("--interactive", "--n_tokens_to_generate=100", "--stream", *pair_words)
    terminal.ask("/K 0\r", "error: --K must be a whole number")
    terminal.ask("half a line\x03")
    terminal.ask("/n_samples 100000\r", "n_samples = 100000\n")
    terminal.ask("the thing\r", "Text = the thing")
    os.write(terminal.main, b"\x03")
    terminal.ask("/n_samples\r", "n_samples = 1\n")
    terminal.ask("\x1b[A\r", "n_samples = 1\n")  # the line above
    terminal.ask("the thing\r", "Acceptance rate r = ")
    terminal.ask("\x04")
    assert terminal.process.wait(60) == 0
