"""Refusals: a line that was typed, or a call in Python, and the one line that says what would be right.

In refusals.txt the words of a command line follow $, a line of a session follows >, and a{9} is nine times a. After a
change that is meant: pytest tests/cli/test_refusals.py --update-golden."""

import os
import pickle
import re
from copy import deepcopy
from pathlib import Path

import pytest
from tiny import refusal, type_in

from speculative import __main__, load_pair
from speculative.cli import command

FILE = Path(__file__).with_name("refusals.txt")
REFUSED = re.findall("^([$>]) (.*)\n(.*)", FILE.read_text(), re.MULTILINE)


def written_out(text):
    text = re.sub(r"(\w)\{(\d+)\}", lambda match: match[1] * int(match[2]), text)
    return text.encode().decode("unicode_escape")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with files of each bad kind."""
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("the thing in", encoding="utf-8")
    Path("blank.txt").write_text(" \n\t\n")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    Path("long.txt").write_text("a word " * 150_000)
    Path("page").write_text("<!DOCTYPE html>")
    for name in (
        "gpt2.Q4_K_M.gguf",
        "pytorch_model.bin",
        "ckpt.pt",
        "model.ckpt",
        "gpt2.zip",
        "weights.npz",
        "weights.npy",
        "model.nemo",
    ):
        Path(name).write_bytes(b"of another program")
    Path("model.safetensors.crdownload").write_bytes(bytes(9))
    Path("dir").mkdir()
    return tmp_path


@pytest.mark.parametrize(("sign", "typed", "said"), REFUSED)
def test_a_line_is_refused_in_a_line(sign, typed, said, command, pair_words, tiny_pair, folder, monkeypatch, request):
    before = sorted(os.listdir(folder))
    type_in(monkeypatch, "/K 5", written_out(typed))
    words = [written_out(word) for word in typed.replace("PAIR", str(tiny_pair)).split(" ")]
    words = words if sign == "$" else ["--interactive"]
    given = {re.match(r"--(\w+)|", word)[1] for word in words}
    if "jax" in words:
        pytest.importorskip("jax")
        given.add("threads")
    more = [word for word in pair_words if word[2:].partition("=")[0] not in given] if "demo" not in given else []
    status, out, err = command(*words, *more)
    assert (status, out) == (2, "" if sign == "$" else "K = 5\n")
    assert err[:-1].isprintable()
    assert sorted(os.listdir(folder)) == before
    line = re.sub(r"1 to \d+ can", "1 to # can", err.replace(str(tiny_pair), "PAIR"))
    if request.config.getoption("--update-golden"):
        FILE.write_text(FILE.read_text().replace(f"{sign} {typed}\n{said}\n", f"{sign} {typed}\n{line}"))
    else:
        assert line == f"{said}\n"


CALLS = [
    (lambda pair: load_pair(k=4), "unknown option k; did you mean K?"),
    (lambda pair: load_pair(html="a.html"), "unknown option html"),
    (lambda pair: load_pair(K=True), "K must be a whole number"),
    (lambda pair: load_pair(K=(8, 0), drafter="model/ngram"), "K must be a whole number from 1 to 1024"),
    (lambda pair: load_pair(K=()), "K must be a whole number from 1 to 1024"),
    (lambda pair: load_pair(tree=[2, 2], K=5), "K and tree cannot be combined: give one of them"),
    (lambda pair: load_pair(stop=["a", ""]), "stop must be a text that is not empty, or left out, not ['a', '']"),
    (lambda pair: load_pair(stop=["a", 1]), "stop must be a text in UTF-8, not ['a', 1]"),
    (lambda pair: load_pair(target_model_size="./a\nb"), r"./a\nb does not exist"),
    (lambda pair: load_pair(prompt="a"), "load_pair takes no prompt: give it to session.compare or session.sp"),
    # ---- a session: with the call, and not with the first step
    (lambda pair: pair.changed(dtype="int8"), "dtype cannot change while models are loaded: start again with it"),
    (lambda pair: pair.compare(5, 4), "the prompt must be a text in UTF-8, not 5"),
    (lambda pair: pair.compare("a", 0), "n_tokens_to_generate must be a whole number of at least 1, not 0"),
    (lambda pair: pair.speculative("a", "many"), "n_tokens_to_generate must be a whole number"),
    (lambda pair: pair.speculative("a", 4000), "shorten the prompt or lower n_tokens_to_generate"),
    (lambda pair: pair.compare("a", 4000), "shorten the prompt or lower n_tokens_to_generate"),
    (lambda pair: pair.speculative("a", 4, sample=-1), "sample must be a whole number of at least 0, not -1"),
    (lambda pair: pair.score(5), "the text must be a text in UTF-8, not 5"),
    (lambda pair: pair.score(""), "the text should have two tokens or more: the first has nothing before it"),
    (lambda pair: pair.score("It"), "the text should have two tokens or more: the first has nothing before it"),
    (deepcopy, "loaded models are neither copied nor pickled, "),
    (pickle.dumps, "loaded models are neither copied nor pickled, "),
    (lambda pair: pair.compare("a", 1).page("/"), "cannot write to /: it is a folder"),
]


@pytest.mark.parametrize(("call", "said"), CALLS)
def test_python_is_refused_in_its_own_words(call, said, pair):
    line = refusal(call, pair)
    assert said in line
    assert "--" not in line


def test_the_commands_that_a_mistyped_one_gets_are_those_that_there_are():
    assert {*command.COMMANDS} == {*__main__.COMMANDS}
