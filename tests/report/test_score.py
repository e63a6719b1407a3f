"""The score of a text: against gpt2.py's plain forward pass, in windows, with each kind of drafter, rule and model."""

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import MODELS
from tiny import refusal

from gpt2 import gpt2
from speculative import load_pair
from speculative.cli.modes import replay
from speculative.report.document import read_run
from speculative.report.expected import parts_of
from speculative.run.score import TokenScores, excerpts

TEXT = "It was upon a bitterly cold night and frosty morning, towards the end of the winter of '97, that I woke."
LONG = " ".join(TEXT[: 30 + i] for i in range(36))  # longer than the context


def plain_logits(model, x, n_ctx):
    """gpt2.py's logits [n - 1, n_vocab], of the windows that a text of n tokens is read in."""
    _, hparams, params = model
    rows = []
    for start, first, end in excerpts(len(x), n_ctx):
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
    for start, first, end in excerpts(n, n_ctx):
        assert end - start <= n_ctx
        assert start == 0 or first - start == n_ctx // 2
        scored += range(first, end)
    assert scored == [*range(1, n)]


def test_a_copy_is_scored_as_a_model_of_its_format(pair):
    """In one pass: the target, its copies and the draft."""
    score = pair.changed(drafter="int8/int4/model", K=(6, 4, 2), temperature=1).score(LONG)
    assert [model.role for model in score.record.models] == ["target", "int8", "int4", "draft"]
    for model in score.record.models[1:3]:
        alone = load_pair("tiny-draft", "tiny-target", MODELS, threads=1, dtype=model.role).score(LONG)
        assert model.log_probs == alone.record.target.log_probs
    assert pair.score(LONG).record.target.log_probs == score.record.target.log_probs


# ---- What to expect --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_speedup_to_expect_is_that_of_the_formula_with_the_costs_of_the_machine(pair, clock, temperature):
    """On this clock c is 0.1, and β of K + 1 rows is 1 + 0.1 K."""
    record = pair.changed(temperature=temperature).score(LONG).record
    assert record.withheld is None
    assert record.draft.c == pytest.approx(0.1, rel=0.02)  # after a window that was accepted, it reads two tokens
    for K, cell in record.expected["model"].items():
        if K == "auto":
            assert 1 < cell.speedup < cell.tokens_a_call
            continue
        assert record.beta[K] == pytest.approx(1 + 0.1 * int(K))
        formula = cell.tokens_a_call / (0.1 * int(K) + record.beta[K])
        assert cell.speedup == pytest.approx(formula, rel=0.05)  # windows at the end of a part are cut


@pytest.mark.parametrize(("n", "n_parts"), [(2, 1), (500, 3), (1601, 8), (10_000, 8)])
def test_the_parts_of_a_text_have_their_own_chances(n, n_parts):
    """Here the chance and the margin of a token are its place, which is its id."""
    scores = TokenScores(chances=[*range(1, n)], margins=[*range(1, n)])
    parts = parts_of([*range(n)], scores, n_ctx=64)
    assert len(parts) == n_parts
    for part in parts:
        first = part.chances[0]
        assert [*part.chances] == [*part.margins] == [*range(first, first + part.N)]
        assert part.n == min(first, 32)  # tokens before it
        assert part.tokens == [*range(part.n + part.N)]  # numbered anew
    assert parts[0].chances[0] == 1
    assert sum(part.N for part in parts) == min(n - 1, 1600)


def mean_tokens(chances, K):
    """Tokens of a call, exactly, from the chance that a call begins at each place."""
    begins = np.zeros(len(chances) + K + 2)
    begins[0] = 1
    for i in range(len(chances)):
        here = begins[i]
        for j, chance in enumerate(chances[i : i + K], start=i):
            begins[j + 1] += here * (1 - chance)
            here *= chance
        begins[i + K + 1] += here
    return len(chances) / begins[: len(chances)].sum()


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_tokens_of_a_call_are_those_that_the_chances_give(pair, temperature):
    record = pair.changed(temperature=temperature).score(LONG).record
    for K, cell in record.expected["model"].items():
        assert cell.tokens_a_call == pytest.approx(mean_tokens(record.draft.chances, int(K)), rel=0.05)


@pytest.mark.usefixtures("clock")
def test_a_draft_that_is_the_target_is_always_accepted():
    session = load_pair("tiny-target", "tiny-target", MODELS, draft_dtype="float32", temperature=0.8, K=3, threads=1)
    score = session.score(TEXT)
    assert score.alpha == pytest.approx(1, abs=1e-5)
    cells = score.record.expected["model"]
    assert cells["3"].leviathan_tokens == pytest.approx(4, abs=1e-4)
    n = len(score.record.tokens) - 1
    assert cells["3"].tokens_a_call == pytest.approx(n / -(-n // 4))


@pytest.mark.parametrize("accept", ["token", "block", "match", "lenient:0.5", "typical:0.1"])
def test_the_chances_are_those_of_the_rule(pair, accept):
    """Of the paper's rule as a decode tells it, of the others more, as many or fewer."""
    session = pair.changed(temperature=1, accept=accept)
    alpha = session.score(TEXT).alpha
    papers = pair.changed(temperature=1).score(TEXT).alpha
    as_papers = {"token": True, "block": True}
    assert (alpha == papers) == as_papers.get(accept, False)
    assert accept != "match" or alpha < papers
    assert not accept.startswith("lenient") or alpha > papers


# ---- Other models, drafters and files --------------------------------------------------------------------------------


def rule_of_mine(proposal, q, rng):
    return [int(np.argmax(q[0]))]


@pytest.mark.parametrize("drafter", ["prompt_lookup", "ngram", "heads", "model", "prompt_lookup+model"])
def test_each_drafter_lets_the_target_be_scored(pair, drafter):
    score = pair.changed(drafter=drafter).score(TEXT)
    assert score.nats == pair.score(TEXT).nats
    has_model = drafter not in ("prompt_lookup", "heads")
    assert (score.alpha is not None) == has_model
    assert has_model or f"--drafter {drafter} has no model that drafts, so there is no α." in str(score)


def test_a_rule_of_mine_has_no_chances(pair):
    score = pair.changed(accept=rule_of_mine).score(TEXT)
    assert score.alpha is None
    assert "The rule rule_of_mine does not tell its chances" in str(score)


def test_a_token_that_is_impossible_makes_the_perplexity_infinite(pair):
    [z] = pair.encode("z")

    def target(x, n_last):
        q = np.ones((n_last, pair.encoder.n_vocab))
        q[:, z] = 0
        return q / q.sum(-1, keepdims=True)

    score = load_pair(target=target, encoder=pair.encoder, drafter="prompt_lookup").score("It was\nz")
    assert score.perplexity is None
    assert score.record.target.log_probs[-1] is None
    assert "infinite" in str(score)
    json.dumps(score.document, allow_nan=False)


FILES = {"utf-8": "It was\nnight.\n", "utf-16": "It was\nnight.\n", "utf-8-sig": "It was\r\nnight.\r\n"}


def test_files_of_other_systems_have_the_same_score(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    documents = []
    for encoding, text in FILES.items():
        Path("text.txt").write_bytes(text.encode(encoding))
        assert command("--demo", "--score", "text.txt", "--json", "score.json")[0] == 0
        documents.append(json.loads(Path("score.json").read_text("utf-8")))
    assert [document["tokens"] for document in documents] == 3 * [documents[0]["tokens"]]
    assert documents[0]["pieces"][-1] == "\n"


def test_a_page_can_be_made_of_the_file_of_a_score(pair, tmp_path, capsys):
    score = pair.changed(temperature=1, drafter="int8/ngram").score(TEXT)
    path = str(tmp_path / "score.json")
    score.json(path)
    replay([path])
    assert Path(path).with_suffix(".html").read_text("utf-8") == score.html()
    assert "score.html: the score as a page" in capsys.readouterr().out
    assert "is the score of a text, and no run" in refusal(read_run, path)


def test_what_is_written_has_a_number_for_each_token(pair, tmp_path):
    score = pair.changed(temperature=1).score(TEXT)
    score.json(tmp_path / "tokens.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "tokens.jsonl").read_text("utf-8").splitlines()]
    assert lines == score.tokens
    assert len(lines) == len(score.record.tokens) - 1
    assert np.mean([line["chance_draft"] for line in lines]) == pytest.approx(score.alpha)
    assert -np.mean([line["log_prob_target"] for line in lines]) == pytest.approx(score.nats)
