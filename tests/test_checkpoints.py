"""Folders as Hugging Face's libraries save them: each setting is honoured or named, each token is theirs."""

import json
import math
import random
import re
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from conftest import hugging_face_name
from scipy.special import erf
from tiny import ROOT, logits_themselves, refusal

import gpt2
from encoder import BYTE_TO_CHAR, END_OF_TEXT, get_encoder
from speculative.checkpoints.config import absorb, load_hparams
from speculative.checkpoints.folders import missing_files
from speculative.checkpoints.loading import load_encoder_and_hparams, load_params
from speculative.checkpoints.tensors import checkpoint_shapes, nested
from speculative.checkpoints.tokenizer import read_encoder
from speculative.engines.runtime import load_networks
from speculative.engines.tree_cache import TreeNetwork

TINY = ROOT / "models" / "tiny-target"
CONFIG = {"model_type": "gpt2", "vocab_size": 70, "n_positions": 24, "n_embd": 12, "n_head": 3, "n_layer": 3}
# A config.json of a model that transformers saved, with settings that do not concern the network.
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
    {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "layer_norm_epsilon": 1e-3, "n_inner": 77},
]


def sizes(config):
    """The sizes of the tensors, as checkpoint_shapes takes them."""
    n_inner = config.get("n_inner") or 4 * config["n_embd"]
    return config | {"n_vocab": config["vocab_size"], "n_ctx": config["n_positions"], "n_inner": n_inner}


def random_tensors(config, seed=0):
    """{OpenAI's name: array} for this config.json."""
    rng = np.random.default_rng(seed)
    shapes = checkpoint_shapes(sizes(config)).items()
    return {name: (0.4 * rng.standard_normal(shape) + name.endswith("/g")).astype(np.float32) for name, shape in shapes}


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
    """The oracle: Hugging Face's GPT-2 with all its settings, made of the parts of gpt2.py, in float64."""
    params = as_params(tensors, sizes(config))
    eps = config.get("layer_norm_epsilon", 1e-5)
    activation = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    longer = 1 if config.get("scale_attn_weights", True) else math.sqrt(config["n_embd"] // config["n_head"])
    x = params["wte"][ids] + params["wpe"][: len(ids)]
    for i, block in enumerate(params["blocks"]):
        c = longer / (i + 1 if config.get("scale_attn_by_inverse_layer_idx") else 1)
        scaled = lambda q, k, v, c=c: gpt2.attention(c * q, k, v)  # noqa: E731
        x = x + gpt2.mha(gpt2.layer_norm(x, **block["ln_1"], eps=eps), **block["attn"], n_head=3, attend=scaled)
        x = x + gpt2.ffn(gpt2.layer_norm(x, **block["ln_2"], eps=eps), **block["mlp"], activation=activation)
    return gpt2.layer_norm(x, **params["ln_f"], eps=eps) @ params["wte"].T


ACTIVATIONS = {
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), gpt2.gelu),
}


def as_params(tensors, hparams):
    return nested({name: tensors[name].astype(np.float64) for name in checkpoint_shapes(hparams)})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_one_line(tmp_path, value):
    """Rounding would hide it: an int8 weight is a number in any case."""
    tensors = random_tensors(CONFIG)
    tensors["h0/mlp/c_fc/w"][3, 5] = value
    folder = write_folder(tmp_path / "model", CONFIG, tensors)
    assert "tensor h0/mlp/c_fc/w holds NaN or infinity" in refusal(load_params, str(folder), sizes(CONFIG))


IDS = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], CONFIG["n_positions"])
CASES = [(i, engine) for i in range(len(SETTINGS)) for engine in ("gpt2.py", "float32")]
CASES += [(2, "jax"), (3, "jax"), (11, "jax")]  # those that are not honoured in the weights
CASES += [(len(SETTINGS) - 1, "int8")]


def assert_close(logits, expected, tolerance=1e-4):
    np.testing.assert_allclose(logits, expected, rtol=tolerance, atol=tolerance)


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
    read = partial(load_params, str(folder), hparams)
    if engine == "gpt2.py":
        model = TreeNetwork(read(), hparams).logits
    elif engine == "jax":
        pytest.importorskip("jax")
        from speculative.engines.jax.model import JaxModel
        from speculative.engines.jax.sharding import place

        model = JaxModel(place(read, hparams), logits_themselves)
    else:
        [network] = load_networks(read, hparams, [engine], ["the model"])
        model = network.logits
    logits = model(IDS, len(IDS))
    expected = plain_logits(config, tensors, IDS)
    if engine == "int8":  # whole numbers up to 127 in place of weights and rows
        assert np.abs(logits - expected).mean() < 0.1 * np.abs(expected).mean()
    else:
        assert_close(logits, expected)


@pytest.mark.parametrize("layer", [0, 1, 9, 10, 11, 100])
def test_the_inverse_of_its_own_number_scales_the_queries_of_a_layer(layer):
    scaled = absorb(CONFIG | {"scale_attn_by_inverse_layer_idx": True}, lambda name, array: array)
    w = scaled(f"h{layer}/attn/c_attn/w", np.ones((1, 36), np.float32))
    np.testing.assert_allclose(w, [[1 / (layer + 1)] * 12 + [1] * 24], rtol=1e-6)


NOT_HONOURED = {
    "model_type": ["gpt_neo", None],
    "activation_function": ["swish", ["gelu"]],
    "layer_norm_epsilon": [0.0, -1e-5, "1e-5", math.nan],
    "n_inner": [0, True, 10**9],
    "scale_attn_weights": ["false"],
    "tie_word_embeddings": [False],
    "add_cross_attention": [True],
    "quantization_config": [{"bits": 4}],
    "pruned_heads": [{"0": [1]}],
    "torch_dtype": ["float64"],
    "dtype": ["float8_e4m3fn"],
    "n_embd": [13, 0, 16.0, 10**30],
    "n_layer": [None, -1, 10**6],
    "n_head": ["4", [4]],
    "vocab_size": ["70", True],
    "n_positions": [2**17],
}


@pytest.mark.parametrize("name", NOT_HONOURED)
def test_what_is_not_honoured_is_named(name, tmp_path):
    path = tmp_path / "config.json"
    named = {"vocab_size": "n_vocab", "n_positions": "n_ctx"}.get(name, name)
    for value in NOT_HONOURED[name]:
        path.write_text(json.dumps(CONFIG | {name: value}))
        assert refusal(load_hparams, path).startswith(f"{path}: {named} ")


def test_sizes_under_their_other_names(tmp_path):
    aliases = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "max_position_embeddings": 24}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 70, "n_ctx": 9, **aliases}))
    assert load_hparams(path) == {"n_vocab": 70, "n_ctx": 24, "n_embd": 12, "n_head": 3, "n_layer": 2}


def test_an_index_names_files_of_its_folder_only(tmp_path):
    folder = write_folder(tmp_path / "model", CONFIG, random_tensors(CONFIG), n_parts=3)
    index = folder / "model.safetensors.index.json"
    assert missing_files(str(folder)) == []
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "lacks model-00002-of-00003.safetensors" in refusal(load_encoder_and_hparams, "model", str(tmp_path))
    names = ("../model-00001.safetensors", "/etc/passwd", "model-1.safetensors\0", 1, "x.safetensors")
    for weight_map in ({}, None, *({"tensor": name} for name in names)):
        index.write_text(json.dumps({"weight_map": weight_map}))
        assert str(index) in refusal(load_encoder_and_hparams, "model", str(tmp_path))


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
PIECES = [*ADDED, " ", "  ", "\n", "\n\n ", "\t", " \n", "it's", "we've'll", "12345", "...!?", "\u00a0x", "\u3000"]
PIECES += ["x́", "é", "日本", "🙂"]


def strings(n, seed=0):
    """Texts with everything that decides where a word or an added token ends."""
    rng = random.Random(seed)
    text = (TINY / "held_out.txt").read_text(encoding="utf-8")

    def piece():
        start = rng.randrange(len(text))
        of_text = text[start : start + rng.randint(1, 50)]
        return rng.choice([of_text, *rng.choices(PIECES, k=3)])

    return ["".join(piece() for _ in range(rng.randint(0, 9))) for _ in range(n)]


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


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 20))])
def test_added_tokens_in_and_beside_each_other(seed, tmp_path):
    """The tokens begin with each other, overlap and hold white space. Each has random flags."""
    from tokenizers import AddedToken

    rng = random.Random(seed)
    flags = ("lstrip", "rstrip", "single_word", "normalized")
    letters = "ab_ \n<é"
    added = {"".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 30))}
    added = sorted(text for text in added if not text.isspace())  # at some of which the library gives up
    tokens = [AddedToken(text, **{name: rng.random() < 0.3 for name in flags}) for text in added]
    tokenizer = make_tokenizer(added=tokens)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = read_encoder(tmp_path, tokenizer.get_vocab_size())
    for _ in range(500):
        text = "".join(rng.choices(letters, k=rng.randint(0, 30)))
        assert encoder.encode(text, allowed_special=True) == tokenizer.encode(text).ids


def test_an_added_line_end_takes_those_beside_it(tmp_path):
    from tokenizers import AddedToken

    tokenizer = make_tokenizer(added=[AddedToken("\n", lstrip=True, rstrip=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = read_encoder(tmp_path, tokenizer.get_vocab_size()).encode("a \n\n b")
    assert ids == tokenizer.encode("a \n\n b").ids
    assert ids.count(2048) == 1


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


@pytest.fixture(scope="module")
def made():
    """tokenizer.json of the bundled vocabulary, as text."""
    return make_tokenizer().to_str()


@pytest.fixture
def read(made, tmp_path):
    """(n_vocab, a change of tokenizer.json, tokenizer_config.json) -> the encoder."""

    def read(n_vocab, change=lambda tokenizer: None, config=None):
        tokenizer = json.loads(made)
        change(tokenizer)
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config or {}))
        return read_encoder(tmp_path, n_vocab)

    return read


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [2047], "tokens": [END_OF_TEXT]}},
}


def adds(*texts, first=2048):
    entries = [{"content": text, "id": i} for i, text in enumerate(texts, first)]
    return lambda tokenizer: tokenizer["added_tokens"].extend(entries)


def test_the_same_tokens_as_from_openais_files(read):
    ours, theirs = get_encoder(TINY.name, str(TINY.parent)), read(2048)
    assert ours.id_to_bytes == theirs.id_to_bytes
    assert ours.merges == theirs.merges
    assert "the model has 2000 ids" in refusal(read, 2000)


def test_added_tokens(read):
    encoder = read(2049, adds("[PAD]"))
    ids = encoder.encode(f"a{END_OF_TEXT}[PAD]")  # <|endoftext|> in a prompt is plain text as ever
    assert encoder.eot not in ids
    assert ids[-1] == 2048
    assert encoder.decode(ids) == f"a{END_OF_TEXT}[PAD]"
    large = read(2100, adds("[PAD]", "too many"))
    assert large.n_vocab == 2100
    assert large.decode([*large.encode("a b"), *range(2050, 2100)]) == "a b"  # ids without a text are never shown
    small = read(2049, adds("[PAD]", "too many"))  # a model that was not made larger for the second
    assert small.decode(small.encode("too many[PAD]")) == "too many[PAD]"
    assert max(small.encode("too many[PAD]")) == 2048


def test_another_token_ends_the_text_where_the_settings_say_so(read):
    def change(tokenizer):
        alphabet = {char: i for i, char in enumerate(BYTE_TO_CHAR.values(), 2)}
        tokenizer["model"] |= {"vocab": {"<s>": 0, "</s>": 1, **alphabet}, "merges": []}
        tokenizer["added_tokens"] = [{"content": text, "id": i} for i, text in enumerate(["<s>", "</s>"])]

    assert re.search(r"no token <\|endoftext\|>.*eos_token", refusal(read, 258, change))
    encoder = read(258, change, {"eos_token": {"content": "</s>"}})
    assert encoder.eot == 1
    assert encoder.encode(f"<s>a{END_OF_TEXT}", allowed_special=True)[::2] == [0, 1]
    assert encoder.to_bytes([0, 1]) == b"<s></s>"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace"),
        ({"pre_tokenizer": None}, ""),
        ({"model": {"type": "WordPiece"}}, "WordPiece"),
        ({"model": {"dropout": 0.1}}, "at random"),
        ({"post_processor": TEMPLATE}, "adds tokens"),
        ({"decoder": {"type": "WordPiece"}}, "WordPiece"),
        ({"added_tokens": [{"id": -1, "content": "x"}]}, "-1"),
        ({"added_tokens": [{"id": 7, "content": "x"}]}, "the id 7"),
        ({"added_tokens": ["x"]}, ""),
        ({"model": {"vocab": ["a", "b"]}}, ""),
        ({"model": {"vocab": {"a": 0}, "merges": []}}, "no token for the byte 0"),
        ({"model": {"merges": ["a"]}}, ""),
        ({"model": {"merges": None}}, ""),
        ({"model": None}, ""),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_named(changes, named, read):
    def change(tokenizer):
        for key, value in changes.items():
            tokenizer[key] = {**tokenizer[key], **value} if key == "model" and value else value

    line = refusal(read, 2048, change)
    assert "tokenizer.json" in line
    assert named in line


def test_settings_that_their_library_honours_are_honoured(read, made):
    from tokenizers import Tokenizer, normalizers

    theirs = Tokenizer.from_str(made)
    theirs.normalizer = normalizers.NFC()
    ours = read(2048, lambda tokenizer: tokenizer.update(normalizer={"type": "NFC"}))
    assert ours.encode("e\u0301") == theirs.encode("e\u0301").ids == theirs.encode("\u00e9").ids
    assert "adds tokens" in refusal(read, 2048, config={"add_bos_token": True})
