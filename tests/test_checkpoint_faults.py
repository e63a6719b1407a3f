"""Damaged checkpoints: each is refused in one line that names the file, or gives the very arrays that were written.

A safetensors file has no checksum of its own: there a flipped bit of a weight shows in checksums.json alone.
"""

import json
import os
import shutil
import struct
import threading

import numpy as np
import pytest
from conftest import MODELS, write_safetensors, write_small_files
from test_checkpoints import CONFIG, random_tensors, write_folder
from tiny import flatten, python, refusal

import utils
from checkpoints.config import load_hparams
from checkpoints.folders import OPTIONAL
from checkpoints.tensors import bad_file, checkpoint_shapes
from checkpoints.weights import load_gpt2_params_from_safetensors
from plumbing import checksums
from plumbing.errors import UserError
from plumbing.files import read_small
from plumbing.official import TF_DATA, TF_INDEX
from speculative.drafters import heads


@pytest.fixture
def folder(tiny_files, tmp_path):
    """The tiny model under an official name, so that its files are to be deleted and not to be replaced."""
    folder = tmp_path / "124M"
    folder.mkdir()
    for name, content in tiny_files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def outcome(folder, tiny_hparams, tiny_arrays):
    """The outcome of loading the file: "intact", "altered", or the line of the refusal."""

    def outcome(name="model.safetensors"):
        try:
            if name == "model.safetensors":
                params = load_gpt2_params_from_safetensors(folder / name, tiny_hparams)
            else:
                params = utils.load_gpt2_params_from_tf_ckpt(str(folder / "model.ckpt"), tiny_hparams)
        except UserError as error:
            line = str(error)
            assert line.isprintable()
            assert len(line.encode("utf-8", "replace")) < 1000
            assert str(folder / name) in line
            assert "delete " in line
            assert "and run again" in line
            return line
        flat = flatten(params)
        assert flat.keys() == tiny_arrays.keys()
        return "intact" if all(np.array_equal(flat[name], tiny_arrays[name]) for name in flat) else "altered"

    return outcome


def flip(path, content, position, bit):
    path.write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])


@pytest.mark.parametrize("name", [TF_INDEX, TF_DATA, "model.safetensors"])
def test_flipped_bits_and_files_cut_short(name, folder, tiny_files, tiny_arrays, outcome):
    """In OpenAI's form everything has a checksum over it but the index's last bytes, of which most mean nothing."""
    content = tiny_files[name]
    rng = np.random.default_rng(0)
    header = 8 + struct.unpack("<Q", content[:8])[0]
    end = header if name == "model.safetensors" else len(content)
    positions = {*range(8), *range(end - 48, end), *rng.integers(0, end, 300).tolist()}
    for position in sorted(positions):
        flip(folder / name, content, position, int(rng.integers(8)))
        result = outcome(name)
        assert result != "altered"
        assert result != "intact" or name == "model.safetensors" or (name == TF_INDEX and position >= end - 100)
    for length in [0, 1, 7, 8, 9, len(content) - 1, *rng.integers(0, len(content), 40).tolist()]:
        (folder / name).write_bytes(content[:length])
        assert name in outcome(name)
    if name == TF_DATA:
        flip(folder / name, content, content.index(tiny_arrays["h1/mlp/c_proj/w"].tobytes()) + 77, 3)
        assert f"{folder / name}: tensor h1/mlp/c_proj/w cannot be used" in outcome(name)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header(entries, n_bytes=0):
    """-> what writes a safetensors file of these entries, its header filled up with spaces to n_bytes."""
    text = json.dumps(entries).encode()
    text += b" " * (n_bytes - len(text))
    n_data = max((about["data_offsets"][1] for about in entries.values()), default=0)
    return lambda path: path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(n_data))


NO_FILE = "not a safetensors file"
OTHER = "contrary to hparams.json"


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"wte.weight": entry(shape=[2**32, 2**32, 2])}, NO_FILE),
        ({"wte.weight": entry(), "wpe.weight": entry(offsets=[4, 12])}, NO_FILE),  # which overlap
        ({"wte.weight": entry(dtype="\n" * 10**6)}, NO_FILE),
        ({"\x1b[2J" * 500: entry(), "w" * 10**6: entry()}, NO_FILE),
        ({"wte.weight": entry(), "transformer.wte.weight": entry(offsets=[8, 16])}, "twice"),
        ({}, OTHER),
        *(({name: entry()}, OTHER) for name in (f"h.{'9' * 10**6}.ln_1.weight", "a\nb", "\x1b[2J")),
        ({"wte.weight": entry(shape=[2**40, 0], offsets=[0, 0])}, OTHER),
    ],
    ids=lambda value: str(value)[:60],
)
def test_hostile_safetensors_headers(entries, why, folder, outcome):
    header(entries)(folder / "model.safetensors")
    assert why in outcome()


# ---- A folder from a stranger ----------------------------------------------------------------------------------------

FILES = ["hparams.json", "encoder.json", "vocab.bpe", "model.safetensors"]
NOTE = "checksums.json"


@pytest.fixture
def strange(folder):
    """The tiny model as somebody's own, with safetensors alone: nothing is downloaded."""
    for name in (TF_INDEX, TF_DATA):
        (folder / name).unlink(missing_ok=True)
    return folder.rename(folder.with_name("strange"))


def load(folder):
    return utils.load_encoder_hparams_and_params(folder.name, folder.parent)


def pipe(path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(path)


def sparse(path):
    path.touch()
    os.truncate(path, 2**36)


def link_to(target):
    return lambda path: path.symlink_to(target)


def text(content):
    return lambda path: path.write_text(content)


ANY_FILE = {  # what may stand in the place of any file
    "a pipe": pipe,
    "a folder": lambda path: path.mkdir(),
    "64 GB": sparse,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a device": link_to("/dev/zero"),
    "a link to nothing": link_to("/no/such"),
    "a link out": link_to(__file__),
    "nothing": text(""),
    "a web page": text("<html>"),
    "no text": lambda path: path.write_bytes(bytes(range(255, 0, -1)) * 100),
    "an empty object": text("{}"),
    "null": text("null"),
    "deep JSON": text('{"a":' * 10**5),
    "a long number": text("1" * 10**6),
}


@pytest.mark.parametrize("kind", ANY_FILE)
def test_what_is_no_file_of_a_model(kind, strange):
    """Links themselves are followed: Hugging Face's own cache consists of them. But what they lead to is not shown."""
    load(strange)
    for number, name in enumerate([*FILES, NOTE]):
        folder = shutil.copytree(strange, strange.with_name(f"strange-{number}"))
        (folder / name).unlink(missing_ok=True)
        ANY_FILE[kind](folder / name)
        if (kind, name) != ("an empty object", NOTE):
            line = refusal(load, folder)
            assert name in line
            assert "import" not in line
            assert "replace " in line or "lacks" in line or name == NOTE


@pytest.mark.parametrize("kind", ["a pipe", "a link to a device", "a folder", "64 GB"])
@pytest.mark.parametrize("name", OPTIONAL)
def test_what_is_no_file_of_hugging_faces(name, kind, tmp_path):
    """A pipe would be waited for, for ever, and what /dev/zero gives read until the memory is full."""
    folder = write_folder(tmp_path / "theirs", CONFIG, random_tensors(CONFIG))
    (folder / name).unlink(missing_ok=True)
    ANY_FILE[kind](folder / name)
    assert name in refusal(load, folder)


def test_a_small_file_is_read_to_its_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes("é\r\n".encode())
    assert read_small(path, 2) == "é\n"
    with pytest.raises(ValueError, match="more than 1 bytes"):
        read_small(path, 1)


DEEP = {"n_vocab": 260, "n_ctx": 16, "n_embd": 32, "n_head": 4, "n_layer": 1024}


@pytest.mark.parametrize(
    ("name", "write", "why"),
    [
        ("hparams.json", pipe, "lacks"),
        ("hparams.json", text(json.dumps(DEEP)), "contrary to hparams.json"),
        ("model.safetensors", header({"wte.weight": entry()}, 10**8), "100,000,000 bytes, more than 8,388,608"),
    ],
)
def test_a_folder_from_a_stranger(name, write, why, strange):
    """One line, status 2 and less than 1 GB of memory, of which what is imported takes a fifth.

    The process tells its memory itself: what its parent is told of it begins with the parent's own.
    """
    (strange / name).unlink()
    write(strange / name)
    line = refusal(load, strange)
    assert name in line
    assert why in line
    code = "import atexit, runpy, sys; from speculative.engines import memory\n"
    code += "atexit.register(lambda: print(memory.peak())); sys.argv[0] = 'main.py'\n"
    code += "runpy.run_path('main.py', run_name='__main__')"
    words = f"--models_dir={strange.parent} --target_model_size=strange --draft_model_size=strange".split()
    done = python("-c", code, *words, "--prompt=the", "--n_tokens_to_generate=4")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr[:-1].isprintable()
    assert done.stderr.startswith("error: ")
    assert name in done.stderr
    assert done.stdout == "None\n" or int(done.stdout) < 2**30


# ---- What is noted ---------------------------------------------------------------------------------------------------

NO_NOTES = ["[]", "5", '{"hparams.json": 5}', '{"hparams.json": {"bytes": "x", "sha256": ""}}']
NO_NOTES += ['{"hparams.json": {"bytes": 1e999, "sha256": ""}}', '{"hparams.json": {"bytes": 73}}', "\\0" * 100]


def note(folder):
    checksums.note(folder, {name: checksums.describe(folder / name) for name in FILES})


def check(folder, capsys):
    """(exit status, standard output, standard error) of python utils.py check."""
    with pytest.raises(SystemExit) as end:
        utils.main(["check", folder.name, "--models_dir", str(folder.parent)])
    return end.value.code, *capsys.readouterr()


def test_a_damaged_note(strange, capsys):
    """No note, or that of other files."""
    note(strange)
    files = checksums.noted(strange)
    weights = files.pop("model.safetensors")
    others = [files, files | {"nodel.safetensors": weights}, files | {"model.safetensors": weights, "other": weights}]
    for content in [*NO_NOTES, *map(json.dumps, others)]:
        (strange / NOTE).write_text(content)
        assert "checksums.json: damaged (" in refusal(load, strange)
    status, *said = check(strange, capsys)
    assert status == 2
    assert NOTE in "".join(said)
    (strange / NOTE).unlink()
    load(strange)


@pytest.fixture
def large(tmp_path):
    """A model whose weights are so large that their sha256 is taken beside the loading."""
    folder = tmp_path / "large"
    folder.mkdir()
    hparams = {"n_vocab": 260, "n_ctx": 2**16, "n_embd": 64, "n_head": 4, "n_layer": 1}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in checkpoint_shapes(hparams).items()}
    write_small_files(folder, hparams)
    write_safetensors(folder / "model.safetensors", arrays)
    note(folder)
    assert (folder / "model.safetensors").stat().st_size > checksums.MOST_SMALL
    return folder


def test_a_flipped_bit_of_large_weights(large, capsys):
    path = large / "model.safetensors"
    content = path.read_bytes()
    load(large)
    for position in (len(content) // 2, len(content) - 4):
        flip(path, content, position, 3)
        assert f"{path}: {checksums.DAMAGED}; replace" in refusal(load, large)
    status, out, err = check(large, capsys)
    assert status == 2
    assert err.startswith(f"error: {path}: damaged; ")
    assert err.count("\n") == 1
    assert f"DAMAGED  {path}: damaged: its sha256" in out
    assert out.count("ok  ") == 3


def test_large_weights_are_compared_while_they_are_read(large):
    """An exception in the reading ends it too."""
    begun = threading.Event()
    ended = []

    def endless(path, over):
        begun.set()
        ended.append(over.wait(60))

    with pytest.raises(KeyboardInterrupt), checksums.compared(str(large), FILES, bad_file, endless):
        assert begun.wait(60)
        raise KeyboardInterrupt
    assert ended == [True]


def test_heads_are_compared(tmp_path, capsys):
    """The check lists it."""
    folder = tmp_path / "tiny"
    shutil.copytree(MODELS / "tiny-target", folder)
    hparams = load_hparams(str(folder / "hparams.json"))
    heads.load_heads(str(folder), hparams)
    utils.main(["check", "tiny", "--models_dir", str(tmp_path)])
    assert f"ok       {folder / heads.FILE}\n" in capsys.readouterr().out
    content = (folder / heads.FILE).read_bytes()
    flip(folder / heads.FILE, content, len(content) // 2, 3)
    assert f"{heads.FILE}: {checksums.DAMAGED}" in refusal(heads.load_heads, str(folder), hparams)


def test_changes_of_the_bundled_model(tmp_path):
    """Every file is looked at, the note included."""
    folder = tmp_path / "tiny"
    rng = np.random.default_rng(0)
    shutil.copytree(MODELS / "tiny-draft", folder)
    for name in [*FILES, NOTE]:
        content = (folder / name).read_bytes()
        for position in rng.integers(0, len(content), 40).tolist():
            flip(folder / name, content, position, int(rng.integers(8)))
            line = refusal(load, folder)
            assert name in line or NOTE in line
        if name != NOTE:
            (folder / name).write_bytes(content + b" ")
            assert f"{name}: has {len(content) + 1:,} bytes, checksums.json says" in refusal(load, folder)
        (folder / name).write_bytes(content)
    load(folder)
