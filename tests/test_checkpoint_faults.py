"""Damaged checkpoints: each is refused in one line that names the file, or gives the very arrays that were written.

A safetensors file has no checksum of its own: there a flipped bit of a weight shows in checksums.json alone.
"""

import json
import os
import shutil
import struct
import threading
from functools import partial

import numpy as np
import pytest
from conftest import MODELS, write_safetensors, write_small_files
from hypothesis import given, settings
from hypothesis import strategies as st
from test_checkpoints import CONFIG, random_tensors, write_folder
from tiny import flatten, python, refusal

import utils
from speculative.checkpoints.bundle import MAGIC, MOST_INDEX, Entry, has_crc32c, open_bundle, read_index
from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.folders import OPTIONAL
from speculative.checkpoints.openai import open_by_tensorflow
from speculative.checkpoints.tensors import bad_file, checkpoint_shapes
from speculative.checkpoints.weights import load_gpt2_params_from_safetensors
from speculative.drafters import heads
from speculative.support import checksums
from speculative.support.errors import UserError, first_line
from speculative.support.files import read_small
from speculative.support.official import TF_DATA, TF_INDEX


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
    """The outcome of loading the file: "intact", "altered", or the line of the refusal. open_fn: who reads OpenAI's."""

    def outcome(name="model.safetensors", open_fn=open_bundle):
        try:
            if name == "model.safetensors":
                params = load_gpt2_params_from_safetensors(folder / name, tiny_hparams)
            else:
                path = str(folder / "model.ckpt")
                params = utils.load_gpt2_params_from_tf_ckpt(path, tiny_hparams, open_fn=open_fn)
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


WITH_CRC32C = pytest.mark.skipif(not has_crc32c(), reason="google-crc32c is not installed, or not compiled")


def flip(path, content, position, bit):
    path.write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])


@pytest.mark.parametrize(
    ("name", "open_fn"),
    [
        pytest.param(TF_INDEX, open_bundle, marks=WITH_CRC32C),
        (TF_INDEX, open_by_tensorflow),
        pytest.param(TF_DATA, open_bundle, marks=WITH_CRC32C),
        (TF_DATA, open_by_tensorflow),
        ("model.safetensors", None),
    ],
)
def test_flipped_bits_and_files_cut_short(name, open_fn, folder, tiny_files, tiny_arrays, outcome):
    """In OpenAI's form everything has a checksum over it but the index's last bytes, of which most mean nothing."""
    content = tiny_files[name]
    outcome = partial(outcome, name, open_fn)
    rng = np.random.default_rng(0)
    header = 8 + struct.unpack("<Q", content[:8])[0]
    end = header if name == "model.safetensors" else len(content)
    positions = {*range(8), *range(end - 48, end), *rng.integers(0, end, 300).tolist()}
    for position in sorted(positions):
        flip(folder / name, content, position, int(rng.integers(8)))
        result = outcome()
        assert result != "altered"
        assert result != "intact" or name == "model.safetensors" or (name == TF_INDEX and position >= end - 100)
    for length in [0, 1, 7, 8, 9, len(content) - 1, *rng.integers(0, len(content), 40).tolist()]:
        (folder / name).write_bytes(content[:length])
        assert name in outcome()
    if name == TF_DATA:
        flip(folder / name, content, content.index(tiny_arrays["h1/mlp/c_proj/w"].tobytes()) + 77, 3)
        assert f"{folder / name}: tensor h1/mlp/c_proj/w cannot be used" in outcome()


# ---- The index of OpenAI's form -------------------------------------------------------------------------------------


def varint(n):
    return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])


def field(number, value):
    """Of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def remainder(byte):
    for _ in range(8):
        byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
    return byte


REMAINDERS = [remainder(byte) for byte in range(256)]


def crc32c(content):
    crc = 2**32 - 1
    for byte in content:
        crc = crc >> 8 ^ REMAINDERS[(crc ^ byte) & 255]
    return crc ^ 2**32 - 1


def sealed(blocks, listed=None):
    """An index of these blocks, of which one more lists `listed`, by default all: (begin, n_bytes) each."""
    table = b""
    places = []
    for content in [*blocks, None]:
        if content is None:
            content = block((b"%06d" % i, varint(begin) + varint(n)) for i, (begin, n) in enumerate(listed or places))
        places.append((len(table), len(content)))
        crc = crc32c(content + b"\0")
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
        table += content + b"\0" + masked.to_bytes(4, "little")
    footer = varint(0) + varint(0) + varint(places[-1][0]) + varint(places[-1][1])
    return table + footer.ljust(40, b"\0") + MAGIC


def block(pairs, whole=b"\0\0\0\0\1\0\0\0"):
    return b"".join(varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in pairs) + whole


def index(*pairs):
    """One that begins as it should."""
    return sealed([block([HEADER, *pairs])])


HEADER = (b"", field(1, 1))


def tensor(dtype=1, shape=(2,), begin=0, n_bytes=8, more=b""):
    dims = b"".join(field(2, field(1, n)) for n in shape)
    return field(1, dtype) + field(2, dims) + field(4, begin) + field(5, n_bytes) + more


@WITH_CRC32C
def test_an_index_is_read_as_it_was_written():
    assert crc32c(b"123456789") == 0xE3069283  # as it stands in the catalogues
    shared = varint(1) + varint(1) + varint(len(tensor())) + b"b" + tensor()  # "ab", of which "b" is new
    found = read_index(
        sealed([block([HEADER, (b"a", tensor())], shared + block([])), block([(b"c", tensor(2, (3, 4), 8, 48))])])
    )
    assert found == {
        "a": Entry(1, (2,), 0, 8, 0),
        "ab": Entry(1, (2,), 0, 8, 0),
        "c": Entry(2, (3, 4), 8, 48, 0),
    }


@WITH_CRC32C
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no table"),
        (bytes(100), "it is no table"),
        (bytes(MOST_INDEX) + MAGIC, "it has more than 1,048,576 bytes"),
        (b"\xff" * 60 + MAGIC, "a number does not end"),
        (sealed([], [(0, 2**60)]), "its blocks overlap"),
        (sealed([], [(2**60, 30)]), "it ends too early"),
        (sealed([b""]), "it ends too early"),
        (sealed([block([HEADER])], [(1, 3)]), "the CRC32C of a block is wrong"),
        (sealed([block([HEADER])], [(0, 13)] * 2), "its names are not in order"),
        (sealed([block([HEADER], b"\xff" * 4)]), "it ends too early"),
        (sealed([block([HEADER], b"\x80" + bytes(4))]), "a number does not end"),
        (sealed([block([HEADER], b"\1\0\0" + block([]))]), "a name is too long"),
        (sealed([block([HEADER], b"\0\1\x7f" + block([]))]), "it ends too early"),
        (sealed([block([])]), "its names are not in order"),
        (sealed([block([(b"a", tensor())])]), "its names are not in order"),
        (sealed([block([(b"", field(1, 2))])]), "its data are in several files"),
        (sealed([block([(b"", b"")])]), "its data are in several files"),
        (sealed([block([(b"", field(1, 1) + field(2, 1))])]), "big-endian"),
        (index((b"b", tensor()), (b"a", tensor())), "its names are not in order"),
        (index((b"a", tensor()), (b"a", tensor())), "its names are not in order"),
        (index((b"a" * 256, tensor())), "a name is too long"),
        (index((b"\xff", tensor())), "can't decode"),
        (index((b"a", tensor(more=field(3, 1)))), "its data are in several files"),
        (index((b"a", tensor(more=field(7, b"")))), "a tensor is in slices"),
        (index((b"a", b"\x08")), "a number does not end"),
        (index((b"a", b"\x0a\x09")), "it ends too early"),
        (index((b"a", b"\x35\0")), "it ends too early"),
        (index((b"a", b"\x0b")), "a field is of kind 3"),
        (index((b"a", b"\x80" * 20)), "a number does not end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hostile_indexes(content, why):
    with pytest.raises(ValueError, match=why):
        read_index(content)


@WITH_CRC32C
def test_blocks_that_are_listed_again_and_again_are_not_read_for_ever():
    names = block([HEADER, *((b"a%06d" % i, tensor()) for i in range(10**4))])
    assert len(read_index(sealed([names]))) == 10**4
    with pytest.raises(ValueError, match="its blocks overlap"):
        read_index(sealed([names], [(0, len(names))] * 10**4))


@WITH_CRC32C
@settings(max_examples=200, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3), st.binary(max_size=12)), max_size=4))
def test_whatever_an_index_says_it_is_read_or_refused(edits):
    """With the right checksums: who wants to do harm takes them too."""
    content = block([HEADER, (b"model/wpe", tensor()), (b"model/wte", tensor(1, (3, 4), 8, 48))])
    for at, n_bytes, new in edits:
        content = content[:at] + new + content[at + n_bytes :]
    try:
        entries = read_index(sealed([content]))
    except ValueError as error:
        assert first_line(error).isprintable()
    else:
        for dtype, shape, *rest in entries.values():
            assert {type(number) for number in (dtype, *shape, *rest)} == {int}


@WITH_CRC32C
@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (tensor(shape=(2**62,), n_bytes=2**64 - 1), "it has 18446744073709551615 bytes"),
        (tensor(shape=(2**60,), n_bytes=2**62), "the file ends within it"),
        (tensor(begin=2**63), "the file ends within it"),
        (tensor(begin=1), "the file ends within it"),
        (tensor(dtype=2), "it is float64, not float32"),
        (tensor(dtype=7), "it is of TensorFlow's type 7, not float32"),
        (tensor(), "its CRC32C is not the one that the index has"),
    ],
)
def test_hostile_tensors(entry, why, tmp_path):
    (tmp_path / TF_INDEX).write_bytes(index((b"a", entry)))
    (tmp_path / TF_DATA).write_bytes(bytes(8))
    with open_bundle(str(tmp_path / "model.ckpt")) as (_, read), pytest.raises(ValueError, match=why):
        read("a")


# ---- The header of safetensors ---------------------------------------------------------------------------------------


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
