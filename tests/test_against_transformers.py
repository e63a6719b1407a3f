"""Against Hugging Face's own library: the forward pass, and folders that it saved with every setting."""

import json
from functools import partial

import numpy as np
import pytest
from tiny import HPARAMS, ROOT, logits_themselves, random_params

from checkpoints.config import load_hparams
from checkpoints.tokenizer import read_encoder
from gpt2 import gpt2
from plumbing.errors import UserError
from speculative.engines.models import load_models
from speculative.engines.plain import CachedModel
from speculative.filters import Filters
from speculative.sampling import autoregressive_sampling
from utils import load_encoder_and_hparams, load_params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", exc_type=ImportError)


def state_dict(params):
    """Our nested dict under Hugging Face's names; its conv1d weights are [n_in, n_out], as ours."""
    names = {"g": "weight", "w": "weight", "b": "bias"}

    def flatten(prefix, node):
        if isinstance(node, dict):
            for key, child in node.items():
                yield from flatten([*prefix, names.get(key, key)], child)
        else:
            yield ".".join(prefix), torch.from_numpy(node)

    tensors = {"wte.weight": torch.from_numpy(params["wte"]), "wpe.weight": torch.from_numpy(params["wpe"])}
    tensors |= dict(flatten(["ln_f"], params["ln_f"]))
    for i, block in enumerate(params["blocks"]):
        tensors |= dict(flatten(["h", str(i)], block))
    return tensors


def test_the_logits_are_those_of_transformers():
    params = random_params()
    sizes = {key: HPARAMS[key] for key in ("n_embd", "n_head", "n_layer")}
    config = transformers.GPT2Config(vocab_size=HPARAMS["n_vocab"], n_positions=HPARAMS["n_ctx"], **sizes)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.transformer.load_state_dict(state_dict(params), strict=True)
    ids = np.random.default_rng(0).integers(0, HPARAMS["n_vocab"], HPARAMS["n_ctx"])
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(gpt2(ids, **params, n_head=HPARAMS["n_head"]), expected, rtol=1e-4, atol=1e-4)


# ---- Folders as transformers saves them ------------------------------------------------------------------------------

SETTINGS = [
    {},
    {"activation_function": "gelu"},
    {"activation_function": "relu"},
    {"activation_function": "gelu_fast"},
    {"activation_function": "gelu_pytorch_tanh"},
    {"layer_norm_epsilon": 0.1},
    {"layer_norm_epsilon": 1e-12},
    {"scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True},
    {"reorder_and_upcast_attn": True, "attn_implementation": "eager"},
    {"n_inner": 7},
    {"n_inner": 100},
    {
        **{"activation_function": "gelu", "layer_norm_epsilon": 1e-3, "scale_attn_weights": False, "n_inner": 70},
        **{"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True, "attn_implementation": "eager"},
    },
]
FORMS = {"whole": {}, "in parts": {"max_shard_size": 50_000}}


def vocabulary():
    folder = ROOT / "models" / "tiny-target"
    vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    merges = (folder / "vocab.bpe").read_text(encoding="utf-8").rstrip("\n").split("\n")[1:]
    return vocab, [tuple(merge.split(" ")) for merge in merges]


def save(folder, settings, form, dtype=torch.float32):
    """A random GPT-2, with 16 ids that stand for nothing and two added tokens -> (theirs, their tokenizer)"""
    vocab, merges = vocabulary()
    tokenizer = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
    tokenizer.add_tokens(["[PAD]"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    sizes = {"vocab_size": len(tokenizer) + 16, "n_positions": 48, "n_embd": 36, "n_head": 3, "n_layer": 3}
    torch.manual_seed(len(str(settings)))
    ends = {"bos_token_id": 2047, "eos_token_id": 2047}
    config = transformers.GPT2Config(**sizes, **ends, initializer_range=0.2, **settings)
    model = transformers.GPT2LMHeadModel(config).eval().to(dtype)
    model.save_pretrained(folder, **FORMS[form])
    tokenizer.save_pretrained(folder)
    return model.float(), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings)[:60] or "none")
def test_a_saved_folder_gives_their_logits_and_their_greedy_text(settings, form, tmp_path):
    theirs, tokenizer = save(tmp_path / "model", settings, form)
    encoder, hparams = load_encoder_and_hparams("model", str(tmp_path))
    read = partial(load_params, str(tmp_path / "model"), hparams)
    ids = encoder.encode("To be, or not to be[PAD]<|user|>that is the question:")
    assert ids == tokenizer.encode("To be, or not to be[PAD]<|user|>that is the question:")
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    for model in (
        CachedModel(read(), hparams, logits_themselves),
        load_models(read, hparams, ["float32"], [logits_themselves])[0],
    ):
        np.testing.assert_allclose(model(ids, len(ids)), expected, rtol=1e-4, atol=1e-4)
    n_new = hparams["n_ctx"] - len(ids)
    steps = autoregressive_sampling(
        ids, load_models(read, hparams, ["float32"], [Filters(0.0)])[0], n_new, np.random.default_rng(0)
    )
    ours = [token for step in steps for token in step.tokens]
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": n_new}
    with torch.no_grad():
        text = theirs.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **options)[0, len(ids) :]
    assert ours == text.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_of_half_the_width(dtype, tmp_path):
    theirs, _ = save(tmp_path / "model", {}, "whole", dtype)
    hparams = load_hparams(tmp_path / "model" / "config.json")
    ids = np.arange(40)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    model = CachedModel(load_params(str(tmp_path / "model"), hparams), hparams, logits_themselves)
    np.testing.assert_allclose(model(ids, len(ids)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prefix_space", [False, True])
def test_a_saved_tokenizer_gives_their_ids(prefix_space, tmp_path):
    from test_checkpoints import strings

    vocab, merges = vocabulary()
    tokenizer = transformers.GPT2Tokenizer(vocab=vocab, merges=merges, add_prefix_space=prefix_space)
    tokenizer.add_tokens(["[PAD]", "[PAD][", "foo bar", transformers.AddedToken("<mask>", lstrip=True)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = read_encoder(tmp_path, len(theirs))
    for text in strings(2000):
        ids = theirs.encode(text)
        assert ours.encode(text, allowed_special=True) == ids
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)


def test_an_output_matrix_of_its_own_is_refused_by_its_setting(tmp_path):
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=16, n_embd=8, n_head=2, n_layer=1, tie_word_embeddings=False
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="tie_word_embeddings is false"):
        load_hparams(tmp_path / "config.json")
