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
    Path("blank.txt").write_text(" \n\t\n")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    Path("long.txt").write_text("a word " * 150_000)
    Path("dir").mkdir()
    Path("loop").symlink_to("loop")
    return tmp_path


NO_TEXTS = ["missing", "/dev/null", "blank.txt", "latin1.txt", "dir", "loop", "a" * 300, "no\x1b\x9b\u202e\udcff\nfile"]
NO_MODELS = [f"{name} --target_model_size x" for name in ("missing", "prompt.txt", "loop", "a" * 300, "\udcff")]

# A command line stands between two |. test_options.py has more that are wrong in themselves.
BAD = {
    "words": "--bogus|--__class__ 1|--help2|--threads 1000000000|-|--|-- --trace|-- --interactive|--demo - x",
    "prompt file": "|".join(f"--prompt_file {name}" for name in NO_TEXTS),
    "n-gram text": "|".join(f"--drafter ngram --ngram_text {name}" for name in NO_TEXTS),
    "too long": f"--prompt_file long.txt|--prompt {'x' * 127}|--n_tokens_to_generate {10**17}|--verify --K 99",
    "model": "--target_model_size 125M|--target_model_size ../124M|--target_model_size /|--draft_model_size a\nb",
    "models_dir": "|".join(f"--models_dir {name}" for name in NO_MODELS),
    "output": "--json dir|--html loop/a|--html missing/a|--json a --html dir/../a",
    "overwritten": "--prompt_file prompt.txt --json dir/../prompt.txt|--json PAIR/draft/hparams.json"
    "|--drafter ngram --ngram_text prompt.txt --html prompt.txt|--json PAIR/target/hparams.json",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line(kind, command, pair_words, tiny_pair, folder):
    before = sorted(os.listdir(folder))
    for line in BAD[kind].split("|"):
        words = line.replace("PAIR", str(tiny_pair)).split(" ")
        names = {re.match(r"--(\w+)|", word)[1] for word in words}
        status, out, err = command(*words, *(word for word in pair_words if word[2:].partition("=")[0] not in names))
        assert (status, out) == (2, ""), (words, status, out, err)
        assert re.fullmatch("error: (.*)\n", err), (words, err)
        assert err[:-1].isprintable()
    assert sorted(os.listdir(folder)) == before


C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "ascii"}, pytest.param(C_LOCALE, marks=pytest.mark.slow)])
def test_a_terminal_that_knows_ascii_alone(env, pair_words):
    words = [*pair_words, "--prompt", "thé".encode(), "--verbose", "--n_tokens_to_generate=9"]
    done = python("main.py", *words, env=os.environ | env)
    assert done.returncode == 0, done.stderr
    assert "Text = th\\xe9" in done.stdout
    assert "\\u03b1 " in done.stdout
