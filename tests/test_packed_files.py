"""Packed weights on the disk: the same bits, mapped; what does not fit is left alone, what is damaged refused."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny import HPARAMS, convert, flatten, logits_themselves, random_params

import main
from checkpoints.config import load_hparams
from checkpoints.loading import load_params
from plumbing import checksums
from plumbing.errors import UserError
from speculative.engines import cpu, packed_files, runtime
from speculative.engines.formats import FORMATS
from speculative.engines.models import mapped_model
from speculative.engines.packed import packer
from speculative.engines.plain import CachedModel
from speculative.engines.vocabulary import Shared

pytestmark = pytest.mark.skipif(not cpu.has_numba(), reason="nothing is packed without numba")


@pytest.fixture
def folder(tiny_pair, tmp_path):
    return str(shutil.copytree(tiny_pair / "target", tmp_path / "target"))


def packed(folder, dtype="float32"):
    """-> the path of the file, the hparams, and the parameters that were written."""
    hparams = load_hparams(f"{folder}/hparams.json")
    params = load_params(folder, hparams, packer(dtype))
    return packed_files.save(folder, dtype, params, hparams), hparams, params


def arrays_of(params, hparams):
    arrays = {}
    for name in packed_files.checkpoint_shapes(hparams):
        arrays |= packed_files.parts(name, packed_files.tensor(params, name))
    return arrays


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_mapped_is_what_was_packed(folder, dtype):
    _, hparams, params = packed(folder, dtype)
    mapped = packed_files.find(folder, dtype, hparams)
    expected = arrays_of(params, hparams)
    actual = arrays_of(mapped, hparams)
    assert actual.keys() == expected.keys()
    assert all(np.array_equal(actual[name], expected[name]) for name in expected)
    x = np.arange(9)
    read = CachedModel(params, hparams, logits_themselves, runtime.new_pass)
    assert np.array_equal(mapped_model(mapped, hparams, logits_themselves, "")(x, 5), read(x, 5))


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_tensor_of_a_deep_model_is_taken_for_another(folder, dtype):
    hparams = HPARAMS | {"n_layer": 12}
    written = flatten(convert(random_params(hparams), packer(dtype)))
    packed_files.save(folder, dtype, convert(random_params(hparams), packer(dtype)), hparams)
    found = flatten(packed_files.find(folder, dtype, hparams))
    assert found.keys() == written.keys()
    for name in written:
        for part, array in packed_files.parts(name, written[name]).items():
            assert np.array_equal(packed_files.parts(name, found[name])[part], array), part


def test_a_draft_whose_vocabulary_has_another_end_is_mapped(folder):
    """Of the target's other tokens it gives -inf, which is no fault of its weights."""
    _, hparams, params = packed(folder)
    shared = Shared(hparams["n_vocab"] - 3, hparams["n_vocab"] + 2, unknown=0)
    hparams = hparams | {"shared": shared}
    draft = mapped_model(packed_files.find(folder, "float32", hparams), hparams, logits_themselves, "")
    read = CachedModel(params, hparams, logits_themselves, runtime.new_pass)
    assert np.array_equal(draft([1, 2], 2), read([1, 2], 2))


def test_a_file_that_does_not_fit_is_not_used_and_a_line_says_so(folder, capsys):
    path, hparams, _ = packed(folder)
    assert packed_files.find(folder, "int8", hparams) is None
    assert capsys.readouterr().err == ""
    weights = f"{folder}/model.safetensors"
    for change in (touch, change_and_keep_the_time, note_all_but_the_packed):
        change(weights)
        packed_files.say_it_does_not_fit.cache_clear()
        assert packed_files.find(folder, "float32", hparams) is None
        assert capsys.readouterr().err.startswith(f"{path} is not known to be of these weights and for this CPU")
        assert packed(folder)[0] == path
        assert packed_files.find(folder, "float32", hparams)


def touch(path):
    os.utime(path, (1, 1))


def change_and_keep_the_time(path):
    time = os.stat(path).st_mtime_ns
    content = bytearray(Path(path).read_bytes())
    content[-1] ^= 1
    Path(path).write_bytes(content)
    os.utime(path, ns=(time, time))


def note_all_but_the_packed(path):
    folder = os.path.dirname(path)
    names = [name for name in os.listdir(folder) if not name.startswith("packed-")]
    checksums.note(folder, {name: checksums.describe(f"{folder}/{name}") for name in names})


def test_each_format_has_a_fingerprint_of_its_own(folder, capsys):
    assert len({packed_files.fingerprint(dtype) for dtype in FORMATS}) == len(FORMATS)
    path, hparams, _ = packed(folder)
    of_another_cpu = {"packing": packed_files.fingerprint("int8")}
    rewritten(path, lambda header, data: header["__metadata__"].update(of_another_cpu))
    assert packed_files.find(folder, "float32", hparams) is None
    assert "for this CPU, and not used" in capsys.readouterr().err


def rewritten(path, change):
    """Changes a safetensors file: change(header, data), data being a bytearray."""
    content = Path(path).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    data = bytearray(content[begin:])
    change(header, data)
    text = json.dumps(header).encode()
    text += b" " * (begin - 8 - len(text))
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


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
        (lambda header, data: header["ln_f/g"].update(dtype="I32"), "tensor 'ln_f/g' is I32"),
        (lambda header, data: header["ln_f/g"].update(shape=[1, 32]), OTHERS),
        (lambda header, data: header.update({"ln_f/h": header.pop("ln_f/g")}), OTHERS),
        (lambda header, data: data.pop(), "damaged, or not a safetensors file"),
    ],
)
def test_a_damaged_file_is_refused_in_a_line(folder, change, fault):
    path, hparams, _ = packed(folder)
    rewritten(path, change)
    with pytest.raises(UserError, match=fault) as error:
        packed_files.find(folder, "float32", hparams)
    assert f"{path}: " in str(error.value) and str(error.value).endswith(f"; delete {path} and run again")
    assert "\n" not in str(error.value)


def test_infinity_among_the_tiles_shows_in_a_pass(folder):
    path, hparams, _ = packed(folder)
    rewritten(path, begins_with("h0/mlp/c_fc/w/tiles", np.inf))
    with pytest.raises(UserError, match="the packed weights hold NaN or infinity"):
        mapped_model(packed_files.find(folder, "float32", hparams), hparams, logits_themselves, path)


def test_a_noted_file_is_compared_and_may_be_deleted(folder):
    note_all_but_the_packed(f"{folder}/model.safetensors")
    path, hparams, _ = packed(folder)
    assert os.path.basename(path) in checksums.noted(folder)
    assert packed_files.find(folder, "float32", hparams)
    content = bytearray(Path(path).read_bytes())
    content[-1] ^= 1
    Path(path).write_bytes(content)
    with pytest.raises(UserError, match="its sha256 is not the one in"):
        packed_files.find(folder, "float32", hparams)
    os.remove(path)
    assert load_params(folder, hparams)


def test_a_file_has_its_name_only_when_it_is_noted(folder):
    hparams = load_hparams(f"{folder}/hparams.json")
    params = load_params(folder, hparams, packer("float32"))
    Path(folder, "checksums.json").write_text("{")
    before = sorted(os.listdir(folder))
    with pytest.raises(UserError, match="damaged"):
        packed_files.save(folder, "float32", params, hparams)
    assert sorted(os.listdir(folder)) == before


def test_what_a_killed_run_had_begun_is_removed(folder):
    parts = [Path(folder, f".{name}.part", "packed-int8.safetensors") for name in ("old", "new")]
    for part in parts:
        part.parent.mkdir()
        part.write_text("half")
    os.utime(parts[0], (1, 1))
    packed_files.discard_left_over(folder)
    assert not parts[0].parent.exists() and parts[1].exists()


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
            assert len(there) == 2 and os.path.isfile(packed_files.path_of(f"{models}/target", "float32"))
    assert out and f"target: mapped from {models}/target/packed-float32.safetensors" in err
    assert f"draft: mapped from {models}/draft/packed-int8.safetensors" in err
    assert texts[0] == texts[3] and texts[1] == texts[2] == []


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
