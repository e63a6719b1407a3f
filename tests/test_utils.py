"""Loading: both forms of a checkpoint give the same arrays, and whatever does not fit is refused in one line."""

import json
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from conftest import hugging_face_name, write_safetensors, write_tf
from tiny import flatten, python, refusal

from speculative.checkpoints.bundle import open_bundle
from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.loading import load_params
from speculative.checkpoints.openai import import_tensorflow, open_by_tensorflow
from speculative.checkpoints.ranges import Ranges
from speculative.checkpoints.tensors import build_params, checkpoint_shapes, parameter_count
from speculative.checkpoints.weights import load_gpt2_params_from_safetensors
from speculative.support import official
from speculative.support.official import MODEL_SIZES, TF_DATA, TF_INDEX
from utils import load_encoder_hparams_and_params, load_gpt2_params_from_tf_ckpt

FORMS = {"tf": [TF_INDEX, TF_DATA], "safetensors": ["model.safetensors"]}
COMMON = ["hparams.json", "encoder.json", "vocab.bpe"]
ELSEWHERE = 'model_checkpoint_path: "../other/model.ckpt"\n'


@pytest.fixture(params=list(FORMS))
def model(request, tiny_files, tmp_path):
    """The folder of the tiny model, once in each form, in the models_dir tmp_path."""
    return write_files(tmp_path / "tiny", tiny_files, COMMON + FORMS[request.param])


def write_files(folder, files, names):
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(files[name])
    (folder / "checkpoint").write_text(ELSEWHERE)  # OpenAI's folders hold such a file, but nothing in it is needed
    return folder


def write_weights(model, arrays):
    if (model / TF_DATA).exists():
        write_tf(model, arrays)
    else:
        write_safetensors(model / "model.safetensors", arrays)


def assert_same(params, arrays):
    flat = flatten(params)
    assert flat.keys() == arrays.keys()
    for name, array in arrays.items():
        assert flat[name].dtype == np.float32
        np.testing.assert_array_equal(flat[name], array)


def test_both_forms_load_alike_and_one_tensor_at_a_time(model, tiny_hparams, tiny_arrays):
    encoder, hparams, params = load_encoder_hparams_and_params("tiny", model.parent)
    assert encoder.decode(encoder.encode("the thin thing")) == "the thin thing"
    assert hparams == tiny_hparams
    assert_same(params, tiny_arrays)
    seen = {}
    alive = []

    def convert(name, array):
        alive.append(weakref.ref(array))
        assert sum(ref() is not None for ref in alive) <= 2  # this one, and what the caller's variable still holds
        seen[name] = array.copy()
        return name

    params = load_params(model, hparams, convert)
    assert all(name == value for name, value in flatten(params).items())
    assert seen.keys() == tiny_arrays.keys()
    assert all(np.array_equal(seen[name], tiny_arrays[name]) for name in seen)


def test_prefix_masks_and_tied_head_are_hugging_faces_business(tiny_hparams, tiny_arrays, tmp_path):
    path = tmp_path / "model.safetensors"
    masks = {f"h{i}/attn/b": np.ones((1, 1, 16, 16), np.float32) for i in range(2)}
    assert hugging_face_name("h0/attn/b") == "h.0.attn.bias"
    write_safetensors(path, tiny_arrays | masks, prefix="transformer.")
    assert_same(load_gpt2_params_from_safetensors(path, tiny_hparams), tiny_arrays)
    write_safetensors(path, tiny_arrays | {"lm_head": tiny_arrays["wte"].copy()})
    assert_same(load_gpt2_params_from_safetensors(path, tiny_hparams), tiny_arrays)
    write_safetensors(path, tiny_arrays | {"lm_head": tiny_arrays["wte"] + 1})
    assert "lm_head" in refusal(load_gpt2_params_from_safetensors, path, tiny_hparams)


def test_the_official_index_holds_what_hparams_say(shared):
    pytest.importorskip("google_crc32c")
    pytest.importorskip("tensorflow")
    folder = shared / "official-124M"
    hparams = load_hparams(folder / "hparams.json")
    reader = import_tensorflow().train.load_checkpoint(str(folder / "model.ckpt"))
    stored = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    shapes = checkpoint_shapes(hparams).items()
    assert stored == {f"model/{name}": (1, *shape) if name.endswith("/w") else shape for name, shape in shapes}
    bias = reader.get_tensor("model/h0/attn/c_attn/b")
    assert bias[:2].tolist() == np.array([0.48033914, -0.5254326], np.float32).tolist()
    with open_bundle(str(folder / "model.ckpt")) as (variables, read):
        assert variables == stored
        assert np.array_equal(read("model/h0/attn/c_attn/b"), bias)
    for open_fn in (open_bundle, open_by_tensorflow):
        line = refusal(load_gpt2_params_from_tf_ckpt, str(folder / "model.ckpt"), hparams, open_fn=open_fn)
        assert f"{folder / TF_DATA}: tensor wte cannot be used" in line  # its data is cut short


def test_openais_form_needs_no_tensorflow(tiny_files, tiny_arrays, tiny_hparams, tmp_path):
    pytest.importorskip("google_crc32c")
    for name, content in tiny_files.items():
        (tmp_path / name).write_bytes(content)
    code = "import sys, numpy, utils; sys.modules['tensorflow'] = None\n"
    code += f"params = utils.load_gpt2_params_from_tf_ckpt({str(tmp_path / 'model.ckpt')!r}, {tiny_hparams})\n"
    code += "print(params['wte'].tobytes().hex())"
    assert python("-c", code).stdout.strip() == tiny_arrays["wte"].tobytes().hex()


def test_official_sizes():
    counts = {size: 4 * parameter_count(hparams) for size, hparams in official.HPARAMS.items()}
    assert counts == official.WEIGHT_BYTES


def test_a_model_size_is_a_name_or_a_path(tiny_files, tiny_hparams, tmp_path, monkeypatch):
    folder = write_files(tmp_path / "tiny", tiny_files, COMMON + FORMS["safetensors"])
    for size in ("a/../tiny", "tiny\n", ""):
        assert f"model size {size!r} should be " in refusal(load_encoder_hparams_and_params, size, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("./tiny", "../" + tmp_path.name + "/tiny", str(folder), "~/tiny", f"{folder}/"):
        _, hparams, _ = load_encoder_hparams_and_params(path, "nowhere")
        assert hparams == tiny_hparams
    assert refusal(load_encoder_hparams_and_params, "./tinny", "nowhere").startswith("./tinny lacks hparams.json")


def test_what_is_missing_is_named(model):
    for path in sorted(model.iterdir()):
        content = path.read_bytes()
        path.unlink()
        if path.name != "checkpoint":
            assert f"lacks {path.name};" in refusal(load_encoder_hparams_and_params, "tiny", model.parent)
        path.write_bytes(content)
    for models_dir in (model.parent, model / "nowhere"):
        line = refusal(load_encoder_hparams_and_params, "tinny", models_dir)
        assert "tinny lacks hparams.json" in line
        assert all(name in line for name in MODEL_SIZES)


def test_what_does_not_fit(model, tiny_hparams, tiny_arrays):
    def line():
        return refusal(load_encoder_hparams_and_params, "tiny", model.parent)

    for bad in (np.nan, np.inf, -np.inf):
        arrays = tiny_arrays | {"h1/mlp/c_fc/w": tiny_arrays["h1/mlp/c_fc/w"].copy()}
        arrays["h1/mlp/c_fc/w"][3, 5] = bad
        write_weights(model, arrays)
        assert "h1/mlp/c_fc/w holds NaN or infinity" in line()
    for dtype in (np.float64, np.int32, ml_dtypes.float8_e4m3fn):
        write_weights(model, {name: array.astype(dtype) for name, array in tiny_arrays.items()})
        assert "tensor wte " in line()
        assert dtype.__name__ in line()
    for change in ({"n_layer": 1}, {"n_layer": 3}, {"n_ctx": 17}, {"n_embd": 16}):
        (model / "hparams.json").write_text(json.dumps(tiny_hparams | change))
        assert "hparams.json" in line()
        assert "tensor" in line()
    (model / "hparams.json").write_text(json.dumps(tiny_hparams | {"n_vocab": 259}))
    assert "260 tokens" in line()
    assert "n_vocab is 259" in line()


def test_tensors_are_read_in_order_and_by_one_thread(tiny_hparams, tiny_arrays):
    """What draws random weights as they are asked for relies on it."""
    read_by = []

    def read(name):
        read_by.append((name, threading.get_ident()))
        return tiny_arrays[name]

    assert_same(build_params("model.safetensors", checkpoint_shapes(tiny_hparams), read, tiny_hparams), tiny_arrays)
    assert [name for name, _ in read_by] == [*checkpoint_shapes(tiny_hparams)]
    assert len({thread for _, thread in read_by}) == 1


def test_what_is_kept_is_not_written_over(tmp_path):
    """Memory is used again, but not while an array, a view of one or a buffer of it is in use."""
    n_bytes = 2**20
    content = np.random.default_rng(0).integers(0, 256, 20 * n_bytes, np.uint8)
    (tmp_path / "file").write_bytes(content)
    kept = []
    with open(tmp_path / "file", "rb", buffering=0) as f:
        ranges = Ranges(f)
        places = set()
        for i, keep in enumerate([np.asarray, lambda a: a.view("f4").reshape(2, -1)[1:], memoryview, lambda a: 0] * 5):
            array = ranges.read(i * n_bytes, n_bytes)
            assert np.array_equal(array, content[i * n_bytes : (i + 1) * n_bytes])
            places.add(array.ctypes.data)
            kept.append(keep(array))
            del array
    assert len(places) == 16  # that of what is not kept is used again
    for i, something in enumerate(kept):
        if i % 4 < 3:
            bytes_of_it = np.asarray(something).tobytes()
            assert bytes_of_it == content[(i + 1) * n_bytes - len(bytes_of_it) : (i + 1) * n_bytes].tobytes()


def test_a_full_memory_is_not_the_files_fault(tiny_hparams):
    def read(name):
        raise MemoryError

    with pytest.raises(MemoryError):
        build_params("model.safetensors", checkpoint_shapes(tiny_hparams), read, tiny_hparams)
