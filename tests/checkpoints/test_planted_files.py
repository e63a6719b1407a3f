"""Mistakes that are planted in what leads from a model's name to its parameters: each is seen by a quick check, which
passes without it."""

import json
import os
from dataclasses import replace
from io import BytesIO
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import write_safetensors, write_small_files
from mistakes import SEEN, Mistakes, make
from tiny import ROOT, flatten, refusal
from tokenizer_files import write_tokenizer

from encoder import get_encoder
from speculative.checkpoints import (
    config,
    disk,
    download,
    folder,
    hugging_face,
    names,
    openai,
    tokenizer,
    tokenizer_files,
    weights,
)
from speculative.checkpoints.config import check, settings_in_weights, sizes_of
from speculative.checkpoints.disk import leave, note_of
from speculative.checkpoints.download import finish
from speculative.checkpoints.folder import find_files, look, weights_of
from speculative.checkpoints.hugging_face import openai_name, read_file
from speculative.checkpoints.names import OPENAI_VOCABULARY, TF_DATA, TF_INDEX, is_folder_name
from speculative.checkpoints.openai import tensor_of
from speculative.checkpoints.tokenizer_files import end_tokens
from speculative.checkpoints.weights import as_float32, check_names, check_shapes
from speculative.support import files
from speculative.support.files import check_outputs, forms_of, with_parents


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
    encoder = folder.open_checkpoint(folder.look(str(place.folder))).load_encoder()
    assert [encoder.decode([i]) for i in encoder.encode("the inn")] == ["the", " ", "in", "n"]
    (place.folder / "hparams.json").write_text(json.dumps(place.hparams | {"n_vocab": 261}))
    changed = folder.open_checkpoint(folder.look(str(place.folder)))
    assert "n_vocab is 261" in refusal(changed.load_encoder)


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
    assert (there.settings_file, there.vocabulary_files) == ("config.json", ("tokenizer.json",))
    assert there.weights == ["model.safetensors"]
    assert there.missing() == {}
    (place.folder / "model.safetensors").unlink()
    assert folder.look(str(place.folder)).missing() == {"weights": ["run-1.index", "run-1.data-00000-of-00001"]}


def check_names_lead_nowhere(place):
    for name in ("a/..", "a\nb", "a//b"):
        with pytest.raises(ValueError, match="a folder of models_dir"):
            names.checked_model_name(name)
    assert names.checked_model_name("my model") == "my model"


def check_incomplete_folder(place):
    assert "lacks model.safetensors" in refusal(folder.find_files, str(place.folder), ".", weights=False)
    models_dir = str(place.folder.parent)
    assert "unknown model size 'tinny'" in refusal(folder.find_files, "tinny", models_dir)


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


# ---- The mistakes ----------------------------------------------------------------------------------------------------

mistakes = Mistakes()


@mistakes.plant(check_half_precision, weights, "as_float32")
def shifts_bfloat16_by_15(content, dtype):
    if dtype == "bfloat16":
        return (content.view("<u2").astype(np.uint32) << 15).view(np.float32)
    return as_float32(content, dtype)


@mistakes.plant(check_half_precision, hugging_face, "openai_name")
def keeps_the_prefix(name):
    return name if name.startswith("transformer.") else openai_name(name)


@mistakes.plant(check_not_a_number, weights, "is_finite")
def all_is_finite(array):
    return True


@mistakes.plant(check_another_tensor, weights, "check_names")
def lets_other_tensors_pass(index, shapes):
    check_names({name: index[name] for name in index if name in shapes}, shapes)


@mistakes.plant(check_another_tensor, weights, "check_names")
def lets_a_number_count(index, shapes):
    check_names({name: replace(tensor, shape=tensor.shape or (1,)) for name, tensor in index.items()}, shapes)


@mistakes.plant(check_another_tensor, weights, "check_names")
def lets_tensors_be_missing(index, shapes):
    shapes_there = {name: shape for name, shape in shapes.items() if name in index}
    check_names(index, shapes_there)
    for name in shapes.keys() - index:
        index[name] = replace(index["wte"], shape=shapes[name])


@mistakes.plant(check_another_shape, weights, "check_shapes")
def takes_transposed_tensors(index, shapes):
    check_shapes({name: replace(index[name], shape=shape) for name, shape in shapes.items()}, shapes)


@mistakes.plant(check_output_matrix, hugging_face, "leave_out_output_matrix")
def takes_any_output_matrix(tensors):
    tensors.setdefault("wte", tensors.pop("lm_head/w"))


@mistakes.plant(check_note, disk, "note_of")
def notes_all_files_alike(about):
    return note_of("all")


@mistakes.plant(check_note, disk, "state_of")
def looks_at_the_size_alone(file):
    return disk.FileState(os.stat(file).st_size, 0, 0, 0)


@mistakes.plant(check_changed_file, weights.Weights, "finish")
def does_not_look_again(self):
    leave(self.note)


@mistakes.plant(check_header, hugging_face, "check_header")
def takes_any_header(file):
    pass


@mistakes.plant(check_header, hugging_face, "read_file")
def begins_all_tensors_at_the_first(path):
    tensors, metadata = read_file(path)
    first = min(tensor.begin for tensor in tensors.values())
    return {name: replace(tensor, begin=first) for name, tensor in tensors.items()}, metadata


@mistakes.plant(check_checksum, openai.SummedTensor, "check_sum")
def checks_no_sum(self, name, content):
    pass


@mistakes.plant(check_index, openai, "tensor_of")
def begins_all_tensors_at_0(data, message):
    return replace(tensor_of(data, message), begin=0)


@mistakes.plant(check_index, openai, "read_block")
def reads_a_damaged_index(path):
    table = disk.mapped(path).content[:]
    end = openai.varint(BytesIO(table[-openai.FOOTER :]))
    return table[: end - 9 - 4 * openai.number_of(table[end - 9 : end - 5])]


@mistakes.plant(check_settings, config, "sizes_of")
def leaves_out_the_inner_width(config):
    return {name: value for name, value in sizes_of(config).items() if name != "n_inner"}


@mistakes.plant(check_settings, config, "sizes_of")
def leaves_out_the_activation(config):
    return {name: value for name, value in sizes_of(config).items() if name != "activation_function"}


@mistakes.plant(check_settings, config, "check")
def takes_any_number_of_heads(config, path):
    check(config | {"n_head": 1}, path)


@mistakes.plant(check_settings, config, "check")
def takes_quantized_weights(config, path):
    check({name: value for name, value in config.items() if name != "quantization"}, path)


@mistakes.plant(check_absorbed_settings, config, "settings_in_weights")
def changes_the_keys_too(config):
    n = config["n_embd"]
    right = settings_in_weights(config)

    def change(name, array):
        changed = right(name, array)
        if name == "h1/attn/c_attn/b":
            changed[n : 2 * n] /= 2
        return changed

    return change


@mistakes.plant(check_absorbed_settings, config, "settings_in_weights")
def changes_the_last_layer_norm_as_wte(config):
    right = settings_in_weights(config)
    return lambda name, array: right("wte" if name == "ln_f/g" else name, array)


@mistakes.plant(check_vocabulary, folder.Checkpoint, "load_encoder")
def takes_any_number_of_tokens(self, other=None):
    return get_encoder(self.folder, "")


@mistakes.plant(check_end_tokens, tokenizer_files, "end_tokens")
def ends_at_the_tokenizers_alone(files, named, tokenizer, n_vocab):
    return end_tokens(files, named, tokenizer, n_vocab)[:1]


@mistakes.plant(check_forms, folder, "look")
def takes_openais_tokens_first(folder, may_be_padded=True):
    return replace(look(folder, may_be_padded), vocabulary_files=OPENAI_VOCABULARY)


@mistakes.plant(check_forms, folder, "weights_of")
def takes_openais_weights_first(folder, names):
    return weights_of(folder, names - {"model.safetensors"})


@mistakes.plant(check_forms, openai, "latest_checkpoint")
def finds_no_latest_checkpoint(folder):
    return ""


@mistakes.plant(check_names_lead_nowhere, names, "is_folder_name")
def leads_out(name):
    return is_folder_name(name.replace("..", "parent"))


@mistakes.plant(check_names_lead_nowhere, names, "is_folder_name")
def takes_two_lines(name):
    return is_folder_name(name.replace("\n", " "))


@mistakes.plant(check_incomplete_folder, folder, "find_files")
def lets_weights_be_missing(model_size, models_dir, source="openai", weights=True, refresh=False):
    files = folder.look(folder.local_folder(model_size, models_dir))
    return find_files(model_size, models_dir) if files.missing(weights) else files


@mistakes.plant(check_sum, download, "finish")
def takes_any_content(url, path, sha256):
    finish(url, path, "")


@mistakes.plant(check_input_is_kept, files, "check_outputs")
def writes_a_file_twice(outputs, inputs=()):
    for path in outputs:
        check_outputs([path], inputs)


@mistakes.plant(check_input_is_kept, files, "forms_of")
def overwrites_the_program(path):
    return set() if path in files.PROGRAM else forms_of(path)


@mistakes.plant(check_input_is_kept, files, "with_parents")
def looks_at_folders_alone(path):
    return with_parents(path)[1:]


@pytest.mark.parametrize("check", mistakes.checks, ids=lambda check: check.__name__)
def test_without_a_mistake_all_checks_pass(check, place):
    check(place)


@pytest.mark.parametrize("mistake", mistakes, ids=str)
def test_a_planted_mistake_is_seen(mistake, place, monkeypatch):
    make(monkeypatch, mistake)
    with pytest.raises(SEEN):
        mistake.seen_by(place)
