"""The files that a run writes beside a model without being asked: own names alone, whatever links a folder holds."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import write_safetensors, write_small_files
from tiny import python, refusal

from speculative.checkpoints.tensors import checkpoint_shapes
from speculative.engines.library import library
from speculative.support import checksums, files
from speculative.support.errors import UserError

OWN = ("verified.json", "checksums.json", "packed-float32.safetensors", "packed-int8.safetensors")

# Runs commands, and tells of every file that they opened to write, whoever did.
SPY = """
import json, os, sys
import main, utils
wanted = os.O_WRONLY | os.O_RDWR
opened = open(sys.argv[1], "w")
def spy(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)) and args[2] & wanted:
        print(os.fsdecode(args[0]), file=opened, flush=True)
sys.addaudithook(spy)
for words in json.loads(sys.argv[2]):
    utils.main(words) if words[0] == "check" else main.run(main.main, main.__doc__, words)
"""


def noted(folder, *names):
    checksums.note(folder, {name: checksums.describe(folder / name) for name in names})


@pytest.fixture
def models(tiny_hparams, tmp_path):
    """A target whose weights are large enough to be noted as verified, and a draft. A clone could hold such links."""
    (tmp_path / "precious").write_text("precious")
    rng = np.random.default_rng(0)
    for name, n_ctx in (("target", 2**16), ("draft", 64)):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        hparams = tiny_hparams | {"n_ctx": n_ctx, "n_embd": 80}
        arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in checkpoint_shapes(hparams).items()}
        write_safetensors(folder / "model.safetensors", arrays)
        write_small_files(folder, hparams)
        noted(folder, *(path.name for path in folder.iterdir()))
        (folder / "checksums.json").rename(folder / "noted.json")
        (folder / "checksums.json").symlink_to("noted.json")
        for own in OWN:
            if not (folder / own).exists():
                (folder / own).symlink_to("../../precious" if own == checksums.VERIFIED else "../../missing")
    return tmp_path / "models"


@pytest.mark.skipif(not library(), reason="nothing is packed without a compiler")
def test_all_that_a_run_writes_goes_under_its_own_name(models, tmp_path):
    """Each finds what those before it have written."""
    pair = ["--models_dir", str(models), "--target_model_size", "target", "--draft_model_size", "draft"]
    run = [*pair, "--prompt", "the", "--n_tokens_to_generate", "2"]
    commands = [run, [*run, "--pack"], run, ["check", "target", *pair[:2]], [*run, "--pack"]]
    done = python("-c", SPY, str(tmp_path / "opened"), json.dumps(commands))
    assert done.returncode == 0, done.stderr
    opened = [Path(path) for path in (tmp_path / "opened").read_text().splitlines()]
    written = [path for path in opened if path.is_relative_to(models)]
    assert {path.name for path in written} >= {"verified.json", "packed-float32.safetensors"}
    assert [path for path in written if not path.parent.name.endswith(".part")] == []
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "missing").exists()
    for name in OWN:
        assert (models / "target" / name).is_symlink() == (name == "checksums.json" or "int8" in name)
    assert not list(models.glob("*/.*"))


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        assert "it is there, and no file" in refusal(files.write_note, tmp_path / name, "{}")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_nothing_is_kept_beside_a_link_to_the_weights(models, tmp_path):
    """Hugging Face's cache is not ours to write to."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(models / "target" / "noted.json", theirs / "checksums.json")
    (theirs / "model.safetensors").symlink_to(models / "target" / "model.safetensors")
    with checksums.compared(str(theirs), ["model.safetensors"], lambda path, fault: UserError(fault)):
        pass
    assert sorted(os.listdir(theirs)) == ["checksums.json", "model.safetensors"]


def test_what_a_killed_run_had_begun_is_removed(tmp_path):
    """An hour later; what may be somebody else's stays."""
    ours = [tmp_path / f".{i}.part" / name for i, name in enumerate(OWN)]
    others = [tmp_path / ".mixed.part" / "checksums.json", tmp_path / ".mixed.part" / "mine", tmp_path / ".a.part"]
    for path in (*ours, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    ours[0].unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "checksums.json").write_text("{}")
    (tmp_path / ".link.part").symlink_to("elsewhere")
    kept = {".mixed.part", ".a.part", ".link.part", "elsewhere"}
    checksums.clear_left_over(tmp_path)
    assert {*os.listdir(tmp_path)} == kept | {path.parent.name for path in ours}
    hour_ago = time.time() - 3700
    for path in tmp_path.rglob("*"):
        os.utime(path, (hour_ago, hour_ago), follow_symlinks=False)
    checksums.clear_left_over(tmp_path)
    assert {*os.listdir(tmp_path)} == kept
    assert json.loads((elsewhere / "checksums.json").read_text()) == {}
