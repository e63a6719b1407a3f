"""python -m training pair on a text of its own making: a few steps give a pair that loads and has learned something."""

import json
import math
import re

import numpy as np
import pytest
from tiny import largest_file, logits_themselves, refusal

pytest.importorskip("jax")

import jax

from encoder import Encoder, get_encoder
from speculative.engines.plain import CachedModel
from speculative.support.errors import UserError
from training import files, fit, network, pair, texts, writing
from training.network import load_gpt2
from utils import load_encoder_hparams_and_params

TARGET = {"n_vocab": 300, "n_ctx": 32, "n_embd": 16, "n_head": 2, "n_layer": 2}
DRAFT = TARGET | {"n_layer": 1}


@pytest.fixture(scope="module")
def works():
    """Three works of 500 paragraphs, whose sentences are words in a random order."""
    rng = np.random.default_rng(0)
    words = re.findall(r"\S+", "the cat dog sat ran on under mat river house old and then it saw a café “naïve” 1894")

    def paragraph():
        return " ".join(rng.choice(words, 30)).capitalize() + "."

    return ["\n\n".join(paragraph() for _ in range(500)) for _ in range(3)]


@pytest.fixture(scope="module")
def trained(works, tmp_path_factory):
    """(the folder of the models, [history of the target, of the draft])"""
    out = tmp_path_factory.mktemp("models")
    return out, pair.train_pair(works, out, TARGET, DRAFT, steps=40, draft_steps=20, n_rows=128)


def test_the_pair_loads_and_has_the_losses_that_were_reported_which_fell(trained, works):
    out, histories = trained
    for history in histories:
        assert history[-1][1]["held out"] < history[0][1]["held out"]
    before = histories[0][0][1]["held out"]
    assert before == pytest.approx(math.log(300), abs=0.1)  # at the start all tokens are about as likely
    assert histories[0][-1][1]["held out"] < before - 0.5
    encoder, hparams, params = load_encoder_hparams_and_params("tiny-target", str(out))
    assert (hparams, load_encoder_hparams_and_params("tiny-draft", str(out))[1]) == (TARGET, DRAFT)
    model = CachedModel(params, hparams, logits_themselves)
    tokens = np.array(encoder.encode(texts.split_works(works)[1][0]))
    losses = []
    for i in range(0, len(tokens) - 33, 32):
        logits = model(tokens[i : i + 32], n_last=32)
        log_q = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses.append(-log_q[np.arange(32), tokens[i + 1 : i + 33]].mean())
    assert np.mean(losses) == pytest.approx(histories[0][-1][1]["held out"], abs=0.1)


def test_its_files_are_in_the_official_formats(trained):
    out, _ = trained
    for name in ("encoder.json", "vocab.bpe"):
        assert (out / "tiny-draft" / name).read_bytes() == (out / "tiny-target" / name).read_bytes()
    vocab = json.loads((out / "tiny-target" / "encoder.json").read_text())
    first, *merges = (out / "tiny-target" / "vocab.bpe").read_text(encoding="utf-8").splitlines()
    assert first == "#version: 0.2"
    assert sorted(vocab.values()) == list(range(300))
    assert (vocab["!"], vocab["<|endoftext|>"]) == (0, 299)
    assert [vocab[merge.replace(" ", "")] for merge in merges] == list(range(256, 299))


def test_its_encoder_reads_the_vocabulary_as_it_was_meant(trained, works):
    encoder = get_encoder("tiny-target", str(trained[0]))
    vocab, merges = texts.learn_vocabulary(texts.split_works(works)[0], 300)
    text = works[0][:2000] + " unseen: ŁódźΩ, 😀!\n\n\n  "
    assert encoder.encode(text) == texts.encode([text], Encoder(vocab, merges)).tolist()
    assert encoder.decode(encoder.encode(text)) == text


def test_nothing_held_out_is_trained_on(works):
    train_texts, held_out = texts.split_works(works)
    assert len(held_out) == 3
    assert not any(paragraph in text for chunk in held_out for paragraph in chunk.split("\n\n") for text in train_texts)
    n_paragraphs = sum(text.count("\n\n") + 1 for text in train_texts + held_out if len(text) > 20)
    assert n_paragraphs == 1500


def test_continuations_at_temperature_0_are_greedy(trained):
    encoder, hparams, params = load_encoder_hparams_and_params("tiny-target", str(trained[0]))
    x = np.array([encoder.encode("the cat sat on the old green house and then it saw a river under")[:8]] * 2)
    x = np.pad(x, ((0, 0), (0, 24)))
    gpt2, weights, temperature = load_gpt2(), jax.tree.map(jax.numpy.asarray, params), np.float32([0, 1])
    n_prompt, key = np.array([8, 8]), jax.random.key(0)
    own = writing.continuations(gpt2, hparams["n_head"], weights, x, n_prompt, temperature, key)
    model = CachedModel(params, hparams, logits_themselves)
    assert own.shape == (2, 32)
    np.testing.assert_array_equal(own[0, 8:], [model(own[0, :n])[0].argmax() for n in range(8, 32)])
    assert own[0].tolist() != own[1].tolist()


@pytest.fixture
def small_fit(tmp_path):
    """run(factor=..., steps=...): some steps of a small network, with a checkpoint in tmp_path / part.npz."""
    gpt2, rng = load_gpt2(), np.random.default_rng(0)
    params, x = network.init_params(DRAFT, rng), rng.integers(300, size=(2, 33))

    def loss(params, batch):
        x, factor = batch
        return factor * network.cross_entropy(gpt2, 1, params, x)

    def run(factor=lambda step: 1.0, steps=12):
        batch = lambda step, _: (x + step % 2, factor(step))  # noqa: E731
        evaluate = lambda params: {"held out": 0.0}  # noqa: E731
        return fit.fit("part", params, loss, batch, evaluate, steps, 1e-3, tmp_path / "part.npz", every=4)

    return run


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_last_checkpoint(small_fit, tmp_path):
    line = refusal(small_fit, lambda step: math.nan if step == 5 else 1.0)
    assert re.search("not a number after step 6: .*part.npz keeps the last good step.*rate below", line)
    assert int(np.load(tmp_path / "part.npz")["arr_0"]) == 4


@pytest.mark.filterwarnings("ignore:Error writing persistent compilation cache")
def test_a_full_disk_leaves_the_checkpoint_before(small_fit, tmp_path):
    with largest_file(10_000), pytest.raises(UserError, match=r"cannot write .*part.npz: File too large$"):
        small_fit()
    assert not list(tmp_path.iterdir())
    small_fit()
    with largest_file(10_000), pytest.raises(UserError, match="File too large; the checkpoint before it is whole"):
        small_fit(steps=16)
    assert (int(np.load(tmp_path / "part.npz")["arr_0"]), len(list(tmp_path.iterdir()))) == (12, 1)


def test_a_short_text_is_an_error():
    assert "too short" in refusal(texts.learn_vocabulary, ["abc"], 1024)


def test_a_checkpoint_of_another_run_is_an_error(tmp_path):
    path = tmp_path / "other.npz"
    fit.save_checkpoint(path, [np.zeros(3)], 1)
    for state, recipe in (([np.zeros(4)], ""), ([np.zeros(3)], "another")):
        assert "another run" in refusal(fit.load_checkpoint, path, state, recipe)
    path.write_bytes(path.read_bytes()[:100])
    assert "no checkpoint that can be read" in refusal(fit.load_checkpoint, path, [np.zeros(3)])


def test_new_tensors_are_for_whom_other_new_files_are(tmp_path):
    """The library safetensors makes them readable to their owner alone."""
    (tmp_path / "other").touch()
    files.save_tensors(tmp_path / "tensors.safetensors", {"w": np.ones(3)}, {})
    assert (tmp_path / "tensors.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
