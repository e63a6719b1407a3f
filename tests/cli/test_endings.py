"""The ends of commands: a result, or one line that says why there is none; and nothing half-written."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest
from tiny import MAIN, ROOT, python

from speculative.cli import display
from speculative.run.options import Options
from speculative.run.steps import TextStep
from speculative.support.errors import UserError, guarded
from speculative.support.terminal import PRINTABLE

TINY = ["--demo", "--target_model_size=tiny-target"]
ENDINGS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def start(*words):
    """A process that answers Ctrl-C also if these tests run in the background of a shell."""
    default = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return subprocess.Popen([sys.executable, "-u", *words], preexec_fn=default, **pipes)


def end(process, number):
    """Send a signal -> exit status, standard output, standard error."""
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "status"), ENDINGS)
def test_a_signal_ends_a_command_and_takes_back_a_file(number, status, tmp_path):
    code = f"""
import time
from speculative.support import errors, files

def write():
    with files.replacing({str(tmp_path / "file")!r}) as part:
        open(part, "w").write("half")
        print("ready", flush=True)
        time.sleep(600)

with errors.guarded(interrupted="interrupted: and how to go on"):
    write()
"""
    (tmp_path / "file").write_text("old")
    process = start("-c", code)
    assert process.stdout.readline() == "ready\n"
    said = "interrupted: and how to go on\n" if number == signal.SIGINT else ""
    assert end(process, number) == (status, "", said)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("words", ["", "--stream"])
def test_ctrl_c_shows_the_text_so_far(words, pair_words):
    """Thousands of samples would follow."""
    process = start(*MAIN, *pair_words, "--prompt=the", "--n_samples=100000", "--quiet", *words.split())
    assert process.stdout.readline() + process.stdout.readline() == "\nAutoregressive Decode\n"
    time.sleep(0.5)
    status, out, err = end(process, signal.SIGINT)
    assert status == 130
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err
    assert "\nText = the" in out


@pytest.mark.parametrize("run", ["run_path('main.py'", "run_module('speculative', alter_sys=True"])
@pytest.mark.parametrize("module", ["speculative.cli.command", "numpy", "speculative.run.session"])
def test_ctrl_c_during_the_imports_is_one_line(module, run):
    code = f"""
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *others):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["main.py", "--version"]
runpy.{run}, run_name="__main__")
"""
    process = start("-c", code)
    assert process.communicate(timeout=60) == ("", "interrupted\n")
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), ENDINGS)
def test_a_signal_ends_the_server_while_it_decodes(number, status, pair_words):
    process = start("main.py", "--serve=0", *pair_words)
    asking = http.client.HTTPConnection(process.stdout.readline().strip("/\n").removeprefix("http://"))
    asking.request("POST", "/decode", json.dumps({"prompt": "the", "n_tokens_to_generate": "100"}))
    answer = asking.getresponse()
    assert any(line.startswith(b"event: step") for line in answer)
    process.send_signal(number)
    assert b"event: done" not in answer.fp.read()
    assert process.communicate(timeout=60) == ("", "interrupted\n" if number == signal.SIGINT else "")
    assert process.returncode == status


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("a\x1b[2Jb\nc"), r"error: a\x1b[2Jb\nc"),
        (ModuleNotFoundError("No module named 'jax'", name="jax.numpy"), 'pip install -e ".[jax]" -c'),
        (ModuleNotFoundError("No module named 'pandas'", name="pandas"), "pip install pandas"),
        (MemoryError("unable " * 90), " unable ...): take smaller models"),
        (RuntimeError("can't start new thread"), "error: the system starts no more threads (can't start new thread): "),
        (FileNotFoundError(2, "No such file", "a\nfile"), r"error: a\nfile: No such file"),
    ],
    ids=repr,
)
def test_a_foreseen_error_is_one_line(error, line, capsys):
    with pytest.raises(SystemExit, match=r"^2$"), guarded():
        raise error
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


def test_an_unforeseen_error_shows_its_traceback():
    with pytest.raises(ZeroDivisionError), guarded():
        1 / 0  # noqa: B018


@pytest.mark.parametrize(
    ("shell", "word", "status", "said"),
    [
        ('"$@" > /dev/full', "--quiet", 2, "error: cannot write the output: No space left on device\n"),
        ('{ "$@"; echo $? >&2; } | head -c 1', "--stream", 0, "141\n"),
        ('"$@" >&-', "--quiet", 0, ""),
        ('"$@" 2>&-', "--quiet", 0, ""),
        ('"$@" <&-', "--interactive", 0, ""),
    ],
)
def test_a_stream_that_is_full_or_closed(shell, word, status, said):
    done = python(*MAIN, *TINY, "-n", "3", word, shell=shell)
    assert (done.returncode, done.stderr) == (status, said)


def test_an_interruption_before_a_bar_is_told_as_itself(monkeypatch):
    monkeypatch.setattr(display, "tqdm", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), display.Screen(Options(), ["speculative"], ["a"]) as screen:
        screen.show_step("speculative", TextStep([1]))


def test_a_terminal_that_knows_ascii_alone(pair_words):
    words = [*pair_words, "--prompt", "thé".encode(), "--verbose", "--n_tokens_to_generate=9"]
    done = python(*MAIN, *words, env=os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr
    assert "Text = th\\xe9" in done.stdout
    assert "\\u03b1 " in done.stdout


@pytest.mark.parametrize("name", ["json", "html"])
def test_a_file_may_be_standard_output(name):
    """The rest of the output is then on standard error."""
    done = python(*MAIN, *TINY, "-n", "3", f"--{name}", "-")
    assert (done.returncode, done.stderr.count("Text = ")) == (0, 2)
    assert re.fullmatch({"json": r"\{.*\}\n?", "html": "<!doctype html>.*</html>\n"}[name], done.stdout, re.DOTALL)


@pytest.mark.parametrize("words", ["", "--quiet", "--stream", "--verbose"])
def test_no_control_character_of_a_model_reaches_the_terminal(words, command, pair_words, tmp_path):
    """Random models over all bytes write many; the prompt holds the others."""
    path = tmp_path / "prompt.txt"
    path.write_text("".join(map(chr, [*PRINTABLE][::2])), encoding="utf-8")
    flags = ["--prompt_file", str(path), "--n_tokens_to_generate=20", "--temperature=2"]
    status, out, _ = command(*pair_words, *flags, *words.split())
    assert status == 0
    assert not {*out} & {*map(chr, PRINTABLE)}
