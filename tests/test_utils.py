"""Loading: both forms of a checkpoint give the same arrays, and whatever does not fit is refused in one line."""

import json
import os
import weakref

import ml_dtypes
import numpy as np
import pytest
from conftest import hugging_face_name, write_safetensors, write_tf

import utils
from checkpoints.tensors import checkpoint_shapes, parameter_count
from plumbing import official
from plumbing.errors import UserError
from utils import load_encoder_hparams_and_params, load_hparams

FORMS = {"tf": [utils.TF_INDEX, utils.TF_DATA], "safetensors": ["model.safetensors"]}
COMMON = ["hparams.json", "encoder.json", "vocab.bpe"]


@pytest.fixture(params=list(FORMS))
def model(request, tiny_files, tmp_path):
    """The folder of the tiny model, once in each form, in the models_dir tmp_path."""
    return write_files(tmp_path / "tiny", tiny_files, COMMON + FORMS[request.param])


def write_files(folder, files, names):
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(files[name])
    return folder


def flatten(params):
    """params -> {OpenAI's name: array}."""
    flat = {}

    def walk(prefix, value):
        if isinstance(value, dict):
            for key, child in value.items():
                walk([*prefix, key], child)
        else:
            flat["/".join(prefix)] = value

    for i, block in enumerate(params["blocks"]):
        walk([f"h{i}"], block)
    walk([], {key: value for key, value in params.items() if key != "blocks"})
    return flat


def assert_same(params, arrays):
    flat = flatten(params)
    assert flat.keys() == arrays.keys()
    for name, array in arrays.items():
        assert flat[name].dtype == np.float32
        np.testing.assert_array_equal(flat[name], array)


def refusal(load, *args):
    """The one line that a load is refused with."""
    with pytest.raises(UserError) as caught:
        load(*args)
    line = str(caught.value)
    assert line and "\n" not in line and len(line) < 1000
    return line


def test_both_forms_load_alike(model, tiny_hparams, tiny_arrays):
    encoder, hparams, params = load_encoder_hparams_and_params("tiny", model.parent)
    assert encoder.decode(encoder.encode("the thin thing")) == "the thin thing"
    assert hparams == tiny_hparams
    assert_same(params, tiny_arrays)


def test_convert_sees_each_tensor_once_and_only_one_is_held(model, tiny_arrays):
    seen, alive = {}, []

    def convert(name, array):
        alive.append(weakref.ref(array))
        assert sum(ref() is not None for ref in alive) <= 2  # this one, and what the caller's variable still holds
        seen[name] = array.copy()
        return name

    _, _, params = load_encoder_hparams_and_params("tiny", model.parent, convert)
    assert all(name == value for name, value in flatten(params).items())
    assert seen.keys() == tiny_arrays.keys()
    assert all(np.array_equal(seen[name], tiny_arrays[name]) for name in seen)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_safetensors_are_widened(dtype, tiny_hparams, tiny_arrays, tmp_path):
    narrow = {name: array.astype(dtype) for name, array in tiny_arrays.items()}
    write_safetensors(tmp_path / "model.safetensors", narrow)
    params = utils.load_gpt2_params_from_safetensors(tmp_path / "model.safetensors", tiny_hparams)
    assert_same(params, {name: array.astype(np.float32) for name, array in narrow.items()})


def test_prefix_masks_and_tied_head_are_hugging_faces_business(tiny_hparams, tiny_arrays, tmp_path):
    path = tmp_path / "model.safetensors"
    masks = {f"h{i}/attn/b": np.ones((1, 1, 16, 16), np.float32) for i in range(2)}
    assert hugging_face_name("h0/attn/b") == "h.0.attn.bias"
    write_safetensors(path, tiny_arrays | masks, prefix="transformer.")
    assert_same(utils.load_gpt2_params_from_safetensors(path, tiny_hparams), tiny_arrays)
    write_safetensors(path, tiny_arrays | {"lm_head": tiny_arrays["wte"].copy()})
    assert_same(utils.load_gpt2_params_from_safetensors(path, tiny_hparams), tiny_arrays)
    write_safetensors(path, tiny_arrays | {"lm_head": tiny_arrays["wte"] + 1})
    assert "lm_head" in refusal(utils.load_gpt2_params_from_safetensors, path, tiny_hparams)


def test_official_index_holds_what_hparams_say(shared):
    pytest.importorskip("tensorflow")
    folder = shared / "official-124M"
    hparams = load_hparams(folder / "hparams.json")
    reader = utils.import_tensorflow().train.load_checkpoint(str(folder / "model.ckpt"))
    stored = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    expected = {
        f"model/{name}": (1, *shape) if name.endswith("/w") else shape
        for name, shape in checkpoint_shapes(hparams).items()
    }
    assert len(stored) == 148
    assert stored == expected
    bias = reader.get_tensor("model/h0/attn/c_attn/b")
    assert bias[:2].tolist() == np.array([0.48033914, -0.5254326], np.float32).tolist()
    assert official.WEIGHT_BYTES["124M"] == 4 * parameter_count(hparams)


def test_official_data_cut_short_is_refused(shared):
    pytest.importorskip("tensorflow")
    folder = shared / "official-124M"
    hparams = load_hparams(folder / "hparams.json")
    line = refusal(utils.load_gpt2_params_from_tf_ckpt, str(folder / "model.ckpt"), hparams)
    assert f"{folder / utils.TF_DATA}: tensor wte cannot be used" in line


@pytest.mark.parametrize("size", utils.MODEL_SIZES)
def test_official_sizes(size):
    assert 4 * parameter_count(official.HPARAMS[size]) == official.WEIGHT_BYTES[size]


@pytest.mark.parametrize(
    "size",
    [
        "a/../tiny",
        "a/",
        "a//b",
        "a/b/c",
        "",
        "a\\b",
        "C:tiny",
        "tiny\n",
        "a b",
        "/\0",
        "a/b@",
        "a/b@c/d",
        "a/.b",
        "a/b@..",
    ],
)
def test_a_model_size_is_a_name_or_a_path(size, tiny_files, tmp_path):
    write_files(tmp_path / "tiny", tiny_files, tiny_files)
    assert f"model size {size!r} should be " in refusal(load_encoder_hparams_and_params, size, tmp_path)


def test_a_path_to_a_folder(tiny_files, tiny_hparams, tmp_path, monkeypatch):
    folder = write_files(tmp_path / "tiny", tiny_files, COMMON + FORMS["safetensors"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("./tiny", "../" + tmp_path.name + "/tiny", str(folder), "~/tiny", f"{folder}/"):
        _, hparams, _ = load_encoder_hparams_and_params(path, "nowhere")
        assert hparams == tiny_hparams
    assert refusal(load_encoder_hparams_and_params, "./tinny", "nowhere").startswith("./tinny lacks hparams.json")


def test_an_unknown_model_is_told_from_the_official_ones(model):
    for models_dir in (model.parent, model / "nowhere"):
        line = refusal(load_encoder_hparams_and_params, "tinny", models_dir)
        assert "tinny lacks hparams.json" in line and all(name in line for name in utils.MODEL_SIZES)


def test_each_missing_file_is_named(model):
    for path in sorted(model.iterdir()):
        content = path.read_bytes()
        path.unlink()
        assert f"lacks {path.name};" in refusal(load_encoder_hparams_and_params, "tiny", model.parent)
        path.write_bytes(content)
    load_encoder_hparams_and_params("tiny", model.parent)


@pytest.mark.parametrize(
    "change",
    [
        {"n_embd": 0}, {"n_layer": -1}, {"n_head": "4"}, {"n_ctx": 16.0}, {"n_vocab": True}, {"n_head": None},
        {"n_embd": 33}, {"n_vocab": 10**30}, {"n_layer": 10**6}, {"n_head": [4]},
    ],
)  # fmt: skip
def test_hparams_are_sane_numbers(change, tiny_hparams, tmp_path):
    path = tmp_path / "hparams.json"
    path.write_text(json.dumps(tiny_hparams))
    assert load_hparams(path) == tiny_hparams
    path.write_text(json.dumps(tiny_hparams | change))
    line = refusal(load_hparams, path)
    assert str(path) in line and next(iter(change)) in line


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "5", '"ab"', "[[1]]", "[" * 10**5, "\ud800", "NaN"])
def test_hparams_are_json(text, tmp_path):
    path = tmp_path / "hparams.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert refusal(load_hparams, path).startswith(f"{path}: ")


@pytest.mark.parametrize("change", [{"n_layer": 1}, {"n_layer": 3}, {"n_ctx": 8}, {"n_ctx": 17}, {"n_embd": 16}])
def test_hparams_that_contradict_the_checkpoint(change, model, tiny_hparams):
    (model / "hparams.json").write_text(json.dumps(tiny_hparams | change))
    line = refusal(load_encoder_hparams_and_params, "tiny", model.parent)
    assert "hparams.json" in line and "tensor" in line


def test_hparams_that_contradict_the_vocabulary(model, tiny_hparams):
    (model / "hparams.json").write_text(json.dumps(tiny_hparams | {"n_vocab": 259}))
    line = refusal(load_encoder_hparams_and_params, "tiny", model.parent)
    assert "260 tokens" in line and "n_vocab is 259" in line


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers(bad, model, tiny_arrays):
    arrays = {name: array.copy() for name, array in tiny_arrays.items()}
    arrays["h1/mlp/c_fc/w"][3, 5] = bad
    if (model / utils.TF_DATA).exists():
        write_tf(model, arrays)
    else:
        write_safetensors(model / "model.safetensors", arrays)
    assert "h1/mlp/c_fc/w holds NaN or infinity" in refusal(load_encoder_hparams_and_params, "tiny", model.parent)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, ml_dtypes.float8_e4m3fn])
def test_weights_of_another_dtype(dtype, model, tiny_arrays):
    others = {name: array.astype(dtype) for name, array in tiny_arrays.items()}
    if (model / utils.TF_DATA).exists():
        write_tf(model, others)
    else:
        write_safetensors(model / "model.safetensors", others)
    line = refusal(load_encoder_hparams_and_params, "tiny", model.parent)
    assert "tensor wte " in line and dtype.__name__ in line


@pytest.mark.parametrize("name", ["../other/model.ckpt", "/etc/passwd", "..", "", "sub/model.ckpt"])
def test_a_checkpoint_file_leads_nowhere_else(name, tiny_files, tiny_arrays, tmp_path):
    """OpenAI's folders hold one, but nothing in it is needed."""
    folder = write_files(tmp_path / "tiny", tiny_files, COMMON + FORMS["tf"])
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')
    assert_same(load_encoder_hparams_and_params("tiny", tmp_path)[2], tiny_arrays)


def test_the_remedy_depends_on_where_a_file_came_from(tmp_path):
    assert "; delete " in str(utils.bad_file(tmp_path / "124M" / "vocab.bpe", "damaged"))
    assert "; replace " in str(utils.bad_file(tmp_path / "mine" / "vocab.bpe", "damaged"))


def test_files_that_cannot_be_read(model, monkeypatch):
    (model / "hparams.json").unlink()
    (model / "hparams.json").symlink_to(model)
    assert "lacks hparams.json" in refusal(load_encoder_hparams_and_params, "tiny", model.parent)


def test_a_disk_that_fails_while_tensors_are_read(tiny_files, tiny_hparams, tmp_path):
    folder = write_files(tmp_path / "tiny", tiny_files, tiny_files)
    path = folder / "model.safetensors"

    def cut_off(name, array):
        os.truncate(path, 1000)

    line = refusal(utils.load_gpt2_params_from_safetensors, path, tiny_hparams, cut_off)
    assert f"{path}: tensor " in line and "cannot be used" in line


def test_a_full_memory_is_not_the_files_fault(tiny_hparams):
    def read(name):
        raise MemoryError

    with pytest.raises(MemoryError):
        utils.build_params("model.safetensors", checkpoint_shapes(tiny_hparams), read, tiny_hparams)
