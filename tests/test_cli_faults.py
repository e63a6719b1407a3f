"""The command line under bad input and broken streams: it succeeds, or names the fault in one line."""

import os
import re
from pathlib import Path

import pytest
from tiny import python


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with files of each bad kind."""
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("the thing in", encoding="utf-8")
    Path("empty.txt").touch()
    Path("blank.txt").write_text(" \n\t\n")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    Path("binary.txt").write_bytes(bytes(range(256)))
    Path("long.txt").write_text("a word " * 150_000)
    Path("dir").mkdir()
    Path("loop").symlink_to("loop")
    return tmp_path


def is_one_line(line):
    return line.startswith("error: ") and line.endswith("\n") and line[:-1].isprintable()


# ---- Bad input -------------------------------------------------------------------------------------------------------

LONG = "a" * 300
NO_TEXTS = ["missing", "/dev/null", "latin1.txt", "binary.txt", "dir", "no\udcff\nsuch file"]
NO_PROMPTS = [*NO_TEXTS, "empty.txt", "blank.txt", "loop", LONG]

# What stands between | is a command line; test_flags.py has more of what is wrong in itself.
BAD = {
    "flags": "--bogus|--k 4|--__class__ 1|--help2|--self x|--K|--K 4.5|--seed -1|--quiet=1|--threads 1000000000",
    "words": "x|-|--|-- --trace|-- --interactive|--demo - x|--quiet --verbose|--unconditional --prompt a",
    "prompt file": "|".join(f"--prompt_file {name}" for name in NO_PROMPTS),
    "n-gram text": "|".join(f"--drafter ngram --ngram_text {name}" for name in NO_TEXTS),
    "too long": f"--prompt_file long.txt|--prompt {'x' * 127}|--n_tokens_to_generate {10**17}|--verify --K 99",
    "much too long": f"--prompt={chr(0xD7FF) * 10**6}",
    "model": "--target_model_size 125M|--target_model_size ../124M|--target_model_size /|--draft_model_size a\nb",
    "models_dir": "|".join(
        f"--models_dir {name} --target_model_size x" for name in ("missing", "prompt.txt", "loop", LONG, "\udcff")
    ),
    "output": "--json dir|--html loop/a|--html missing/a",
    "written twice": "--json a --html dir/../a",
    "overwritten": "--prompt_file prompt.txt --json dir/../prompt.txt",
    "n-gram text overwritten": "--drafter ngram --ngram_text prompt.txt --html prompt.txt",
    "models overwritten": "--json PAIR/draft/hparams.json|--json PAIR/target/hparams.json",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line(kind, command, pair_words, tiny_pair, folder):
    before = sorted(os.listdir(folder))
    for line in BAD[kind].split("|"):
        words = line.replace("PAIR", str(tiny_pair)).split(" ")
        names = {re.match(r"--(\w+)|", word)[1] for word in words}
        status, out, err = command(*words, *(word for word in pair_words if word[2:].partition("=")[0] not in names))
        assert (status, out) == (2, ""), (words, status, out, err)
        assert is_one_line(err), (words, status, out, err)
    assert sorted(os.listdir(folder)) == before


# ---- Streams ---------------------------------------------------------------------------------------------------------


ASCII = {"PYTHONIOENCODING": "ascii"}
C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("env", [ASCII, pytest.param(C_LOCALE, marks=pytest.mark.slow)])
def test_a_terminal_that_knows_ascii_alone(env, pair_words):
    words = [*pair_words, "--prompt", "thé".encode(), "--verbose", "--n_tokens_to_generate=9"]
    done = python("main.py", *words, env=os.environ | env)
    assert done.returncode == 0, done.stderr
    assert "Text = th\\xe9" in done.stdout
    assert "\\u03b1 " in done.stdout
