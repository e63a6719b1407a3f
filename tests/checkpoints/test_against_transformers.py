"""The oracles of other tests against Hugging Face's own library, where it is installed: logits, and ids of tokens."""

import numpy as np
import pytest
from hub_folders import CONFIG, IDS, SETTINGS, plain_logits, random_tensors, write_folder
from tokenizer_files import TOKENIZERS, strings, write_tokenizer

from speculative.checkpoints.tokenizer import read_encoder

transformers = pytest.importorskip("transformers", exc_type=ImportError)


@pytest.mark.parametrize("settings", [*SETTINGS, {"activation_function": "gelu_fast"}])
def test_the_settings_mean_what_theirs_do(settings, tmp_path):
    torch = pytest.importorskip("torch")
    config = CONFIG | settings
    tensors = random_tensors(config)
    folder = write_folder(tmp_path / "model", config, tensors, vocabulary=False)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        logits = theirs(torch.tensor(IDS[None])).logits[0].numpy()
    np.testing.assert_allclose(plain_logits(config, tensors, IDS), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("number", range(len(TOKENIZERS)))
def test_a_tokenizer_gives_their_ids(number, tmp_path):
    changes, files, _ = TOKENIZERS[number]
    write_tokenizer(tmp_path, changes, {"config.json": {"model_type": "gpt2"}} | files)
    encoder, theirs = read_encoder(tmp_path, 2060), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in strings(100):
        assert encoder.encode(text) == theirs(text).input_ids
