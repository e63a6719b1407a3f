"""Loading: both forms of a checkpoint give the same arrays, and a file that does not fit is refused in one line."""

import json
import os
import shutil

import numpy as np
import pytest
from checkpoint_files import MODELS
from servers import Server, served
from tiny import flatten, refusal

from speculative.checkpoints import download
from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.folder import load_params
from speculative.checkpoints.names import HPARAMS, SMALL_FILES, TF_DATA, TF_INDEX, checked_model_name, is_path
from speculative.checkpoints.openai import read_index
from speculative.checkpoints.weights import checkpoint_shapes, parameter_count
from speculative.support.errors import UserError
from utils import load_encoder_hparams_and_params, load_gpt2_params_from_tf_ckpt

FORMS = {"tf": [TF_INDEX, TF_DATA], "safetensors": ["model.safetensors"]}
COMMON = ["hparams.json", "encoder.json", "vocab.bpe"]


@pytest.fixture(params=list(FORMS))
def model(request, tiny_files, tmp_path):
    """The folder of the tiny model, once in each form, in the models_dir tmp_path."""
    return write_files(tmp_path / "tiny", tiny_files, COMMON + FORMS[request.param])


@pytest.fixture(scope="session")
def tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow")


def write_files(folder, files, names):
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(files[name])
    return folder


def assert_same(params, arrays):
    flat = flatten(params)
    assert flat.keys() == arrays.keys()
    for name, array in arrays.items():
        assert flat[name].dtype == np.float32
        np.testing.assert_array_equal(flat[name], array)


def test_both_forms_load_alike_and_every_array_is_converted(model, tiny_hparams, tiny_arrays):
    encoder, hparams, params = load_encoder_hparams_and_params("tiny", model.parent)
    assert encoder.decode(encoder.encode("the thin thing")) == "the thin thing"
    assert hparams == tiny_hparams
    assert_same(params, tiny_arrays)
    seen = {}
    params = load_params(model, hparams, lambda name, array: seen.setdefault(name, array.copy()))
    assert all(value is seen[name] for name, value in flatten(params).items())
    assert seen.keys() == checkpoint_shapes(tiny_hparams).keys()  # by several threads, in any order
    assert_same(params, tiny_arrays)


def test_the_official_index_is_read_as_tensorflow_reads_it(tensorflow, shared):
    """Its data file is cut short, after the first tensor."""
    folder = shared / "official-124M"
    reader = tensorflow.train.load_checkpoint(str(folder / "model.ckpt"))
    stored = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    index = read_index([str(folder / TF_INDEX), str(folder / TF_DATA)])
    assert {f"model/{name}": tensor.shape for name, tensor in index.items()} == stored
    hparams = load_hparams(folder / "hparams.json")
    line = refusal(load_gpt2_params_from_tf_ckpt, str(folder / "model.ckpt"), hparams)
    assert f"{folder / TF_DATA}: it ends before tensor wte" in line


def test_tensorflow_reads_what_these_tests_write(tensorflow, tiny_files, tiny_arrays, tmp_path):
    folder = write_files(tmp_path / "tiny", tiny_files, FORMS["tf"])
    reader = tensorflow.train.load_checkpoint(str(folder / "model.ckpt"))
    for name, array in tiny_arrays.items():
        stored = array[None] if name.endswith("/w") else array
        np.testing.assert_array_equal(reader.get_tensor(f"model/{name}"), stored)


def test_official_sizes():
    """The bytes of the data files, which a download has to have."""
    n_bytes = [497_759_232, 1_419_292_672, 3_096_120_320, 6_230_444_800]
    assert [4 * parameter_count(hparams) for hparams in HPARAMS.values()] == n_bytes


def test_a_model_size_is_a_name_or_a_path(tiny_files, tiny_hparams, tmp_path, monkeypatch):
    folder = write_files(tmp_path / "tiny", tiny_files, COMMON + FORMS["safetensors"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for size in ("./tiny", f"../{tmp_path.name}/tiny", str(folder), "~/tiny", f"{folder}/", "tiny/"):
        assert load_encoder_hparams_and_params(size, "nowhere")[1] == tiny_hparams
    assert "model size 'a/../tiny' should be " in refusal(load_encoder_hparams_and_params, "a/../tiny", "nowhere")
    monkeypatch.chdir(tmp_path.parent)
    for size, models_dir in (("tiny/", tmp_path), (f"{tmp_path.name}/tiny", "nowhere")):  # the latter as models/NAME
        assert load_encoder_hparams_and_params(size, models_dir)[1] == tiny_hparams


PATHS = [r"C:\a\mine", "D:/a/mine", r"\\server\share\mine", "//server/share/mine", r"models\mine", "C:mine"]
FOLDERS = ["my model", "gpt2 (1)", "GPT2+poems", "модель", "gpt2-é", "tiny,2", "a&b", "a..b", "می\u200cخواهم"]
FOLDERS += ["my run/1 [new]", "1558M finetuned"]
NAMES = ["124M", "124M/", "owner/name", "owner/name/", "owner/name@refs/pr/1", "gpt2-xl"]


@pytest.mark.parametrize("size", FOLDERS)
def test_a_folder_may_have_any_name_that_can_be_seen(size, tiny_pair, tmp_path):
    shutil.copytree(tiny_pair / "draft", tmp_path / size)
    encoder, _, _ = load_encoder_hparams_and_params(size, str(tmp_path))
    assert encoder.n_vocab == 260


@pytest.mark.parametrize("size", ["", "a/..", "a//b", "a\nb", "a\x1b[2J", "a\u2028b", "a/b/c"])
def test_a_name_that_leads_out_of_models_dir_or_cannot_be_seen_is_refused(size):
    with pytest.raises(ValueError, match="folder of models_dir"):
        checked_model_name(size)


@pytest.mark.parametrize("size", [*PATHS, *NAMES])
def test_the_paths_of_windows_are_told_from_names(size):
    assert is_path(size) == (size in PATHS)
    assert checked_model_name(size) == size.removesuffix("/")


def test_settings_that_do_not_fit(model, tiny_hparams):
    changes = {"n_layer": 3, "n_ctx": 17, "n_embd": 16, "n_vocab": 259}
    for name, value in [*changes.items(), ("n_layer", 1)]:
        (model / "hparams.json").write_text(json.dumps(tiny_hparams | {name: value}))
        line = refusal(load_encoder_hparams_and_params, "tiny", model.parent)
        assert ("tensor" if name != "n_vocab" else "n_vocab is 259, but encoder.json has 260 tokens") in line


# ---- Fine-tuned checkpoints ------------------------------------------------------------------------------------------


def save(tensorflow, prefix, arrays):
    """Write a checkpoint by the operation that a tf.train.Saver runs."""
    names = sorted(arrays)
    tensorflow.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[f"model/{name}" for name in names],
        shape_and_slices=[""] * len(names),
        tensors=[arrays[name][None] if name.endswith("/w") else arrays[name] for name in names],
    )


NAMED = [
    # (the file `checkpoint`, the prefix of the weights that it names)
    ('model_checkpoint_path: "model.ckpt"\nall_model_checkpoint_paths: "model.ckpt"\n', "model.ckpt"),
    ('model_checkpoint_path: "model-1000"\nall_model_checkpoint_paths: "model-900"\n', "model-1000"),
    ("all_model_checkpoint_paths: 'model.ckpt'\r\n  model_checkpoint_path : 'model-1000' # new\r\n", "model-1000"),
    ('# model_checkpoint_path: "model-1000"\nmodel_checkpoint_path:"model.ckpt"', "model.ckpt"),
    ('model_checkpoint_path: "FOLDER/model-1000"', "model-1000"),
    ('model_checkpoint_path: "run 1/é.d"', "run 1/é.d"),
]


@pytest.mark.parametrize(("content", "prefix"), NAMED)
def test_the_weights_are_those_that_tensorflow_calls_the_latest(
    content, prefix, tensorflow, tiny_files, tiny_arrays, tmp_path
):
    """picoGPT asks TensorFlow. A checkpoint of TensorFlow 1 holds the numbers of an optimizer, too."""
    folder = write_files(tmp_path / "124M", tiny_files, COMMON + FORMS["tf"])
    tuned = {name: 2 * array for name, array in tiny_arrays.items()}
    slots = {f"{name}/{slot}": array[:1] for slot in ("Adam", "Adam_1") for name, array in tuned.items()}
    (folder / "run 1").mkdir()
    for name in ("model-1000", "run 1/é.d"):
        save(tensorflow, str(folder / name), tuned | slots | {"beta1_power": np.float32(0.9)})
    (folder / "checkpoint").write_text(content.replace("FOLDER", str(folder)), encoding="utf-8", newline="")
    assert tensorflow.train.latest_checkpoint(str(folder)) == str(folder / prefix)
    _, _, params = load_encoder_hparams_and_params("124M", tmp_path)
    assert_same(params, tiny_arrays if prefix == "model.ckpt" else tuned)


# ---- Damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TF_INDEX, TF_DATA, "model.safetensors"])
def test_flipped_bits_and_cuts_give_equal_arrays_or_one_line(name, tiny_files, tiny_hparams, tiny_arrays, tmp_path):
    """300 flipped bits and 40 cuts. Weights in a safetensors file have no checksum: there the header is damaged."""
    form = FORMS["safetensors" if name == "model.safetensors" else "tf"]
    folder = write_files(tmp_path / "tiny", tiny_files, COMMON + form)
    content = tiny_files[name]
    rng = np.random.default_rng(0)
    end = 8 + int.from_bytes(content[:8], "little") if name == "model.safetensors" else len(content)
    flips = rng.integers(0, end, 300).tolist()
    if name == TF_DATA:
        flips.append(content.index(tiny_arrays["h1/mlp/c_proj/w"].tobytes()) + 77)
    damaged = [content[:i] + bytes([content[i] ^ 1 << int(rng.integers(8))]) + content[i + 1 :] for i in flips]
    lengths = [0, 1, 8, len(content) - 1, *rng.integers(0, len(content), 40).tolist()]
    lines = []
    for one in [*damaged, *(content[:length] for length in lengths)]:
        (folder / name).write_bytes(one)
        try:
            assert_same(load_params(str(folder), tiny_hparams), tiny_arrays)
            lines.append("")
        except UserError as error:
            assert str(error).startswith(str(folder))
            assert str(error).isprintable()
            lines.append(str(error))
    assert all(name in line for line in lines[len(flips) :])
    assert name != TF_DATA or "h1/mlp/c_proj/w is damaged" in lines[300]


# ---- Official models ------------------------------------------------------------------------------------------------


def test_an_official_model_comes_from_a_mirror(tiny_files, tiny_hparams, tmp_path, monkeypatch):
    """Its small files first. The hashes and sizes are the official ones, which the tiny model does not have."""
    names = (*SMALL_FILES, TF_INDEX, TF_DATA)
    files = {f"/models/355M/{name}": tiny_files[name] for name in names}
    monkeypatch.setattr(download, "SHA256", {})
    monkeypatch.setitem(download.HPARAMS, "355M", tiny_hparams)
    with served(Server(files)) as server:
        folder = tmp_path / "355M"
        download_gpt2_files("355M", str(folder), f"{server.url}/models", weights=False)
        assert {path.name for path in folder.iterdir()} == {*SMALL_FILES, "SHA256SUMS"}
        download_gpt2_files("355M", str(folder), f"{server.url}/models")
        assert [path for path, _ in server.ranges] == [*files]
    _, hparams, _ = load_encoder_hparams_and_params("355M", str(tmp_path))
    assert hparams["n_vocab"] == 260


def test_a_run_names_a_stand_in(tmp_path, command):
    for name, more in (("124M", {"stand_in": "it is tiny\x1b[2J"}), ("other", {"stand_in": "it is slow"})):
        folder = shutil.copytree(MODELS / "tiny-draft", tmp_path / name)
        hparams = json.loads((folder / "hparams.json").read_text())
        (folder / "hparams.json").write_text(json.dumps(hparams | more))
    words = f"--models_dir={tmp_path} --target_model_size=124M --draft_model_size=other --json={tmp_path}/run.json -n 4"
    out = " ".join(command(*words.split())[1].split())
    assert r"Note: 124M is a stand-in for the official model: it is tiny\x1b[2J." in out
    assert "Note: other is slow." in out
    models = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["models"]
    assert [model["size"] for model in models if model["stand_in"]] == ["124M", "other"]
