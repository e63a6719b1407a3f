"""Mistakes that are planted in what leads from a model's name to its parameters: each is seen by a quick check, which
passes without it."""

import json
import os
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import write_safetensors, write_small_files
from tiny import ROOT, flatten, plant, refusal
from tokenizer_files import write_tokenizer

from speculative.checkpoints import config, download, folder, names, openai, tokenizer
from speculative.checkpoints.official import TF_DATA, TF_INDEX
from speculative.support import files


class Place(NamedTuple):
    """A folder with the small files of the tiny model, and what its weights are."""

    folder: object
    hparams: dict
    arrays: dict
    files: dict

    def write(self, arrays, prefix="transformer."):
        write_safetensors(self.folder / "model.safetensors", arrays, prefix)

    def load(self, hparams=None):
        return flatten(folder.load_params(str(self.folder), hparams or self.hparams))

    def refused(self):
        return refusal(self.load)

    def holds(self, arrays):
        loaded = self.load()
        return loaded.keys() == arrays.keys() and all((loaded[name] == arrays[name]).all() for name in arrays)

    def put(self, *names):
        for name in names:
            (self.folder / name).write_bytes(self.files[name])


@pytest.fixture
def place(tiny_hparams, tiny_arrays, tiny_files, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tiny").mkdir()
    write_small_files(tmp_path / "tiny", tiny_hparams)
    return Place(tmp_path / "tiny", tiny_hparams, tiny_arrays, tiny_files)


# ---- Tensors ---------------------------------------------------------------------------------------------------------


def check_half_precision(place):
    for dtype in (np.float16, ml_dtypes.bfloat16):
        arrays = {name: array.astype(dtype) for name, array in place.arrays.items()}
        place.write(arrays)
        assert place.holds({name: array.astype(np.float32) for name, array in arrays.items()})


def check_not_a_number(place):
    place.write(place.arrays | {"wpe": np.full((16, 32), np.nan, np.float32)})
    assert "holds NaN" in place.refused()


def check_another_tensor(place):
    for arrays in (place.arrays | {"other": np.ones(3, np.float32)}, {"wte": place.arrays["wte"]}):
        place.write(arrays)
        assert "contrary to its settings" in place.refused()
    place.write(place.arrays | {"step": np.array(1, np.float32)})  # an optimizer's
    assert place.holds(place.arrays)


def check_another_shape(place):
    place.write(place.arrays | {"wpe": np.ones((32, 16), np.float32)})
    assert "wpe is (32, 16) (transposed" in place.refused()


def check_output_matrix(place):
    place.write(place.arrays | {"lm_head/w": place.arrays["wte"] + 1})
    assert "lm_head.weight is not wte.weight" in place.refused()


def check_note(place):
    """A file that was checked is not what it was."""
    place.write(place.arrays)
    place.load()
    check_not_a_number(place)


def check_changed_file(place):
    place.write(place.arrays)
    path = place.folder / "model.safetensors"
    said = refusal(folder.load_params, str(place.folder), place.hparams, lambda name, array: os.utime(path, (1, 1)))
    assert "changed while it was read" in said


def check_header(place):
    place.write(place.arrays)
    path = place.folder / "model.safetensors"
    content = path.read_bytes()
    for damaged in (content[:-4], content + b"more", content.replace(b"[32]", b"[16]", 1)):
        path.write_bytes(damaged)
        assert "damaged, or not a safetensors file" in place.refused()
    path.write_bytes(content)
    assert place.holds(place.arrays)


def check_checksum(place):
    place.put(TF_INDEX)
    content = place.files[TF_DATA]
    (place.folder / TF_DATA).write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    assert "its CRC32C is not the one in the index" in place.refused()


def check_index(place):
    """The types, shapes and places of all tensors."""
    place.put(TF_INDEX, TF_DATA)
    assert place.holds(place.arrays)
    index = place.folder / TF_INDEX
    index.write_bytes(index.read_bytes().replace(b"wpe", b"wpf", 1))
    assert f"{TF_INDEX}: damaged" in refusal(openai.read_index, [str(index), str(place.folder / TF_DATA)])


# ---- Settings and tokens ---------------------------------------------------------------------------------------------


def check_settings(place):
    settings = place.hparams | {"n_inner": 64, "activation_function": "gelu_python", "stand_in": "a small one"}
    path = place.folder / "hparams.json"
    path.write_text(json.dumps(settings))
    assert config.load_hparams(path) == settings | {"activation_function": "gelu"}
    for wrong in ({"n_head": 5}, {"layer_norm_epsilon": 2.0}, {"quantization": {"bits": 4}}, {"n_layer": 0}):
        path.write_text(json.dumps(place.hparams | wrong))
        refusal(config.load_hparams, path)


def check_absorbed_settings(place):
    """Queries and c_proj change with these settings, keys do not."""
    settings = {"layer_norm_epsilon": 4e-5, "scale_attn_by_inverse_layer_idx": True}
    (place.folder / "hparams.json").write_text(json.dumps(place.hparams | settings))
    place.write(place.arrays)
    loaded = place.load()
    factors = {"h1/attn/c_attn/b": np.repeat([0.5, 1.0], [32, 64]), "h1/mlp/c_proj/b": 0.5, "ln_f/g": 2, "wte": 0.5}
    for name, factor in factors.items():
        np.testing.assert_allclose(loaded[name], place.arrays[name] * factor, rtol=1e-6)


def check_vocabulary(place):
    encoder = folder.look(str(place.folder)).load_encoder()
    assert [encoder.decode([i]) for i in encoder.encode("the inn")] == ["the", " ", "in", "n"]
    (place.folder / "hparams.json").write_text(json.dumps(place.hparams | {"n_vocab": 261}))
    assert "n_vocab is 261" in refusal(folder.look(str(place.folder)).load_encoder)


def check_end_tokens(place):
    write_tokenizer(place.folder, {}, {"generation_config.json": {"eos_token_id": [7, 8]}})
    encoder = tokenizer.read_encoder(str(place.folder), 2048)
    assert (encoder.eot, encoder.ends) == (2047, {7, 8, 2047})


# ---- Names and folders -----------------------------------------------------------------------------------------------


def check_forms(place):
    """The files of one program: config.json goes with tokenizer.json. model.safetensors comes first."""
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (place.folder / name).write_text("{}")
    (place.folder / "checkpoint").write_text('model_checkpoint_path: "run-1"')
    there = folder.look(str(place.folder))
    assert (there.settings, there.vocabulary) == ("config.json", ("tokenizer.json",))
    assert there.weights == ["model.safetensors"]
    assert there.missing() == {}
    (place.folder / "model.safetensors").unlink()
    assert folder.look(str(place.folder)).missing() == {"weights": ["run-1.index", "run-1.data-00000-of-00001"]}


def check_names(place):
    for name in ("a/..", "a\nb", "a//b"):
        with pytest.raises(ValueError, match="a folder of models_dir"):
            names.checked_model_name(name)
    assert names.checked_model_name("my model") == "my model"


def check_incomplete_folder(place):
    assert "lacks model.safetensors" in refusal(folder.find_checkpoint, str(place.folder), ".", weights=False)
    models_dir = str(place.folder.parent)
    assert "unknown model size 'tinny'" in refusal(folder.find_checkpoint, "tinny", models_dir)


def check_sum(place):
    part = place.folder / "weights.part"
    part.write_bytes(b"weights")
    assert "its sha256 is wrong" in refusal(download.finish, "http://a", str(part.with_suffix("")), "0" * 64)
    assert not part.exists()


def check_input_is_kept(place):
    for path in (place.folder / "hparams.json", place.folder / "new.json"):
        assert "choose another file" in refusal(files.check_outputs, [str(path)], [str(place.folder)])
    for name in ("main.py", "gpt2.py", "README.md", "speculative/rules.py", "speculative/new.json"):
        assert "choose another file" in refusal(files.check_outputs, [str(ROOT / name)])
    other = str(place.folder.parent / "a.json")
    assert "choose another file" in refusal(files.check_outputs, [other, other])


MISTAKES = [
    # (the check that sees it, where, what stands there, what stands there by mistake)
    (check_half_precision, "weights:as_float32", "<< 16", "<< 15"),
    (check_half_precision, "hugging_face:openai_name", "in RENAMED", "in RENAMED[1:]"),
    (check_not_a_number, "weights:is_finite", "return bool(", "return bool(True or "),
    (check_another_tensor, "weights:check_names", "shapes.keys() ^ names", "shapes.keys() - names"),
    (check_another_tensor, "weights:check_names", "shapes.keys() ^ names", "names - shapes.keys()"),
    (check_another_tensor, "weights:check_names", "parameter in shapes or not tensor.shape", "parameter in shapes"),
    (check_another_shape, "weights:check_shapes", "(shape, (1, *shape))", "(shape, shape[::-1])"),
    (check_output_matrix, "hugging_face:leave_out_output_matrix", "if not np", "if False and np"),
    (check_note, "disk:Note.__init__", "repr(about)", "'all'"),
    (check_note, "disk:state_of", "about.st_mtime_ns, about.st_ctime_ns, about.st_ino", "0, 0, 0"),
    (check_changed_file, "weights:StoredWeights.finish", "state_of(tensor.path) != tensor.file.state", "False"),
    (check_header, "hugging_face:check_header", "except SafetensorError", "except ZeroDivisionError"),
    (check_header, "hugging_face:read_file", "start + begin", "start"),
    (check_checksum, "openai:SummedTensor.check_sum", "masked_crc32c(content) != self.crc32c", "False"),
    (check_index, "openai:tensor_of", "entry.get(4, 0)", "0"),
    (check_index, "openai:read_block", "!= checksum", "is None"),
    (check_settings, "config:sizes_of", 'hparams["n_inner"] = n_inner', "pass"),
    (check_settings, "config:sizes_of", 'hparams["activation_function"] = activation', "pass"),
    (check_settings, "config:check", "n_embd % n_head", "False"),
    (check_settings, "config:check", "if value and not (", "if False and not ("),
    (check_absorbed_settings, "config:settings_in_weights", "< n, c, 1)", "< 2 * n, c, 1)"),
    (check_absorbed_settings, "config:settings_in_weights", "return array / s", "return array * s"),
    (check_vocabulary, "folder:Checkpoint.load_encoder", "encoder.n_vocab != n_vocab", "False"),
    (check_end_tokens, "added_tokens:end_tokens", "of_tokenizer + of_model", "of_tokenizer"),
    (check_forms, "folder:vocabulary_of", 'settings == "config.json"', "False"),
    (check_forms, "folder:weights_of", "if SAFETENSORS in names", "if False"),
    (check_forms, "openai:latest_checkpoint", "named[2] if named", "'' if named"),
    (check_names, "names:is_folder_name", '{"", ".", ".."}', '{""}'),
    (check_names, "names:is_folder_name", "not controls and", ""),
    (check_incomplete_folder, "folder:find_checkpoint", "weights or not is_official", "weights"),
    (check_sum, "download:finish", 'sha256 not in ("", received)', "False"),
    (check_input_is_kept, "files:check_outputs", "used |= forms\n", "pass\n"),
    (check_input_is_kept, "files:check_outputs", "(*PROGRAM, *inputs)", "inputs"),
    (check_input_is_kept, "files:with_parents", "[path, *", "[*"),
]
ROOMS = {"files": "support"}  # the others are in checkpoints
CHECKS = [*dict.fromkeys(check for check, *_ in MISTAKES)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_without_a_mistake_all_checks_pass(check, place):
    check(place)


@pytest.mark.parametrize(("check", "where", "old", "new"), MISTAKES)
def test_a_planted_mistake_is_seen(check, where, old, new, place, monkeypatch):
    room = ROOMS.get(where.partition(":")[0], "checkpoints")
    plant(monkeypatch, f"{room}.{where}", old, new)
    with pytest.raises((Exception, pytest.fail.Exception)):
        check(place)
