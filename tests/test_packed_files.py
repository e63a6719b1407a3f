"""Packed weights on the disk: the same bits, mapped; what does not fit is left alone, what is damaged refused."""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny import HPARAMS, flatten, logits_themselves, random_params

import main
from speculative import load_pair
from speculative.checkpoints import packs
from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.loading import load_params
from speculative.cli.verifying import verify_session
from speculative.engines import packed_files, runtime
from speculative.engines.formats import FORMATS
from speculative.engines.library import library
from speculative.engines.models import load_models, packed_model
from speculative.engines.packed import packer
from speculative.engines.plain import CachedModel
from speculative.engines.vocabulary import Shared
from speculative.loading import Wanted, read_models
from speculative.support import checksums
from speculative.support.errors import UserError

pytestmark = pytest.mark.skipif(not library(), reason="nothing is packed without a compiler")


@pytest.fixture
def folder(tiny_pair, tmp_path):
    return str(shutil.copytree(tiny_pair / "target", tmp_path / "target"))


def packed(folder, dtype="float32", read=load_params):
    """-> the path of the file, and the hparams."""
    hparams = load_hparams(f"{folder}/hparams.json")
    path = packs.path_of(folder, dtype)
    packed_files.save(path, folder, dtype, hparams, partial(read, folder, hparams))
    return path, hparams


def find(folder, hparams, dtype="float32"):
    return packed_files.find(packs.path_of(folder, dtype), folder, dtype, hparams)


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_tensor_of_a_deep_model_is_taken_for_another(folder, dtype):
    hparams = HPARAMS | {"n_layer": 12}
    arrays = flatten(random_params(hparams))
    path = packs.path_of(folder, dtype)

    def read(convert):
        for name, array in arrays.items():
            convert(name, array)

    packed_files.save(path, folder, dtype, hparams, read)
    mapped = packed_files.find(path, folder, dtype, hparams)
    _, different = packed_files.first_difference(mapped, dtype, read, np.random.default_rng(0))
    assert different == ""
    found = flatten(mapped)
    assert found.keys() == arrays.keys()
    pack = packer(dtype)
    for name, array in arrays.items():
        for part, expected in packed_files.parts(name, pack(name, array)).items():
            assert np.array_equal(packed_files.parts(name, found[name])[part], expected), part


def test_a_draft_whose_vocabulary_has_another_end_is_mapped(folder):
    """Of the target's other tokens it gives -inf, which is no fault of its weights."""
    _, hparams = packed(folder)
    params = load_params(folder, hparams, packer("float32"))
    shared = Shared(hparams["n_vocab"] - 3, hparams["n_vocab"] + 2, unknown=0)
    hparams = hparams | {"shared": shared}
    draft = packed_model(find(folder, hparams), hparams, logits_themselves, "the draft")
    read = CachedModel(params, hparams, logits_themselves, runtime.new_pass)
    assert np.array_equal(draft([1, 2], 2), read([1, 2], 2))


def test_a_file_that_does_not_fit_is_not_used_and_a_line_says_so(folder, capsys):
    """Other weights, other settings, and what is no pack at all, a link to another model's weights for example."""
    path, hparams = packed(folder)
    assert find(folder, hparams, "int8") is None
    assert capsys.readouterr().err == ""
    weights = f"{folder}/model.safetensors"
    for change in (touch, change_and_keep_the_time, replace_the_pack):
        change(weights)
        packed_files.say_it_does_not_fit.cache_clear()
        assert find(folder, hparams) is None
        assert capsys.readouterr().err.startswith(f"{path} is not known to be of these weights and for this CPU")
        assert packed(folder)[0] == path
        assert find(folder, hparams)


def replace_the_pack(weights):
    path = packs.path_of(os.path.dirname(weights), "float32")
    os.remove(path)
    os.symlink("model.safetensors", path)


def touch(path):
    os.utime(path, (1, 1))


def change_and_keep_the_time(path, at=-1):
    time = os.stat(path).st_mtime_ns
    content = bytearray(Path(path).read_bytes())
    content[at] ^= 1
    Path(path).write_bytes(content)
    os.utime(path, ns=(time, time))


def test_each_format_has_a_fingerprint_of_its_own(folder, capsys):
    assert len({packed_files.fingerprint(dtype) for dtype in FORMATS}) == len(FORMATS)
    path, hparams = packed(folder)
    of_another_cpu = {"packing": packed_files.fingerprint("int8")}
    rewritten(path, lambda header, data: header["__metadata__"].update(of_another_cpu))
    assert find(folder, hparams) is None
    assert "for this CPU, and not used" in capsys.readouterr().err


def rewritten(path, change):
    """Changes a file of packed weights, and the sum that it says: change(header, data), data being a bytearray."""
    content = Path(path).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    data = bytearray(content[begin:])
    change(header, data)
    text = json.dumps(header).encode()
    text += b" " * (begin - 8 - len(text))
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)
    digits = packs.sum_of(np.fromfile(path, np.uint8)).encode()
    with open(path, "r+b") as f:
        f.seek(packs.DIGITS.start)
        f.write(digits)


def begins_with(name, number):
    """A change that makes this the first number of a tensor."""

    def change(header, data):
        begin = header[name]["data_offsets"][0]
        data[begin : begin + 4] = np.float32(number).tobytes()

    return change


OTHERS = "its tensors are not those of this model"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (begins_with("ln_f/g", np.nan), "tensor 'ln_f/g' holds NaN or infinity"),
        (lambda header, data: header["ln_f/g"].update(dtype="I32"), OTHERS),
        (lambda header, data: header["ln_f/g"].update(shape=[1, 32]), OTHERS),
        (lambda header, data: header.update({"ln_f/h": header.pop("ln_f/g")}), OTHERS),
        (lambda header, data: data.pop(), OTHERS),
    ],
)
def test_a_damaged_file_is_refused_in_a_line(folder, change, fault):
    path, hparams = packed(folder)
    rewritten(path, change)
    with pytest.raises(UserError, match=re.escape(fault)) as error:
        find(folder, hparams)
    assert f"{path}: " in str(error.value)
    assert str(error.value).endswith(f"; delete {path} and run again")
    assert "\n" not in str(error.value)


def test_infinity_among_the_tiles_shows_in_a_pass(folder):
    path, hparams = packed(folder)
    rewritten(path, begins_with("h0/mlp/c_fc/w/tiles", np.inf))
    with pytest.raises(UserError, match="of PACK gives logits that are not finite"):
        packed_model(find(folder, hparams), hparams, logits_themselves, "the model of PACK")


OF_NO_KIND = b"\x12" + bytes(7) + b'{"__metadata__":1}'


@pytest.mark.parametrize("content", [b"", bytes(7), bytes(100), b"\xff" * 100, b"\2\0\0\0\0\0\0\0[]", OF_NO_KIND])
def test_what_is_no_such_file_is_refused_in_a_line(folder, content):
    path, hparams = packed(folder)
    Path(path).write_bytes(content)
    with pytest.raises(UserError, match=f"^{path}: damaged (.*); delete {path} and run again$"):
        find(folder, hparams)


def test_each_bit_counts_and_the_note_is_not_believed_of_another_file(folder):
    path, hparams = packed(folder)
    assert find(folder, hparams)
    assert find(folder, hparams)
    for at in (-1, os.path.getsize(path) // 2):
        change_and_keep_the_time(path, at)
        with pytest.raises(UserError, match="damaged: its sha256 is not the one"):
            find(folder, hparams)
        packed(folder)
    os.remove(path)
    assert find(folder, hparams) is None


@pytest.mark.parametrize("change", [change_and_keep_the_time, touch])
def test_weights_that_change_while_they_are_packed(folder, change):
    """The pack would be of the old ones, and say that it is of the new ones."""
    weights = f"{folder}/model.safetensors"
    before = sorted(os.listdir(folder))

    def read(*arguments):
        load_params(*arguments)
        change(weights)

    with pytest.raises(UserError, match="the weights were changed while they were packed: run --pack again"):
        packed(folder, read=read)
    assert sorted(os.listdir(folder)) == before


def test_check_compares_packs_with_the_weights(folder, capsys):
    path, hparams = packed(folder)
    assert packs.show(folder, folder) == []
    assert capsys.readouterr().out == f"ok       {path}\n"
    # What changed between the places of the sample, and kept size and time, shows in the sha256.
    rewritten(path, lambda header, data: header["__metadata__"].update({"sha256 of model.safetensors": "0" * 64}))
    assert find(folder, hparams)
    assert packs.show(folder, folder) == [path]
    assert "it was made of another" in capsys.readouterr().out
    change_and_keep_the_time(path)
    assert packs.show(folder, folder) == [path]
    assert "its sha256 is not the one that it says it is" in capsys.readouterr().out
    touch(f"{folder}/model.safetensors")
    assert packs.show(folder, folder) == []
    assert capsys.readouterr().out.startswith(f"outdated {path}: it was made of other weights")


@pytest.mark.parametrize("dtype", FORMATS)
def test_tiles_are_packed_anew_to_be_compared(folder, dtype):
    path, hparams = packed(folder, dtype)
    read = partial(load_params, folder, hparams)
    compare = partial(packed_files.first_difference, dtype=dtype, read=read, rng=np.random.default_rng(0))
    n_tiles, different = compare(find(folder, hparams, dtype))
    assert n_tiles > 9
    assert different == ""
    for name in ("h1/mlp/c_fc/w/tiles", "wte/tiles", "ln_f/g"):
        rewritten(path, begins_with(name, 0.25))
        assert compare(find(folder, hparams, dtype))[1] == name.removesuffix("/tiles")
        packed(folder, dtype)


def test_pack_writes_and_the_next_run_maps(tiny_pair, tmp_path, capsys):
    models = str(shutil.copytree(tiny_pair, tmp_path / "models"))
    names = {"models_dir": models, "target_model_size": "target", "draft_model_size": "draft"}
    given = {**names, "prompt": "the thing in", "n_tokens_to_generate": 4, "quiet": False}
    texts = []
    for pack in (False, True, True, False):
        main.main(**given, pack=pack)
        out, err = capsys.readouterr()
        texts.append([line for line in out.splitlines() if line.startswith("Text")])
        if pack:
            there = [line.rpartition(":")[0] or line for line in out.splitlines()]
            assert len(there) == 2
            assert os.path.isfile(packs.path_of(f"{models}/target", "float32"))
    assert out
    assert f"target: mapped from {models}/target/packed-float32.safetensors" in err
    assert f"draft: mapped from {models}/draft/packed-int8.safetensors" in err
    assert texts[0] == texts[3]
    assert texts[1] == texts[2] == []


def test_large_weights_are_compared_once_until_they_change(tmp_path):
    path = str(tmp_path / "model.safetensors")
    with open(path, "wb") as f:
        f.truncate(checksums.MOST_SMALL + 1)
    checksums.note(tmp_path, {"model.safetensors": checksums.describe(path)})

    def compare():
        with checksums.compared(str(tmp_path), ["model.safetensors"], lambda path, fault: UserError(fault)):
            pass

    compare()
    verified = checksums.read_verified(str(tmp_path))
    about = checksums.noted(tmp_path)["model.safetensors"]
    assert verified == {"model.safetensors": checksums.state(path, about)}
    with open(path, "r+b") as f:
        f.write(b"x")
    with pytest.raises(UserError, match="damaged"):
        compare()
    # What verified.json says of this very state is believed; anything else in it is not.
    checksums.keep_verified(str(tmp_path), {"model.safetensors": checksums.state(path, about)})
    compare()
    for content in ("", "[]", "{", '{"model.safetensors": 1}'):
        (tmp_path / checksums.VERIFIED).write_text(content)
        with pytest.raises(UserError, match="damaged"):
            compare()
    os.remove(tmp_path / checksums.VERIFIED)
    os.mkfifo(tmp_path / checksums.VERIFIED)  # where nobody is at the other end
    checksums.keep_verified(str(tmp_path), {})
    with pytest.raises(UserError, match="damaged"):
        compare()


@pytest.mark.parametrize(("slow", "quiet", "said"), [(0, False, True), (60, False, False), (0, True, False)])
def test_a_slow_start_says_what_a_pack_would_save(folder, slow, quiet, said, capsys):
    hparams = load_hparams(f"{folder}/hparams.json")
    wanted = [Wanted(need, "target", dtype, None, hparams) for need, dtype in (("target", "float32"), ("copy", "int8"))]
    to_probs = dict.fromkeys(("target", "copy"), logits_themselves)
    assert read_models(wanted, folder, load_models, to_probs, quiet, slow).keys() == {"target", "copy"}
    line = r"^target: read and packed in \d+ s; --pack, given once, saves most of it at each start, for 0\.0 GB"
    assert bool(re.search(line, capsys.readouterr().err, re.MULTILINE)) == said


def test_unpack_removes_what_pack_has_written(tiny_pair, tmp_path, command):
    models = shutil.copytree(tiny_pair, tmp_path / "models")
    (models / "target/packed-mine.safetensors").write_bytes(b"a user's own file")
    before = sorted(models.rglob("*"))
    words = [f"--models_dir={models}", "--target_model_size=target", "--draft_model_size=draft"]
    for pack in (["--pack"], ["--pack", "--dtype=int4"]):
        assert command(*words, *pack)[0] == 0
    status, out, err = command(*words, "--unpack")
    assert (status, err, out.count("removed ")) == (0, "", 3)
    assert f"{models}/target/packed-int4.safetensors: " in out
    assert sorted(set(models.rglob("*")) - {models / "target/verified.json", models / "draft/verified.json"}) == before
    status, out, _ = command(*words, "--unpack")
    assert status == 0
    assert f"{models}/draft has no packed weights" in out
    assert "--pack" in command(*words, "--unpack", "--pack")[2]


def test_packs_of_what_lies_in_the_cache_of_hugging_face_go_elsewhere(tiny_pair, tmp_path, set_variable, command):
    set_variable("HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "a" * 40
    theirs = tmp_path / "hub/models--owner--name"
    shutil.copytree(tiny_pair / "target", theirs / "snapshots" / commit)
    (theirs / "refs").mkdir()
    (theirs / "refs/main").write_text(commit)
    before = sorted(theirs.rglob("*"))
    words = [f"--models_dir={tmp_path / 'models'}", "--target_model_size=owner/name", "--drafter=prompt_lookup"]
    own = tmp_path / "models/owner/name/packed-float32.safetensors"
    assert command(*words, "--pack")[:2] == (0, f"{own}: 0 MB\n")
    status, _, err = command(*words, "--prompt=the", "--n_tokens_to_generate=2")
    assert status == 0
    assert f"owner/name: mapped from {own}" in err
    status, out, _ = command(*words, "--unpack")
    assert status == 0
    assert f"removed {own}" in out
    words[1] = f"--target_model_size={theirs / 'snapshots' / commit}"
    status, _, err = command(*words, "--pack")
    assert status == 2
    assert "is Hugging Face's, where nothing is written: name the model OWNER/NAME" in err
    assert sorted(theirs.rglob("*")) == before


def test_verify_compares_packs_and_says_what_it_does_not_cover(tiny_pair, tmp_path, command, capsys):
    models = shutil.copytree(tiny_pair, tmp_path / "models")
    words = [f"--models_dir={models}", "--target_model_size=target", "--draft_model_size=draft", "--prompt=the"]
    assert command(*words, "--pack")[0] == 0
    path = models / "target/packed-float32.safetensors"
    rewritten(path, begins_with("h0/mlp/c_fc/w/tiles", 0.25))
    pair = load_pair("draft", "target", models_dir=models, threads=1, n_tokens_to_generate=2)
    with pytest.raises(SystemExit) as end:
        verify_session(pair, "the", (), draws=10)
    out = capsys.readouterr().out
    assert end.value.code == 1
    assert f"FAILED  packed: {path}: tensor h0/mlp/c_fc/w is not what packing makes" in out
    assert f"tiles of {models}/draft/packed-int8.safetensors are what packing makes of the weights" in out
    assert re.search("^Not covered: the weights, tokens and settings themselves", out, re.MULTILINE)
