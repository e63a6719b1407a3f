"""Folders as Hugging Face's libraries save them: each setting is honoured or named, each token is theirs."""

import errno
import json
import math
import mmap
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import write_safetensors
from hub_folders import (
    CONFIG,
    IDS,
    SETTINGS,
    TINY,
    plain_logits,
    random_tensors,
    sizes,
    write_folder,
    write_shards_index,
)
from tiny import flatten, random_arrays, refusal

from encoder import END_OF_TEXT
from speculative.checkpoints import disk, hugging_face
from speculative.checkpoints.advice import first_row, rows
from speculative.checkpoints.config import load_hparams, say_what_is_not_applied
from speculative.checkpoints.folder import load_params, look, open_checkpoint
from speculative.checkpoints.hugging_face import openai_name
from speculative.checkpoints.names import TF_DATA, TF_INDEX
from speculative.checkpoints.weights import Weights, read_all
from speculative.engines.choice import make_engine
from speculative.run.load import ModelSpec

CASES = [(i, engine) for i in range(len(SETTINGS)) for engine in ("numpy", "c")]
CASES += [(2, "jax"), (3, "jax"), (8, "jax")]  # those that are not honoured in the weights


@pytest.mark.parametrize(("number", "engine"), CASES)
def test_logits_are_what_the_settings_say(number, engine, tmp_path):
    """The weights may lie in parts or be half as wide, and the settings may have OpenAI's file name."""
    config = CONFIG | SETTINGS[number]
    dtype = (np.float32, np.float16, ml_dtypes.bfloat16)[number % 3]
    tensors = {name: array.astype(dtype) for name, array in random_tensors(config).items()}
    folder = write_folder(tmp_path / "model", config, tensors, n_parts=1 + number % 4, vocabulary=False)
    name = ("config.json", "hparams.json")[number % 2]
    (folder / "config.json").rename(folder / name)
    hparams = load_hparams(folder / name)
    weights = open_checkpoint(look(str(folder))).open_weights(hparams)
    if engine == "jax":
        pytest.importorskip("jax")
    maker = make_engine(engine).maker(ModelSpec("target", "model", None, "float32", None, hparams), in_place=False)
    network = maker.network(read_all(weights, maker.pack))
    expected = plain_logits(config, tensors, IDS)
    np.testing.assert_allclose(network.logits(IDS, len(IDS)), expected, rtol=1e-4, atol=1e-4)


NOT_HONOURED = {
    "model_type": ["gpt_neo"],
    "activation_function": ["swish", ["gelu"]],
    "n_inner": [0, 10**9],
    "n_embd": [13, 0, 10**30],
    "n_layer": [None, -1],
    "n_head": ["4", [4]],
    "vocab_size": [70.0, True],
    "layer_norm_epsilon": [0.0, "1e-5", math.nan],
    "scale_attn_weights": ["yes", 1],
    "num_attention_heads": [4],
    "quantization_config": [{"quant_method": "bitsandbytes"}],
    "attention_head_type": ["multiquery"],
    "multi_query": [True],
    "auto_map": [{"AutoModelForCausalLM": "modeling_gpt2_mq.GPT2LMHeadCustomModel"}],
}


@pytest.mark.parametrize("name", NOT_HONOURED)
def test_a_setting_that_is_not_honoured_is_named(name, tmp_path):
    path = tmp_path / "config.json"
    for value in NOT_HONOURED[name]:
        path.write_text(json.dumps(CONFIG | {name: value}))
        line = refusal(load_hparams, path)
        assert line.startswith(f"{path}: ")
        assert f" {name.replace('vocab_size', 'n_vocab')} " in line


PENALTIES = [  # generation_config.json, the same in config.json, and those that are named
    ({"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}, {}, "repetition_penalty, no_repeat_ngram_size"),
    ({"bad_words_ids": [[5]], "repetition_penalty": 1.0, "min_length": 0}, {}, "bad_words_ids"),
    ({}, {"suppress_tokens": [1], "num_beams": 4}, ""),
    (None, {"suppress_tokens": [1], "num_beams": 4}, "num_beams, suppress_tokens"),
    ({"do_sample": True, "temperature": 0.7, "eos_token_id": 0, "num_beams": 1, "bad_words_ids": None}, {}, ""),
]


@pytest.mark.parametrize(("generation", "settings", "named"), PENALTIES)
def test_penalties_and_bans_that_are_not_applied_are_named(generation, settings, named, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | settings))
    if generation is not None:
        path = tmp_path / "generation_config.json"
        path.write_text(json.dumps(generation))
    say_what_is_not_applied(str(tmp_path))
    line = f"{path}: its penalties and bans are not applied: {named}\n"
    assert capsys.readouterr().err == (line if named else "")


OTHER_NAMES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
OTHER_NAMES |= {"n_positions": "max_position_embeddings"}
GPT2S = {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12}


def test_sizes_have_the_names_and_the_defaults_of_transformers(tmp_path):
    path = tmp_path / "config.json"
    other = {OTHER_NAMES.get(name, name): value for name, value in CONFIG.items()}
    for config, expected in (
        (other, {"n_vocab": 70, "n_ctx": 24, "n_embd": 12, "n_head": 3, "n_layer": 3}),
        (CONFIG | other | {"n_ctx": 9}, {"n_vocab": 70, "n_ctx": 24, "n_embd": 12, "n_head": 3, "n_layer": 3}),
        ({}, GPT2S),
        ({"model_type": "gpt2", "vocab_size": 70, "n_layer": 1}, GPT2S | {"n_vocab": 70, "n_layer": 1}),
    ):
        path.write_text(json.dumps(config), encoding="utf-8-sig")  # as some editors save it
        assert load_hparams(path) == expected
    path.with_name("hparams.json").write_text(json.dumps({"n_vocab": 70, "n_ctx": 24, "n_embd": 12, "n_layer": 3}))
    assert "n_head is null" in refusal(load_hparams, path.with_name("hparams.json"))  # OpenAI's has no defaults


def test_the_files_of_hugging_faces_libraries_count_beside_those_of_something_else(tmp_path):
    folder = write_folder(tmp_path / "model", CONFIG | {"vocab_size": 2048}, {"wte": np.ones(1, np.float32)})
    (folder / "hparams.json").write_text(json.dumps(GPT2S))
    for name in ("encoder.json", "vocab.bpe"):
        (folder / name).write_bytes((TINY / name).read_bytes())
    files = open_checkpoint(look(str(folder)))
    encoder, hparams = files.load_encoder(), files.hparams
    assert (hparams["n_head"], encoder.encode(END_OF_TEXT)) == (CONFIG["n_head"], [2047])


def test_a_vocabulary_that_is_known_is_not_read_again(tiny_pair, tmp_path):
    target = open_checkpoint(look(str(tiny_pair / "target")))
    encoder = target.load_encoder()
    draft = shutil.copytree(tiny_pair / "draft", tmp_path / "draft")
    known = target, encoder
    assert open_checkpoint(look(str(draft))).load_encoder(known) is encoder
    (draft / "vocab.bpe").write_text((draft / "vocab.bpe").read_text().rstrip())
    assert open_checkpoint(look(str(draft))).load_encoder(known) is not encoder


def holding(value):
    return np.where(np.arange(48) == 5, value, np.ones((12, 48)))


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("h0/crossattention/c_attn/w", np.ones((12, 24)), "has tensor 'h0/crossattention/c_attn/w'"),
        ("h1/mlp/c_fc/w", np.ones((12, 44)), "tensor h1/mlp/c_fc/w is (12, 44), and (12, 48) by"),  # pruned
        ("h0/attn/c_attn/w", np.ones((36, 12)), "is (36, 12) (transposed, as in nanoGPT's checkpoints), and"),
        ("h0/attn/c_attn/w", np.ones((12, 20)), "is (12, 20) (its heads share keys and values: multi-query"),
        ("lm_head", np.ones((70, 12)), "lm_head.weight is not wte.weight"),
        ("lm_head", np.ones((64, 12)), "lm_head.weight is not wte.weight"),
        ("lm_head/b", np.ones(70), "has tensor 'lm_head/b'"),
        ("prompt", np.ones((2, 12)), "has tensor 'prompt/w', contrary to its settings"),
        # Rounding would hide these: an int8 weight is a number in any case.
        *[("h0/mlp/c_fc/w", holding(value), "holds NaN or infinity") for value in (np.nan, np.inf, -np.inf)],
    ],
)
def test_tensors_that_are_not_a_gpt2s_are_one_line(name, array, said, tmp_path):
    """They show the settings that read_config does not ask for."""
    tensors = random_tensors(CONFIG) | {name: array.astype(np.float32)}
    folder = write_folder(tmp_path / "model", CONFIG, tensors)
    assert said in refusal(load_params, str(folder), sizes(CONFIG))


TENSORS = [
    ("transformer.h.0.attn.kv_attn.weight", "its heads share keys and values"),
    ("model.wte.weight", "mlx-lm's, whose matrices are transposed"),
    ("model.h.0.attn.c_attn.scales", "quantized by mlx-lm"),
    ("transformer.h.0.attn.c_attn.qweight", "quantized by GPTQ or AWQ"),
    ("transformer.h.0.attn.c_attn.SCB", "quantized by bitsandbytes"),
    ("transformer.h.0.attn.c_attn.weight_scale", "quantized, and cannot be read here"),
    ("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", "a LoRA that is not merged"),
    ("base_model.model.transformer.h.0.ln_1.weight", "the names are peft's"),
    ("pretrained_model.transformer.wte.weight", "the model is a part of another one"),
    ("model.transformer.h.0.ln_1.bias", "the model is a part of another one"),
    ("model.layers.0.self_attn.q_proj.weight", "another kind of model than GPT-2"),
]


@pytest.mark.parametrize(("name", "said"), TENSORS)
def test_names_of_tensors_tell_what_a_file_is(name, said):
    index = {openai_name(name): Mock(file=Mock(path="model.safetensors"), shape=(1,))}
    line = refusal(Weights, index, sizes(CONFIG))
    assert said in line.partition(", contrary to its settings; ")[2]


def test_every_advice_on_tensors_is_among_them():
    assert {first_row("tensors", [openai_name(name)])[1] for name, _ in TENSORS} == {how for _, how in rows("tensors")}


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS = [  # as JSON, of a file with 8 bytes after it
    "[]",
    "3",
    "{}",
    '{"a": []}',
    '{"a": {}}',
    json.dumps({"a": TENSOR | {"data_offsets": ["0", "8"]}}),
    json.dumps({"a": TENSOR | {"data_offsets": [0]}}),
    json.dumps({"a": TENSOR | {"shape": 2}}),
    json.dumps({"a": TENSOR | {"shape": [2.0]}}),
    json.dumps({"a": TENSOR | {"dtype": 5}}),
    json.dumps({"a": TENSOR | {"shape": [3]}}),
    json.dumps({"a": TENSOR | {"data_offsets": [1, 9]}}),
    json.dumps({"a": TENSOR, "b": TENSOR}),
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_describes_no_tensors_is_refused(header, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    assert refusal(hugging_face.read_file, str(path)).startswith(f"{path}: damaged, or not a safetensors file (")


@pytest.mark.parametrize("name", [TF_INDEX, "model.safetensors"])
def test_a_file_that_cannot_be_mapped_is_read(name, tiny_files, tiny_hparams, tiny_arrays, tmp_path, monkeypatch):
    """Some network disks say so. An error of the system names the file."""
    for file in {name, TF_DATA if name == TF_INDEX else name, "hparams.json"}:
        (tmp_path / file).write_bytes(tiny_files[file])
    monkeypatch.setattr(mmap, "mmap", Mock(side_effect=OSError(errno.ENODEV, "No such device"), spec=[]))
    flat = flatten(load_params(str(tmp_path), tiny_hparams))
    assert all((flat[name] == array).all() for name, array in tiny_arrays.items())


def test_an_error_of_the_system_names_the_file(tmp_path, monkeypatch):
    path = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG)) / "model.safetensors"
    broken = OSError(errno.EIO, "Input/output error")  # of a read: it has no name
    monkeypatch.setattr(disk, "state_of", Mock(side_effect=broken))
    with pytest.raises(OSError) as caught:
        load_params(str(path.parent), sizes(CONFIG))
    assert caught.value.filename == str(path)
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError) as caught:
        load_hparams(path.with_name("config.json"))
    assert caught.value.filename == str(path.with_name("config.json"))


def test_the_note_is_of_the_file_that_was_checked(tmp_path, monkeypatch):
    """Another model takes the file's place while it is read: that one has not been checked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG)) / "model.safetensors"
    damaged = random_tensors(CONFIG) | {"h0/mlp/c_fc/w": holding(np.nan).astype(np.float32)}
    read_index = hugging_face.read_index

    def replaced(paths):
        index = read_index(paths)
        write_safetensors(tmp_path / "new", damaged, prefix="transformer.")
        os.replace(tmp_path / "new", path)
        return index

    monkeypatch.setattr(hugging_face, "read_index", replaced)
    assert "changed while it was read" in refusal(load_params, str(path.parent), sizes(CONFIG))
    monkeypatch.setattr(hugging_face, "read_index", read_index)
    assert "holds NaN or infinity" in refusal(load_params, str(path.parent), sizes(CONFIG))


@pytest.mark.parametrize(
    "head", ["v_head/summary", "multiple_choice_head/summary", "score", "classifier", "qa_outputs"]
)
def test_a_head_of_a_training_run_is_left_out_with_one_line(head, tmp_path, capsys):
    tensors = random_tensors(CONFIG)
    heads = {f"{head}/w": np.ones((2, 12), np.float32), f"{head}/b": np.ones(2, np.float32)}
    folder = write_folder(tmp_path / "model", CONFIG, tensors | heads)
    flat = flatten(load_params(str(folder), sizes(CONFIG)))
    assert all((flat[name] == array).all() for name, array in tensors.items())
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f": left out, since the text does not depend on it: {head.partition('/')[0]}")


@pytest.mark.parametrize("has_cache", [True, False])
def test_files_that_were_checked_are_not_checked_again(has_cache, tmp_path, monkeypatch):
    """A note that does not fit is worth nothing, and a cache that cannot be written costs the check, not the run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if not has_cache:
        (tmp_path / "cache").write_text("a file")
    path = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG)) / "model.safetensors"
    checks = Mock(wraps=np.isfinite)
    monkeypatch.setattr(np, "isfinite", checks)
    first = flatten(load_params(str(path.parent), sizes(CONFIG)))
    n = checks.call_count
    second = flatten(load_params(str(path.parent), sizes(CONFIG)))
    assert all((second[name] == array).all() for name, array in first.items())
    assert checks.call_count - n == (2 if has_cache else n)  # of lm_head and wte, which have to be equal
    write_safetensors(path, random_tensors(CONFIG) | {"h0/mlp/c_fc/w": holding(np.nan).astype(np.float32)})
    assert "holds NaN or infinity" in refusal(load_params, str(path.parent), sizes(CONFIG))


def test_a_file_that_changes_while_it_is_read_is_one_line(tmp_path):
    path = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG)) / "model.safetensors"
    said = refusal(load_params, str(path.parent), sizes(CONFIG), lambda name, array: os.utime(path, (1, 1)))
    assert said == f"{path}: changed while it was read"


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.transformer.", "module._orig_mod.transformer.", ""])
@pytest.mark.parametrize("output", ["wte", "lm_head", "both"])
def test_the_same_weights_under_other_names(prefix, output, tmp_path):
    """PyTorch's wrappers add prefixes, save_model of safetensors keeps one of two names, and float64 is rounded."""
    tensors = {name: array.astype(np.float64) + 1e-9 for name, array in random_tensors(CONFIG).items()}
    expected = {name: array.astype(np.float32) for name, array in tensors.items()}
    folder = write_folder(tmp_path / "model", CONFIG, tensors)
    stored = tensors | {"lm_head": tensors["wte"].copy()}
    if output != "both":
        del stored["wte" if output == "lm_head" else "lm_head"]
    write_safetensors(folder / "model.safetensors", stored, prefix)
    flat = flatten(load_params(str(folder), sizes(CONFIG)))
    assert flat.keys() == expected.keys()
    assert all((flat[name] == array).all() for name, array in expected.items())


def test_only_a_file_that_was_downloaded_is_to_be_deleted(tmp_path):
    for size, listed, comes_back in (("124M", True, True), ("124M", False, False), ("mine", True, False)):
        folder = tmp_path / f"{size}{listed}" / size
        folder.mkdir(parents=True)
        (folder / "hparams.json").write_text("{")
        if listed:
            (folder / "SHA256SUMS").write_text(f"{'0' * 64}  hparams.json\n")
        line = refusal(load_hparams, folder / "hparams.json")
        assert line.endswith("; delete it to have it downloaded again") == comes_back


@pytest.mark.parametrize("n_stale", [2, 5])
def test_the_index_names_the_shards_beside_those_of_an_earlier_save(n_stale, tmp_path):
    """As transformers reads them."""
    new, old = random_tensors(CONFIG), random_arrays(sizes(CONFIG), seed=1)
    folder = write_folder(tmp_path / "model", CONFIG, new, n_parts=3)
    for path in write_folder(tmp_path / "old", CONFIG, old, n_parts=n_stale).glob("model-*"):
        path.rename(folder / path.name)
    flat = flatten(load_params(str(folder), sizes(CONFIG)))
    assert all((flat[name] == array).all() for name, array in new.items())
    write_safetensors(folder / "model.safetensors", old)  # transformers looks for it first
    assert (load_params(str(folder), sizes(CONFIG))["wte"] == old["wte"]).all()


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", ".safetensors", "a.bin", "", 7, ["x"]])
def test_an_index_names_files_of_its_folder(name, tmp_path):
    folder = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG), n_parts=2)
    write_shards_index(folder, ["model-00001-of-00002.safetensors", name])
    assert "its weight_map should name a .safetensors file" in refusal(load_params, str(folder), sizes(CONFIG))


def test_a_tensor_that_two_shards_hold_is_refused(tmp_path):
    folder = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG), n_parts=2)
    write_safetensors(folder / "more.safetensors", {"wpe": np.ones((24, 12), np.float32)})
    write_shards_index(folder, [path.name for path in folder.glob("*.safetensors")])
    assert "tensor 'wpe' is there twice, or in " in refusal(load_params, str(folder), sizes(CONFIG))
