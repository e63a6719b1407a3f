"""The words about things that take long and things that are no command, and how much they quote."""

import re

import numpy as np
import pytest
from tiny import python

from speculative import load_pair
from speculative.support import exits, patience


def test_without_a_terminal_there_is_a_line_at_the_start_and_one_at_the_end_of_what_takes_long(capsys):
    with patience.lines("reading", at_once=1e6):
        pass
    assert capsys.readouterr().err == ""
    with patience.lines("reading", at_once=0):
        while "reading ...\n" not in capsys.readouterr().err:
            pass
    assert re.fullmatch(r"reading: done in \d+ s\n", capsys.readouterr().err)


@pytest.mark.slow
def test_what_is_no_command_of_its_own_says_which_is():
    done = python("-m", "benchmarks.peers", "--rounds", "4")
    assert (done.returncode, done.stderr) == (2, "error: this is measured by python -m benchmarks.kernels --peers\n")


@pytest.mark.parametrize("path", ["a" * 5000, "a b/" * 1250])
def test_no_path_of_thousands_of_characters_is_quoted_whole(path, capsys):
    with pytest.raises(SystemExit):
        exits.fail(f"error: cannot write to {path}: it is full", 2)
    said = capsys.readouterr().err
    assert len(said) < 900
    assert said.startswith("error: cannot write to a")
    assert said.endswith("it is full\n")


def test_an_empty_text_from_python_is_told_how_to_begin():
    pair = load_pair("tiny-draft", "tiny-target", K=4, temperature=0).pair
    for decode in (pair.autoregressive, pair.speculative):
        with pytest.raises(ValueError, match=r"an empty text begins with <.endoftext.>"):
            list(decode(pair.encoder.encode(""), 5, np.random.default_rng(0)))
