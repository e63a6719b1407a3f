"""Packs: the same bits, mapped; a changed model has a pack of another name; a damaged one is refused."""

import math
import os
import re
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny import flatten, python, refusal

from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.folder import load_params, look, open_checkpoint
from speculative.checkpoints.weights import checkpoint_shapes
from speculative.engines import formats
from speculative.engines.c import pack_files
from speculative.engines.c.engine import CEngine
from speculative.engines.c.library import compiles
from speculative.engines.c.packing import pack
from speculative.engines.formats import FORMATS
from speculative.report import ending, make_record
from speculative.run import load

pytestmark = pytest.mark.skipif(not compiles(), reason="nothing is packed without a compiler")


@pytest.fixture
def models(tiny_pair, tmp_path):
    return shutil.copytree(tiny_pair, tmp_path / "models")


def saved(models, dtype="float32"):
    """-> the path of a new pack of the target, and its hparams."""
    folder = str(models / "target")
    hparams = load_hparams(f"{folder}/hparams.json")
    files = open_checkpoint(look(folder))
    path = pack_files.path_of(files, str(models), dtype)
    pack_files.save(path, files.open_weights(hparams), hparams, dtype)
    return Path(path), hparams


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_mapped_is_what_packing_gives(models, dtype):
    path, hparams = saved(models, dtype)
    packed = flatten(load_params(str(models / "target"), hparams, partial(pack, dtype)))
    mapped = flatten(pack_files.load(path, hparams, dtype))
    assert mapped.keys() == packed.keys()
    for name, value in packed.items():
        assert type(mapped[name]) is type(value)
        array, expected = (getattr(one, "tiles", one) for one in (mapped[name], value))
        assert np.array_equal(array, expected)
        assert array.ctypes.data % 64 == 0
    size = formats.model_bytes(dtype, checkpoint_shapes(hparams))
    assert size < os.path.getsize(path) < 1.1 * size + 10_000
    content = path.read_bytes()
    for length in [0, 8, len(content) - 1, *np.random.default_rng(0).integers(0, len(content), 40)]:
        path.write_bytes(content[:length])
        line = refusal(pack_files.load, path, hparams, dtype)
        assert line == f"{path}: " + ("damaged: delete it, and run --pack again" if length else "empty")


def test_the_name_changes_with_all_that_a_pack_depends_on(models):
    def name(dtype="float32"):
        return pack_files.path_of(look(str(models / "target")), str(models), dtype)

    names = [name(), name("int8")]
    weights = models / "target" / "model.safetensors"
    before = os.stat(weights)
    time.sleep(0.05)
    weights.write_bytes(weights.read_bytes()[::-1])  # others of the same size and time
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    names.append(name())
    (models / "target" / "hparams.json").touch()
    names.append(name())
    assert len({*names}) == len(names)


def test_pack_then_run_then_run_without(models, command, monkeypatch):
    monkeypatch.setattr(make_record, "PACK_SECONDS", 0)
    monkeypatch.setattr(ending, "disturbance", lambda times: None)  # a busy machine says nothing of packs
    monkeypatch.setattr(load, "LARGE_BYTES", 0)
    monkeypatch.setattr(CEngine, "copy_is_quick", lambda engine, N, t: math.isinf(N))  # a copy that is packed pays
    words = f"--models_dir={models} --target_model_size=target --draft_model_size=draft --threads=1 --fast"

    def texts(*more):
        status, out, err = command(*words.split(), "--prompt=the", *more)
        assert status == 0
        return [line for line in out.splitlines() if line.startswith("Text = ")], err.count(": mapped from "), out

    before, n_mapped, out = texts()
    assert n_mapped == 0
    saves = rf" The next run begins \d+ s sooner with --pack: \d+ MB in {models}/packed\.$"
    assert re.search(saves, " ".join(out.split()))  # the line may be wrapped
    assert texts("--pack")[2].count(f"to undo --pack, delete {models / 'packed'}") == 3
    assert [path.suffix for path in (models / "packed").iterdir()] == [".pack"] * 3
    *same, out = texts()
    assert same == [before, 3]
    assert "--pack" not in out
    for path in (models / "packed").iterdir():  # as a computer may leave it that loses power
        path.write_bytes(b"")
    assert texts()[:2] == (before, 0)


@pytest.mark.parametrize("damage", ["cut", "longer", "link"])
def test_a_damaged_pack_is_written_anew(damage, models, command):
    words = [f"--models_dir={models}", "--target_model_size=target", "--drafter=prompt_lookup", "--pack"]
    assert command(*words)[0] == 0
    [path] = (models / "packed").iterdir()
    content = path.read_bytes()
    other = models / "other"
    other.write_bytes(content[::-1])
    if damage == "link":
        path.unlink()
        path.symlink_to(other)
    else:
        path.write_bytes(content[:-1] if damage == "cut" else content + b"more")
    assert command(*words)[0] == 0
    assert (path.read_bytes(), path.is_symlink(), other.read_bytes()) == (content, False, content[::-1])


@pytest.mark.skipif(os.name == "nt", reason="Windows cuts no file that is mapped")
def test_a_file_that_is_cut_while_it_is_mapped_ends_the_run_in_one_line(tmp_path):
    (tmp_path / "pack").write_bytes(bytes(10**6))
    code = f"""if True:
        import os
        import numpy as np
        from speculative.checkpoints.disk import mapped
        from speculative.support.errors import guarded
        array = np.frombuffer(mapped("{tmp_path}/pack").content, np.float32)
        os.truncate("{tmp_path}/pack", 1)
        with guarded():
            np.dot(array, array)"""
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: a file was cut while it was read: ")


def test_an_interrupted_pack_leaves_nothing(models, monkeypatch):
    def interrupted(*how):
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_files, "read_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(models)
    assert os.listdir(models / "packed") == []
