"""Folders as Hugging Face's libraries save them: each setting is honoured or named, each token is theirs."""

import json
import math
import random
import re
import shutil
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from conftest import hugging_face_name
from scipy.special import erf
from tiny import ROOT, logits_themselves

from checkpoints.config import load_hparams
from checkpoints.folders import missing_files
from checkpoints.tensors import checkpoint_shapes
from checkpoints.tokenizer import read_encoder
from encoder import END_OF_TEXT, get_encoder
from plumbing.errors import UserError
from speculative.engines.models import load_models
from speculative.engines.plain import CachedModel
from utils import load_encoder_and_hparams, load_encoder_hparams_and_params, load_params

TINY = ROOT / "models" / "tiny-target"
CONFIG = {"model_type": "gpt2", "vocab_size": 70, "n_positions": 24, "n_embd": 12, "n_head": 3, "n_layer": 3}
# A config.json of a model that transformers saved, with what it does not say about the network.
USUAL = {
    **{"architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256, "dtype": "float32"},
    **{"initializer_range": 0.02, "pad_token_id": None, "summary_type": "cls_index", "use_cache": True},
    **{"tie_word_embeddings": True, "add_cross_attention": False, "n_inner": None, "pruned_heads": {}, "n_ctx": 9},
}
SETTINGS = [
    {},
    USUAL,
    {"activation_function": "gelu"},
    {"activation_function": "relu"},
    {"activation_function": "gelu_pytorch_tanh"},
    {"layer_norm_epsilon": 0.1},
    {"layer_norm_epsilon": 1e-12},
    {"scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True},
    {"reorder_and_upcast_attn": True},
    {"n_inner": 5},
    {"n_inner": 100},
    {
        **{"activation_function": "gelu", "layer_norm_epsilon": 1e-3, "scale_attn_weights": False, "n_inner": 77},
        "scale_attn_by_inverse_layer_idx": True,
    },
]


def random_tensors(config, seed=0):
    """{OpenAI's name: array} for this config.json."""
    sizes = {"n_vocab": config["vocab_size"], "n_ctx": config["n_positions"]}
    sizes |= {"n_inner": config.get("n_inner") or 4 * config["n_embd"]}
    rng = np.random.default_rng(seed)
    shapes = checkpoint_shapes(config | sizes)
    return {
        name: (0.4 * rng.standard_normal(shape) + name.endswith("/g")).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_folder(folder, config, tensors, n_parts=1, vocabulary=True):
    """config.json, the weights in so many files, and a tokenizer.json of the 256 bytes, cut to what the model has."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    named = {f"transformer.{hugging_face_name(name)}": array for name, array in tensors.items()}
    if n_parts == 1:
        save_file(named, folder / "model.safetensors")
    else:
        names = [f"model-{i + 1:05}-of-{n_parts:05}.safetensors" for i in range(n_parts)]
        where = {name: names[i % n_parts] for i, name in enumerate(named)}
        for name in names:
            save_file({key: array for key, array in named.items() if where[key] == name}, folder / name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    if vocabulary:
        make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def plain_logits(config, tensors, ids):
    """Hugging Face's GPT-2 with all its settings, in float64: the oracle."""
    t = {name: array.astype(np.float64) for name, array in tensors.items()}
    eps, n, n_head = config.get("layer_norm_epsilon", 1e-5), config["n_embd"], config["n_head"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * t[f"{name}/g"] + t[f"{name}/b"]

    def linear(x, name):
        return x @ t[f"{name}/w"] + t[f"{name}/b"]

    def activation(x):
        name = config.get("activation_function", "gelu_new")
        if name == "relu":
            return np.maximum(x, 0)
        if name == "gelu":
            return x * (1 + erf(x / math.sqrt(2))) / 2
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    x = t["wte"][ids] + t["wpe"][: len(ids)]
    for i in range(config["n_layer"]):
        parts = np.split(linear(norm(x, f"h{i}/ln_1"), f"h{i}/attn/c_attn"), 3, axis=1)
        q, k, v = (part.reshape(len(ids), n_head, -1).transpose(1, 0, 2) for part in parts)
        scores = q @ k.transpose(0, 2, 1)
        if config.get("scale_attn_weights", True):
            scores = scores / math.sqrt(n // n_head)
        if config.get("scale_attn_by_inverse_layer_idx", False):
            scores = scores / (i + 1)
        scores = np.where(np.tri(len(ids)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads = weights / weights.sum(-1, keepdims=True) @ v
        x = x + linear(heads.transpose(1, 0, 2).reshape(len(ids), n), f"h{i}/attn/c_proj")
        hidden = activation(linear(norm(x, f"h{i}/ln_2"), f"h{i}/mlp/c_fc"))
        x = x + linear(hidden, f"h{i}/mlp/c_proj")
    return norm(x, "ln_f") @ t["wte"].T


@pytest.fixture(params=SETTINGS, ids=lambda settings: ",".join(settings)[:60] or "none")
def variant(request, tmp_path):
    """(folder, hparams, what the oracle gives for IDS)"""
    config = CONFIG | request.param
    tensors = random_tensors(config)
    folder = write_folder(tmp_path / "model", config, tensors, n_parts=1 + len(request.param) % 3, vocabulary=False)
    return str(folder), load_hparams(folder / "config.json"), plain_logits(config, tensors, IDS)


IDS = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], CONFIG["n_positions"])


def assert_close(logits, expected, tolerance=1e-4):
    np.testing.assert_allclose(logits, expected, rtol=tolerance, atol=tolerance)


def test_gpt2_py_gives_what_the_settings_say(variant):
    folder, hparams, expected = variant
    model = CachedModel(load_params(folder, hparams), hparams, logits_themselves)
    assert_close(model(IDS, len(IDS)), expected)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_so_does_the_compiled_pass(variant, dtype):
    pytest.importorskip("numba")
    folder, hparams, expected = variant
    model = load_models(partial(load_params, folder, hparams), hparams, [dtype], [logits_themselves])[0]
    logits = model(IDS, len(IDS))
    if dtype == "float32":
        assert_close(logits, expected)
    else:  # whole numbers up to 127 in place of weights and rows
        assert np.abs(logits - expected).mean() < 0.1 * np.abs(expected).mean()


@pytest.mark.parametrize(
    "variant", SETTINGS[2:4] + SETTINGS[-1:], indirect=True, ids=lambda settings: ",".join(settings)
)
def test_so_does_jax(variant):
    """Of the settings that are not honoured in the weights."""
    pytest.importorskip("jax")
    from speculative.engines.jax.model import JaxModel
    from speculative.engines.jax.sharding import place

    folder, hparams, expected = variant
    model = JaxModel(place(partial(load_params, folder, hparams), hparams), logits_themselves)
    assert_close(model(IDS, len(IDS)), expected)


def test_settings_are_honoured_under_our_file_names_too(tmp_path):
    """A folder of Hugging Face's whose files were renamed by hand."""
    config = CONFIG | {"vocab_size": 2048, "scale_attn_by_inverse_layer_idx": True, "layer_norm_epsilon": 0.01}
    tensors = random_tensors(config)
    folder = write_folder(tmp_path / "model", config, tensors, vocabulary=False)
    (folder / "config.json").rename(folder / "hparams.json")
    for name in ("encoder.json", "vocab.bpe"):
        shutil.copy(TINY / name, folder)
    encoder, hparams, params = load_encoder_hparams_and_params("model", str(tmp_path))
    ids = encoder.encode("To be, or not to be, that is the")
    assert_close(
        CachedModel(params, hparams, logits_themselves)(ids, len(ids)), plain_logits(config, tensors, np.array(ids))
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_as_wide_weights_in_parts(dtype, tmp_path):
    narrow = {name: array.astype(dtype) for name, array in random_tensors(CONFIG).items()}
    folder = write_folder(tmp_path / "model", CONFIG, narrow, n_parts=4, vocabulary=False)
    hparams = load_hparams(folder / "config.json")
    model = CachedModel(load_params(str(folder), hparams), hparams, logits_themselves)
    wide = {name: array.astype(np.float32) for name, array in narrow.items()}
    assert_close(model(IDS, len(IDS)), plain_logits(CONFIG, wide, IDS))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "gpt_neo"),
        ("model_type", None),
        ("activation_function", "swish"),
        ("activation_function", ["gelu"]),
        ("layer_norm_epsilon", 0),
        ("layer_norm_epsilon", -1e-5),
        ("layer_norm_epsilon", "1e-5"),
        ("layer_norm_epsilon", math.nan),
        ("n_inner", 0),
        ("n_inner", True),
        ("n_inner", 10**9),
        ("scale_attn_weights", "false"),
        ("scale_attn_by_inverse_layer_idx", 1),
        ("reorder_and_upcast_attn", None),
        ("tie_word_embeddings", False),
        ("add_cross_attention", True),
        ("quantization_config", {"bits": 4}),
        ("pruned_heads", {"0": [1]}),
        ("torch_dtype", "float64"),
        ("dtype", "float8_e4m3fn"),
        ("n_embd", 13),
        ("n_layer", None),
        ("vocab_size", "70"),
        ("n_positions", 2**17),
    ],
)
def test_what_is_not_honoured_is_named(name, value, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {name: value}))
    with pytest.raises(UserError) as caught:
        load_hparams(path)
    named = {"vocab_size": "n_vocab", "n_positions": "n_ctx"}.get(name, name)
    assert str(caught.value).startswith(f"{path}: {named} ")
    assert "\n" not in str(caught.value)


def test_sizes_under_their_other_names(tmp_path):
    aliases = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "max_position_embeddings": 24}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 70, "n_ctx": 9, **aliases}))
    assert load_hparams(path) == {"n_vocab": 70, "n_ctx": 24, "n_embd": 12, "n_head": 3, "n_layer": 2}


@pytest.mark.parametrize(
    "names",
    [["../model-00001.safetensors"], ["/etc/passwd"], ["model-1.safetensors\0"], [1], [], None, ["x.safetensors"]],
)
def test_an_index_names_files_of_its_folder_only(names, tmp_path):
    folder = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG), n_parts=2)
    index = folder / "model.safetensors.index.json"
    weight_map = None if names is None else {f"tensor{i}": name for i, name in enumerate(names)}
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UserError, match=re.escape(str(index))):
        load_encoder_and_hparams("model", str(tmp_path))


def test_a_part_that_is_missing_is_named(tmp_path):
    folder = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG), n_parts=3)
    assert missing_files(str(folder)) == []
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks model-00002-of-00003\.safetensors"):
        load_encoder_and_hparams("model", str(tmp_path))


# ---- Tokens ----------------------------------------------------------------------------------------------------------


def official_vocabulary(folder):
    vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    merges = (folder / "vocab.bpe").read_text(encoding="utf-8").rstrip("\n").split("\n")[1:]
    return vocab, [tuple(merge.split(" ")) for merge in merges]


def make_tokenizer(folder=TINY, added=(), special=(END_OF_TEXT,), prefix_space=False):
    """A tokenizer of Hugging Face's from OpenAI's files."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    vocab, merges = official_vocabulary(folder)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens(list(added))
    return tokenizer


ADDED = ["[PAD]", "[PAD][", "<|user|>", "foo bar", "<mask>", "<right>", "word", END_OF_TEXT]
PIECES = [
    *ADDED,
    " ",
    "  ",
    "\n",
    "\n\n ",
    "\t",
    " \n",
    "it's",
    "we've'll",
    "12345",
    "...!?",
    "\u00a0x",
    "\u3000",
    "x́",
    "",
]


def strings(n, seed=0):
    """Texts with all that decides where a word or an added token ends."""
    rng = random.Random(seed)
    text = (TINY / "held_out.txt").read_text(encoding="utf-8")
    scripts = [(32, 126), (0, 0x24F), (0x370, 0x52F), (0x4E00, 0x4F00), (0x1F300, 0x1F6FF)]

    def piece():
        kind = rng.randrange(4)
        if kind == 0:
            start = rng.randrange(len(text) - 50)
            return text[start : start + rng.randint(1, 50)]
        if kind == 1:
            return "".join(chr(rng.randint(*rng.choice(scripts))) for _ in range(rng.randint(1, 8)))
        return rng.choice(PIECES) + rng.choice(PIECES)

    return ["".join(piece() for _ in range(rng.randint(0, 5))) for _ in range(n)]


@pytest.fixture(params=["the bundled vocabulary", "GPT-2's"])
def vocabulary_folder(request):
    return TINY if request.param == "the bundled vocabulary" else request.getfixturevalue("shared") / "gpt2-tokenizer"


def added_tokens():
    from tokenizers import AddedToken

    flags = {"<mask>": {"lstrip": True}, "<right>": {"rstrip": True}, "word": {"single_word": True}}
    flags["<|user|>"] = {"normalized": False}
    return [AddedToken(text, **flags.get(text, {})) for text in ADDED]


@pytest.mark.parametrize("prefix_space", [False, True])
def test_tokenizer_json_gives_the_ids_of_its_own_library(vocabulary_folder, prefix_space, tmp_path):
    tokenizer = make_tokenizer(vocabulary_folder, added_tokens(), prefix_space=prefix_space)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = read_encoder(tmp_path, tokenizer.get_vocab_size() + 5)
    for text in strings(2000):
        ids = tokenizer.encode(text).ids
        assert encoder.encode(text, allowed_special=True) == ids
        assert encoder.decode(ids) == tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("header", ["#version: 0.2\n", ""])
def test_vocab_json_and_merges_txt_likewise(header, tmp_path):
    tokenizer = make_tokenizer(added=["[PAD]", "<|user|>"])
    vocab, merges = official_vocabulary(TINY)
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text(header + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": len(vocab)}))
    decoder = {str(len(vocab) + 1): {"content": "<|user|>", "special": True, "lstrip": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    encoder = read_encoder(tmp_path, len(vocab) + 2)
    for text in strings(2000, seed=1):
        assert encoder.encode(text, allowed_special=True) == tokenizer.encode(text).ids


def test_the_same_tokens_as_from_openais_files(shared, tmp_path):
    folder = shared / "gpt2-tokenizer"
    make_tokenizer(folder).save(str(tmp_path / "tokenizer.json"))
    official, theirs = get_encoder(folder.name, str(folder.parent)), read_encoder(tmp_path, 50257)
    assert official.id_to_bytes == theirs.id_to_bytes
    assert official.merges == theirs.merges


def test_end_of_text_in_a_prompt_is_plain_text_as_ever(tmp_path):
    make_tokenizer(added=["[PAD]"]).save(str(tmp_path / "tokenizer.json"))
    encoder = read_encoder(tmp_path, 2049)
    ids = encoder.encode(f"a{END_OF_TEXT}[PAD]")
    assert encoder.eot not in ids and ids[-1] == 2048
    assert encoder.decode(ids) == f"a{END_OF_TEXT}[PAD]"


def test_what_has_no_text_is_never_shown(tmp_path):
    make_tokenizer(added=["[PAD]", "too many"]).save(str(tmp_path / "tokenizer.json"))
    encoder = read_encoder(tmp_path, 2100)
    assert encoder.n_vocab == 2100
    assert encoder.decode([*encoder.encode("a b"), *range(2050, 2100)]) == "a b"
    small = read_encoder(tmp_path, 2049)  # a model that was not made larger for the second token that was added
    assert small.decode(small.encode("too many[PAD]")) == "too many[PAD]"
    assert max(small.encode("too many[PAD]")) == 2048


def test_another_token_ends_the_text_where_the_settings_say_so(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(["<s>", "</s>", *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"no token <\|endoftext\|>.*eos_token"):
        read_encoder(tmp_path, 258)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    encoder = read_encoder(tmp_path, 258)
    assert encoder.eot == 1
    assert encoder.encode(f"<s>a{END_OF_TEXT}", allowed_special=True)[::2] == [0, 1]
    assert encoder.to_bytes([0, 1]) == b"<s></s>"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer.type"),
        ({"pre_tokenizer": None}, "pre_tokenizer.type"),
        ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}}, "pre_tokenizer.use_regex"),
        ({"model": {"type": "WordPiece"}}, "model.type"),
        ({"model": {"dropout": 0.1}}, "model.dropout"),
        ({"model": {"ignore_merges": True}}, "model.ignore_merges"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "model.end_of_word_suffix"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "post_processor.type"),
        ({"post_processor": {"type": "TemplateProcessing", "special_tokens": {"<s>": 1}}}, "post_processor.special"),
        ({"decoder": {"type": "WordPiece"}}, "decoder.type"),
        ({"added_tokens": [{"id": -1, "content": "x"}]}, "an id from 0"),
        ({"added_tokens": [{"id": 2**70, "content": "x"}]}, "an id from 0"),
        ({"added_tokens": [{"id": 7, "content": ""}]}, "a text"),
        ({"added_tokens": [{"id": 7, "content": END_OF_TEXT}]}, "gives '<|endoftext|>' the id 7"),
        ({"added_tokens": ["x"]}, "a text"),
        ({"added_tokens": {}}, ""),
        ({"model": {"vocab": ["a", "b"]}}, "another id"),
        ({"model": {"vocab": {"a": 0}}}, "no token for the byte 0"),
        ({"model": {"merges": ["a"]}}, "merge 1"),
        ({"model": {"merges": [["a", "\u0120\u0120nowhere"]]}}, "merge 1"),
        ({"model": {"merges": [[1, 2]]}}, "merge 1"),
        ({"model": {"merges": None}}, "merges"),
        ({"model": None}, ""),
    ],
)
def test_a_tokenizer_that_would_give_other_ids_is_named(changes, named, tmp_path):
    path = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(path))
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        tokenizer[key] = {**tokenizer[key], **value} if key == "model" and value else value
    path.write_text(json.dumps(tokenizer))
    if changes == {"added_tokens": {}}:
        assert read_encoder(tmp_path, 2048).eot == 2047
        return
    with pytest.raises(UserError) as caught:
        read_encoder(tmp_path, 2048)
    assert str(path) in str(caught.value) and named in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("setting", [{"add_bos_token": True}, {"tokenizer_class": "BertTokenizer"}])
def test_settings_of_the_tokenizer_are_named(setting, tmp_path):
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(setting))
    with pytest.raises(UserError, match=next(iter(setting))):
        read_encoder(tmp_path, 2048)


def test_added_tokens_that_the_vocabulary_has_too(tmp_path):
    """The last tokens of the vocabulary, made by merges, are added as well, and the model has no rows for them."""
    path = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(path))
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab[END_OF_TEXT], vocab["!"] = vocab["!"], vocab[END_OF_TEXT]
    ends = [{"content": text, "id": i} for text, i in vocab.items() if i >= 2000]
    tokenizer["added_tokens"] = [*ends, {"content": END_OF_TEXT, "id": vocab[END_OF_TEXT]}]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="no token for the byte 33"):
        read_encoder(tmp_path, 2000)
    assert read_encoder(tmp_path, 2048).decode([2047]) == "!"


def test_more_tokens_than_the_model_has(tmp_path):
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="the model has 2000 ids"):
        read_encoder(tmp_path, 2000)


def test_training_saves_the_tokens_as_they_are_there(tmp_path):
    pytest.importorskip("jax")
    from training.files import check_trainable, read_vocabulary, save_model

    config = CONFIG | {"vocab_size": 2060, "layer_norm_epsilon": 0.01, "n_inner": 20}
    folder = write_folder(tmp_path / "target", config, random_tensors(config), vocabulary=False)
    make_tokenizer(added=["[PAD]"]).save(str(folder / "tokenizer.json"))
    encoder, hparams, params = load_encoder_hparams_and_params("target", str(tmp_path))
    check_trainable("target", hparams)
    save_model(tmp_path / "draft", hparams, params, read_vocabulary(folder))
    theirs, same, narrow = load_encoder_hparams_and_params("draft", str(tmp_path))
    assert theirs.encode("a[PAD]") == encoder.encode("a[PAD]") and same == hparams
    ids = np.arange(9)
    logits = [CachedModel(each, hparams, logits_themselves)(ids, 9) for each in (params, narrow)]
    assert_close(*logits, tolerance=0.02)  # in float16
    with pytest.raises(UserError, match="activation_function relu: training knows gelu_new only"):
        check_trainable("target", hparams | {"activation_function": "relu"})
