"""A model that has an official name and is not the official one says so in its folder and in a run."""

import json
import shutil

import pytest
from conftest import MODELS
from tiny import refusal

import main
import utils
from speculative.support import checksums

SMALL = MODELS / "tiny-draft"
WORDS = "it computes what tiny-draft does"


@pytest.fixture
def folder(tmp_path):
    """A stand-in for 124M."""
    folder = tmp_path / "124M"
    shutil.copytree(SMALL, folder)
    checksums.note(folder, {}, stand_in=WORDS)
    return folder


def test_the_note_keeps_it_and_it_is_not_held_against_the_official_files(folder, capsys):
    assert (checksums.stand_in(folder), checksums.stand_in(SMALL)) == (WORDS, "")
    assert checksums.noted(folder) == checksums.noted(SMALL)
    checksums.note(folder, {"hparams.json": checksums.describe(folder / "hparams.json")})
    check = ["check", "124M", "--models_dir", str(folder.parent)]
    utils.main(check)
    out = capsys.readouterr().out
    assert out.startswith(f"{folder} is a stand-in: {WORDS}\n")
    assert "DAMAGED" not in out
    assert out.count("ok  ") == 4
    shutil.copy(SMALL / checksums.NAME, folder)  # without these words it is
    with pytest.raises(SystemExit):
        utils.main(check)
    assert "encoder.json: not the official file" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["\x1b[2J", "two\nlines", "x" * 201, 5, {"bytes": 1}, None])
def test_what_cannot_be_shown_is_refused(folder, words):
    (folder / checksums.NAME).write_text(json.dumps({checksums.STAND_IN: words}), encoding="utf-8")
    assert "checksums.json: damaged" in refusal(checksums.stand_in, folder)


def test_a_run_names_a_stand_in(folder, tmp_path, capsys):
    paths = tmp_path / "run.json", tmp_path / "run.html"
    shutil.copytree(SMALL, tmp_path / "other")
    flags = {"models_dir": str(tmp_path), "target_model_size": "124M", "draft_model_size": "other"}
    main.main(prompt="It was", n_tokens_to_generate=4, json=str(paths[0]), html=str(paths[1]), **flags)
    out = " ".join(capsys.readouterr().out.split())
    assert f"Note: 124M is a stand-in for the official model: {WORDS}." in out
    assert "other is" not in out
    assert json.loads(paths[0].read_text(encoding="utf-8"))["stand_ins"] == {"124M": WORDS}
    assert WORDS in paths[1].read_text(encoding="utf-8")
