"""The score of a text: against gpt2.py's plain forward pass, in windows, with each kind of drafter, rule and model."""

import numpy as np
import pytest
from checkpoint_files import MODELS

from gpt2 import gpt2
from speculative import load_pair
from speculative.report import expected
from speculative.run.score import windows

TEXT = "It was upon a bitterly cold night and frosty morning, towards the end of the winter of '97, that I woke."
LONG = " ".join(TEXT[: 30 + i] for i in range(60))  # longer than the context


@pytest.fixture(autouse=True)
def timing_once(monkeypatch):
    """Time one round, however busy the machine is."""
    monkeypatch.setattr(expected, "DISTURBED", np.inf)
    monkeypatch.setattr(expected, "TIMING_SECONDS", 0.0)


def plain_logits(model, x, n_ctx):
    """gpt2.py's logits [n - 1, n_vocab], of the windows that a text of n tokens is read in."""
    _, hparams, params = model
    rows = []
    for start, first, end in windows(len(x), n_ctx):
        logits = gpt2(np.array(x[start : end - 1]), **params, n_head=hparams["n_head"])  # [end - 1 - start, n_vocab]
        rows.append(logits[first - 1 - start :].astype(np.float64))
    return np.concatenate(rows)


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def distributions(logits, temperature):
    if temperature == 0:
        return np.eye(logits.shape[1])[logits.argmax(-1)]
    return np.exp(log_softmax(logits / temperature))


CASES = [("c", TEXT, 0), ("c", LONG, 0), ("c", LONG, 0.7), ("numpy", LONG, 1), ("jax", TEXT, 1)]


@pytest.mark.parametrize(("engine", "text", "temperature"), CASES, ids=range(len(CASES)))
def test_a_score_is_that_of_the_plain_forward_pass(bundled, engine, text, temperature):
    """Nats are the models' own, whatever the temperature; α is of p and q as they are in a decode."""
    if engine == "jax":
        pytest.importorskip("jax")
    options = {"engine": engine, "draft_dtype": "float32", "temperature": temperature}
    session = load_pair("tiny-draft", "tiny-target", MODELS, **options)
    score = session.score(text)
    x = session.encode(text) if text is TEXT else session.encoder.encode(text)
    assert score.record.tokens == x
    assert "".join(score.record.pieces) == text
    logits = {name: plain_logits(bundled[f"tiny-{name}"], x, session.n_ctx) for name in ("target", "draft")}
    for model in score.record.models:
        log_probs = log_softmax(logits[model.role])[np.arange(len(x) - 1), x[1:]]
        assert np.allclose(model.log_probs, log_probs, atol=1e-4)
        assert model.nats == pytest.approx(-log_probs.mean(), abs=1e-5)
        assert model.perplexity == pytest.approx(np.exp(-log_probs.mean()), rel=1e-5)
    q, p = (distributions(logits[name], temperature) for name in ("target", "draft"))
    overlap = 1 - abs(p - q).sum(-1) / 2  # [n - 1], 1 - TVD(p, q)
    assert np.allclose(score.record.draft.chances, overlap, atol=1e-4)
    assert score.alpha == pytest.approx(overlap.mean(), abs=1e-4)


@pytest.mark.parametrize(("n", "n_ctx"), [(2, 16), (16, 16), (17, 16), (100, 16), (7, 2), (9, 3)])
def test_windows_score_each_token_once_with_half_a_context_before_it(n, n_ctx):
    scored = []
    for start, first, end in windows(n, n_ctx):
        assert end - start <= n_ctx
        assert start == 0 or first - start == n_ctx // 2
        scored += range(first, end)
    assert scored == [*range(1, n)]
