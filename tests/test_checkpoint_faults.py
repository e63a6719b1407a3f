"""Damaged checkpoints: each is refused in one line that names the file, or gives the very arrays that were written.

A safetensors file has no checksum of its own: there a flipped bit of a weight shows in checksums.json alone.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import utils
from checkpoints.config import read_config
from plumbing import checksums
from plumbing.errors import UserError
from speculative.drafters import heads
from utils import TF_DATA, TF_INDEX


@pytest.fixture
def folder(tiny_files, tmp_path):
    """The tiny model under an official name, so that its files are to be deleted and not to be replaced."""
    folder = tmp_path / "124M"
    folder.mkdir()
    for name, content in tiny_files.items():
        (folder / name).write_bytes(content)
    return folder


def load_tf(folder, hparams):
    return utils.load_gpt2_params_from_tf_ckpt(str(folder / "model.ckpt"), hparams)


def load_safetensors(folder, hparams):
    return utils.load_gpt2_params_from_safetensors(folder / "model.safetensors", hparams)


def outcome(load, folder, hparams, arrays):
    """What a load comes to: "intact", "altered", or the line that it is refused with."""
    try:
        params = load(folder, hparams)
    except UserError as error:
        line = str(error)
        assert line.isprintable() and str(folder) in line and "delete " in line and "and run again" in line
        assert len(line.encode("utf-8", "replace")) < 1000
        return line
    blocks = [(f"h{i}", block) for i, block in enumerate(params["blocks"])]
    pairs = [(arrays[f"{h}/{a}/{b}"], block[a][b]) for h, block in blocks for a in ("ln_1", "ln_2") for b in "gb"]
    pairs += [
        (arrays[f"{h}/{a}/{b}/{c}"], block[a][b][c])
        for h, block in blocks
        for a, bs in (("attn", ("c_attn", "c_proj")), ("mlp", ("c_fc", "c_proj")))
        for b in bs
        for c in "wb"
    ]
    pairs += [(arrays["wte"], params["wte"]), (arrays["wpe"], params["wpe"])]
    pairs += [(arrays[f"ln_f/{b}"], params["ln_f"][b]) for b in "gb"]
    assert len(pairs) == len(arrays)
    return "intact" if all(np.array_equal(a, b) for a, b in pairs) else "altered"


def flip(path, content, position, bit):
    path.write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])


@pytest.mark.parametrize("name", [TF_INDEX, TF_DATA])
def test_flipped_bits_of_a_tensorflow_checkpoint(name, folder, tiny_files, tiny_hparams, tiny_arrays):
    """Everything has a checksum over it but the index's last bytes, of which most mean nothing."""
    content, rng = tiny_files[name], np.random.default_rng(0)
    positions = (
        {0, len(content) - 1, *range(len(content) - 48, len(content))} if name == TF_INDEX else {0, len(content) - 1}
    )
    positions |= set(rng.integers(0, len(content), 250).tolist())
    for position in sorted(positions):
        flip(folder / name, content, position, int(rng.integers(8)))
        result = outcome(load_tf, folder, tiny_hparams, tiny_arrays)
        assert name in result or (result == "intact" and name == TF_INDEX and position >= len(content) - 100)


def test_the_damaged_tensor_is_named(folder, tiny_files, tiny_hparams, tiny_arrays):
    content = tiny_files[TF_DATA]
    position = content.index(tiny_arrays["h1/mlp/c_proj/w"].tobytes()) + 77
    flip(folder / TF_DATA, content, position, 3)
    line = outcome(load_tf, folder, tiny_hparams, tiny_arrays)
    assert f"{folder / TF_DATA}: tensor h1/mlp/c_proj/w cannot be used" in line
    assert line.endswith(f"delete {folder / TF_DATA} and run again")


def test_flipped_bits_of_a_safetensors_header(folder, tiny_hparams, tiny_arrays):
    path = folder / "model.safetensors"
    content, rng = path.read_bytes(), np.random.default_rng(0)
    length = 8 + struct.unpack("<Q", content[:8])[0]
    for position in [*range(8), *rng.integers(8, length, 500).tolist()]:
        flip(path, content, position, int(rng.integers(8)))
        result = outcome(load_safetensors, folder, tiny_hparams, tiny_arrays)
        assert result != "altered", position


@pytest.mark.parametrize("name", [TF_INDEX, TF_DATA, "model.safetensors"])
def test_files_cut_short(name, folder, tiny_files, tiny_hparams, tiny_arrays):
    content, rng = tiny_files[name], np.random.default_rng(0)
    for length in [0, 1, 7, 8, 9, len(content) - 1, *rng.integers(0, len(content), 40).tolist()]:
        (folder / name).write_bytes(content[:length])
        load = load_safetensors if name == "model.safetensors" else load_tf
        assert name in outcome(load, folder, tiny_hparams, tiny_arrays)


@pytest.mark.parametrize("name", ["hparams.json", "encoder.json", "vocab.bpe", TF_INDEX])
def test_files_of_rubbish(name, folder):
    pytest.importorskip("tensorflow")
    (folder / "model.safetensors").unlink()
    for rubbish in (b"", b"\0" * 1000, b"<html>", b"\xff\xfe\xfd", b"{}", b"null", bytes(range(256)) * 100):
        (folder / name).write_bytes(rubbish)
        with pytest.raises(UserError, match="and run again") as caught:
            utils.load_encoder_hparams_and_params("124M", folder.parent)
        assert "\n" not in str(caught.value) and name in str(caught.value)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# By what they are refused for.
HOSTILE = {
    "not a safetensors file": {
        "outside of the file": {"wte.weight": entry(shape=[10**9], offsets=[0, 4 * 10**9])},
        "more than its bytes": {"wte.weight": entry(shape=[10**18])},
        "product that wraps to 2": {"wte.weight": entry(shape=[2**32, 2**32, 2])},
        "negative offset": {"wte.weight": entry(offsets=[-8, 0])},
        "offsets backwards": {"wte.weight": entry(offsets=[8, 0])},
        "a gap in front": {"wte.weight": entry(offsets=[8, 16])},
        "a gap between": {"wte.weight": entry(), "wpe.weight": entry(offsets=[12, 20])},
        "negative shape": {"wte.weight": entry(shape=[-1, -2])},
        "shape that is no number": {"wte.weight": entry(shape=["2"])},
        "shape that is a fraction": {"wte.weight": entry(shape=[2.0])},
        "shape that is true": {"wte.weight": entry(shape=[True, 2])},
        "shape that is text": {"wte.weight": entry(shape="22")},
        "three offsets": {"wte.weight": entry(offsets=[0, 4, 8])},
        "dtype that is a list": {"wte.weight": entry(dtype=["F32"])},
        "dtype unknown": {"wte.weight": entry(dtype="F31")},
        "no dtype": {"wte.weight": {"shape": [2], "data_offsets": [0, 8]}},
        "entry that is a number": {"wte.weight": 5},
        "overlap": {"wte.weight": entry(), "wpe.weight": entry(offsets=[4, 12])},
        "same bytes twice": {"wte.weight": entry(), "wpe.weight": entry()},
        "a name of a million letters": {"w" * 10**6: entry(shape=[3])},
        "line breaks in other places": {"\n" * 500: entry(dtype="\n", shape="\n", offsets="\n")},
        "overlap of long names": {"\x1b[2J" * 500: entry(), "w" * 10**6: entry()},
        "numbers of 4000 digits": {"wte.weight": entry(offsets=[0, 10**4000])},
    },
    "twice": {
        "same tensor twice": {"wte.weight": entry(), "transformer.wte.weight": entry(offsets=[8, 16])},
        "a name with a line break twice": {"a\nb": entry(), "transformer.a\nb": entry(offsets=[8, 16])},
    },
    "contrary to hparams.json": {
        "no tensors": {},
        "layer of a million digits": {f"h.{'9' * 10**6}.ln_1.weight": entry()},
        "a name with a line break": {"a\nb": entry()},
        "a name that clears the screen": {"\x1b[2J": entry()},
        "huge shape, no bytes": {"wte.weight": entry(shape=[2**40, 0], offsets=[0, 0])},
    },
}


@pytest.mark.parametrize(("why", "kind"), [(why, kind) for why, kinds in HOSTILE.items() for kind in kinds])
def test_hostile_safetensors_headers(why, kind, folder, tiny_hparams, tiny_arrays):
    header = json.dumps(HOSTILE[why][kind]).encode()
    data = {"no tensors": 0, "huge shape, no bytes": 0, "overlap": 12, "a gap in front": 16, "a gap between": 20}
    n_bytes = data.get(kind, 16 if why == "twice" else 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(n_bytes))
    assert why in outcome(load_safetensors, folder, tiny_hparams, tiny_arrays)


@pytest.mark.parametrize("dtype", ["\n" * 10**6, None, 5, "BOOL", "I32", "F8_E4M3"])
@pytest.mark.parametrize("shape", [(260, 32), [1] * 10**5])
def test_hostile_entries_of_tensors_that_are_read(dtype, shape, folder, tiny_hparams, tiny_arrays):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header["wte.weight"] |= {"dtype": dtype, "shape": shape}
    header = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
    assert str(path) in outcome(load_safetensors, folder, tiny_hparams, tiny_arrays)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1, 10**9])
@pytest.mark.parametrize("header", [b"{}", b"[" * 10**6, b'{"a":' * 10**5, b"\xff" * 50, b'{"a": 1, "a": 1}', b"1e999"])
def test_headers_that_are_none(length, header, folder, tiny_hparams, tiny_arrays):
    for declared in (length, len(header)):
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", declared) + header + bytes(100))
        assert "model.safetensors" in outcome(load_safetensors, folder, tiny_hparams, tiny_arrays)


# ---- A folder from a stranger ----------------------------------------------------------------------------------------


def refusal(folder):
    with pytest.raises(UserError) as caught:
        utils.load_encoder_hparams_and_params(folder.name, folder.parent)
    line = str(caught.value)
    assert line.isprintable() and len(line) < 1000
    return line


@pytest.fixture
def strange(folder):
    """The tiny model as somebody's own, with safetensors alone: nothing is downloaded."""
    for name in (TF_INDEX, TF_DATA):
        (folder / name).unlink(missing_ok=True)
    return folder.rename(folder.with_name("strange"))


FILES = ["hparams.json", "encoder.json", "vocab.bpe", "model.safetensors"]


@pytest.mark.parametrize("name", [*FILES, "checksums.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "endless", "folder", "loop", "nowhere", "sparse"])
def test_what_is_no_plain_file_of_sane_size(name, kind, strange):
    path = strange / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        if not hasattr(os, "mkfifo"):
            pytest.skip("this system has no named pipes")
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 2**36)
    else:
        path.symlink_to({"device": "/dev/null", "endless": "/dev/zero", "loop": path, "nowhere": "/no/such"}[kind])
    line = refusal(strange)
    assert name in line


@pytest.mark.parametrize("name", FILES)
def test_a_link_out_of_the_folder_shows_one_line_at_most_of_what_it_leads_to(name, strange, tmp_path):
    """Links themselves are followed: Hugging Face's own cache consists of them."""
    secret = tmp_path / "secret"
    secret.write_text("a first line\n" + "password: swordfish\n" * 20)
    (strange / name).unlink()
    (strange / name).symlink_to(secret)
    line = refusal(strange)
    assert name in line and "swordfish" not in line


@pytest.mark.parametrize("name", ["hparams.json", "encoder.json", "checksums.json"])
@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "[" * 10**5 + "]" * 10**5, "1" * 10**6, '{"a": NaN}'])
def test_json_that_is_deep_or_long(name, text, strange):
    (strange / name).write_text(text)
    assert name in refusal(strange)


@pytest.mark.parametrize("n_layer", [10**9, 10**100, 1024])
def test_layers_without_end(n_layer, strange, tiny_hparams):
    (strange / "hparams.json").write_text(json.dumps(tiny_hparams | {"n_layer": n_layer}))
    refusal(strange)


def pipe(path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(path)


def header(entries, n_bytes=0):
    """-> what writes a safetensors file of these entries, its header filled up with spaces to n_bytes."""
    text = json.dumps(entries).encode()
    text += b" " * (n_bytes - len(text))
    return lambda path: path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))


def of_layers(n_layer):
    hparams = {"n_vocab": 260, "n_ctx": 16, "n_embd": 32, "n_head": 4, "n_layer": n_layer}
    return lambda path: path.write_text(json.dumps(hparams))


OF_A_STRANGER = {  # what is written in a file's place
    "a pipe": ("hparams.json", pipe),
    "a pipe for weights": ("model.safetensors", pipe),
    "a link out": ("encoder.json", lambda path: path.symlink_to(__file__)),
    "a link to a device": ("vocab.bpe", lambda path: path.symlink_to("/dev/zero")),
    "a link to a device for weights": ("model.safetensors", lambda path: path.symlink_to("/dev/zero")),
    "a header of 100 MB": ("model.safetensors", header({"wte.weight": entry()}, 10**8)),
    "deep JSON": ("hparams.json", lambda path: path.write_text("[" * 10**5 + "]" * 10**5)),
    "a deep vocabulary": ("encoder.json", lambda path: path.write_text('{"a":' * 10**5 + "1" + "}" * 10**5)),
    "a deep header": ("model.safetensors", lambda path: path.write_bytes(struct.pack("<Q", 10**5) + b"[" * 10**5)),
    "a billion layers": ("hparams.json", of_layers(10**9)),
    "1,024 layers": ("hparams.json", of_layers(1024)),
    "duplicate tensors": (
        "model.safetensors",
        header({"wte.weight": entry(), "transformer.wte.weight": entry(offsets=[8, 16])}),
    ),
    "overlapping tensors": ("model.safetensors", header({"wte.weight": entry(), "wpe.weight": entry(offsets=[4, 12])})),
}


IN_A_PROCESS = ("a pipe", "a header of 100 MB", "1,024 layers")  # the others are refused by the same lines of code


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in IN_A_PROCESS else pytest.mark.slow) for kind in OF_A_STRANGER]
)
def test_a_folder_from_a_stranger(kind, strange):
    """One line, status 2 and less than 1 GB of memory, of which what is imported takes a fifth.

    The process tells its memory itself: what its parent is told of it begins with the parent's own.
    """
    name, write = OF_A_STRANGER[kind]
    (strange / name).unlink()
    write(strange / name)
    code = "import atexit, runpy, sys; from speculative.engines import memory\n"
    code += "atexit.register(lambda: print(memory.peak())); sys.argv[0] = 'main.py'\n"
    code += "runpy.run_path('main.py', run_name='__main__')"
    words = f"--models_dir={strange.parent} --target_model_size=strange --draft_model_size=strange".split()
    command = [sys.executable, "-c", code, *words, "--prompt=the", "--n_tokens_to_generate=4"]
    done = subprocess.run(command, cwd=Path(utils.__file__).parent, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and done.stderr[:-1].isprintable(), done.stderr
    assert done.stderr.startswith("error: ") and name in done.stderr
    assert done.stdout == "None\n" or int(done.stdout) < 2**30


@pytest.mark.parametrize("n_bytes", [9 * 10**6, 70 * 10**6])
def test_a_header_too_long_is_not_parsed(n_bytes, strange, monkeypatch):
    """Parsing 70 MB of it takes seconds and a gigabyte."""
    header = json.dumps({f"{i:09}": entry(offsets=[0, 8]) for i in range(1000)}).encode()
    path = strange / "model.safetensors"
    path.write_bytes(struct.pack("<Q", n_bytes) + header + b" " * (n_bytes - len(header)) + bytes(8))
    monkeypatch.setattr("safetensors.safe_open", None)
    assert f"its header has {n_bytes:,} bytes, more than 8,388,608" in refusal(strange)


@pytest.mark.parametrize(
    "note",
    [
        "", "[]", "5", '{"hparams.json": 5}', '{"hparams.json": {"bytes": "x", "sha256": ""}}',
        '{"hparams.json": {"bytes": 1e999, "sha256": ""}}', '{"hparams.json": {"bytes": 73}}', "\\0" * 100,
    ],
)  # fmt: skip
def test_a_damaged_note(note, strange):
    (strange / "checksums.json").write_text(note)
    assert "checksums.json: damaged" in refusal(strange)
    (strange / "checksums.json").unlink()
    utils.load_encoder_hparams_and_params("strange", strange.parent)


@pytest.fixture
def noted(strange):
    """The stranger's model with a note of all its files."""
    checksums.note(strange, {name: checksums.describe(strange / name) for name in FILES})
    return strange


@pytest.mark.parametrize("most_small", [0, checksums.MOST_SMALL])
def test_a_flipped_bit_of_weights_that_are_noted(most_small, noted, monkeypatch):
    """Also where they are large, and their sha256 is taken while they are read."""
    monkeypatch.setattr(checksums, "MOST_SMALL", most_small)
    path = noted / "model.safetensors"
    content = path.read_bytes()
    for position in (len(content) // 2, len(content) - 4):
        flip(path, content, position, 3)
        with pytest.raises(UserError, match=checksums.DAMAGED):
            load_weights(noted)
    path.write_bytes(content)
    load_weights(noted)


def load_weights(folder):
    """Loads the weights alone: with so small a limit, the small files would be too large."""
    return utils.load_params(str(folder), utils.load_hparams(str(folder / "hparams.json")))


def test_large_weights_are_compared_beside_their_packing(noted, monkeypatch):
    """Where packing waits for the end of it, it comes: the hash is taken in a thread of its own."""
    monkeypatch.setattr(checksums, "MOST_SMALL", 0)
    taken = threading.Event()
    describe = checksums.describe

    def described(path, over):
        found = describe(path, over)
        taken.set()
        return found

    monkeypatch.setattr(checksums, "describe", described)
    hparams = utils.load_hparams(str(noted / "hparams.json"))
    utils.load_params(str(noted), hparams, lambda name, array: taken.wait())


def test_what_ends_the_loading_ends_the_comparison(noted, monkeypatch):
    """And its own error is told, not that of the sums."""
    monkeypatch.setattr(checksums, "MOST_SMALL", 0)
    begun = threading.Event()

    def described(path, over):
        begun.set()
        over.wait()
        return {}

    def interrupt(name, array):
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(checksums, "describe", described)
    with pytest.raises(KeyboardInterrupt):
        utils.load_params(str(noted), utils.load_hparams(str(noted / "hparams.json")), interrupt)


def misspelt(files):
    files["nodel.safetensors"] = files.pop("model.safetensors")


def left_out(files):
    del files["model.safetensors"]


def of_more(files):
    files["other"] = files["vocab.bpe"]


@pytest.mark.parametrize("change", [misspelt, left_out, of_more])
def test_a_note_of_other_files_is_damaged(change, noted, capsys):
    files = json.loads((noted / "checksums.json").read_text())
    change(files)
    (noted / "checksums.json").write_text(json.dumps(files))
    assert "checksums.json: damaged (it " in refusal(noted)
    with pytest.raises(SystemExit) as end:
        utils.main(["check", noted.name, "--models_dir", str(noted.parent)])
    assert end.value.code == 2 and "checksums.json" in "".join(capsys.readouterr())


def test_heads_are_compared(tmp_path, capsys):
    """And listed. Those that are not noted, where the others are, are not used."""
    bundled = Path(utils.__file__).parent / "models" / "tiny-target"
    folder = tmp_path / "tiny"
    shutil.copytree(bundled, folder)
    hparams = utils.load_hparams(str(folder / "hparams.json"))
    heads.load_heads(str(folder), hparams)
    utils.main(["check", "tiny", "--models_dir", str(tmp_path)])
    assert f"ok       {folder / heads.FILE}\n" in capsys.readouterr().out
    content = (folder / heads.FILE).read_bytes()
    flip(folder / heads.FILE, content, len(content) // 2, 3)
    with pytest.raises(UserError, match=f"{heads.FILE}: {checksums.DAMAGED}"):
        heads.load_heads(str(folder), hparams)
    (folder / heads.FILE).write_bytes(content)
    files = json.loads((folder / "checksums.json").read_text())
    del files[heads.FILE]
    (folder / "checksums.json").write_text(json.dumps(files))
    with pytest.raises(UserError, match=r"checksums.json: damaged \(it lacks heads.safetensors\)"):
        heads.load_heads(str(folder), hparams)


def test_flipped_bits_of_the_bundled_model(tmp_path):
    """In any file, the note included: none is passed over."""
    bundled, rng = Path(utils.__file__).parent / "models" / "tiny-draft", np.random.default_rng(0)
    shutil.copytree(bundled, tmp_path / "tiny")
    for name in [*FILES, "checksums.json"]:
        content = (bundled / name).read_bytes()
        for position in rng.integers(0, len(content), 40).tolist():
            flip(tmp_path / "tiny" / name, content, position, int(rng.integers(8)))
            with pytest.raises(UserError) as caught:
                utils.load_encoder_hparams_and_params("tiny", tmp_path)
            assert name in str(caught.value) or "checksums.json" in str(caught.value)
        (tmp_path / "tiny" / name).write_bytes(content)
    utils.load_encoder_hparams_and_params("tiny", tmp_path)


@pytest.mark.parametrize("text", ["null", "[]", '[["n_vocab", 5]]', "5"])
def test_a_config_that_is_no_object(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"cannot be read as JSON .*it is no object"):
        read_config(str(path))
