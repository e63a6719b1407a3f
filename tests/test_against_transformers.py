"""Against Hugging Face's own library: folders that it saved with every setting."""

import json
from functools import partial

import numpy as np
import pytest
from test_checkpoints import SETTINGS as OF_CHECKPOINTS
from test_tokenizers import CUT, FILLED, TOKENIZERS, official_vocabulary, strings, write_tokenizer

from speculative.checkpoints.loading import load_encoder_and_hparams, load_params
from speculative.checkpoints.tokenizer import read_encoder
from speculative.engines.choice import make_engine
from speculative.engines.model import CachedNetwork
from speculative.loading import ModelSpec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", exc_type=ImportError)

EAGER = {"attn_implementation": "eager"}  # as reorder_and_upcast_attn has it
SETTINGS = [settings | EAGER if "reorder_and_upcast_attn" in settings else settings for settings in OF_CHECKPOINTS[2:]]
SETTINGS = [{}, *SETTINGS, {"activation_function": "gelu_fast"}]
STATE = {"truncation": CUT, "padding": FILLED}  # of the texts that the tokenizer was trained with
IN_PARTS = {"max_shard_size": 50_000}


def save(folder, settings, form, dtype):
    """A random GPT-2, with 16 ids that stand for nothing and two added tokens -> (theirs, their tokenizer)"""
    vocab, merges = official_vocabulary()
    tokenizer = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
    tokenizer.add_tokens(["[PAD]"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    sizes = {"vocab_size": len(tokenizer) + 16, "n_positions": 48, "n_embd": 36, "n_head": 3, "n_layer": 3}
    settings = sizes | settings
    torch.manual_seed(len(str(settings)))
    ends = {"bos_token_id": 2047, "eos_token_id": 2047}
    config = transformers.GPT2Config(**ends, initializer_range=0.2, **settings)
    model = transformers.GPT2LMHeadModel(config).eval().to(dtype)
    model.save_pretrained(folder, **form)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | STATE), encoding="utf-8")
    return model.float(), transformers.AutoTokenizer.from_pretrained(folder)


DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FOLDERS = [(settings, ({}, IN_PARTS)[i % 2], DTYPES[i % 3]) for i, settings in enumerate(SETTINGS)]


@pytest.mark.parametrize(("settings", "form", "dtype"), FOLDERS)
def test_a_saved_folder_gives_their_logits(settings, form, dtype, tmp_path):
    theirs, tokenizer = save(tmp_path / "model", settings, form, dtype)
    encoder, hparams = load_encoder_and_hparams(str(tmp_path / "model"))
    text = "To be, or not to be[PAD]<|user|>that is<|endoftext|> the question:"
    ids = encoder.encode(text)
    assert ids == tokenizer.encode(text)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    read = partial(load_params, str(tmp_path / "model"), hparams)
    plain = CachedNetwork(read(), hparams)
    [fast] = make_engine("c").load(read, [ModelSpec("target", "model", "", "float32", None, hparams)])
    for network in (plain, fast):
        np.testing.assert_allclose(network.logits(ids, len(ids)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("number", range(len(TOKENIZERS)))
def test_a_tokenizer_gives_their_ids(number, tmp_path):
    changes, files, _ = TOKENIZERS[number]
    write_tokenizer(tmp_path, changes, {"config.json": {"model_type": "gpt2"}} | files)
    encoder, theirs = read_encoder(tmp_path, 2060), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in strings(100):
        assert encoder.encode(text) == theirs(text).input_ids
