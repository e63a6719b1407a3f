"""Drafts of several shapes learn from one target, each for as many steps as the time allows."""

import json

import pytest
from tiny import refusal

aspect = pytest.importorskip("benchmarks.aspect")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seconds 0", "--seconds: must"),
        ("--json no/such/a", "cannot write"),
        ("--n_tokens 5000", "exceed the context of"),
    ],
)
def test_bad_flags(words, message):
    assert message in refusal(aspect.main, words.split())


@pytest.mark.slow
def test_the_command(tmp_path, tiny_pair, capsys):
    pair = ["--models_dir", str(tiny_pair), "--draft_model_size", "draft", "--target_model_size", "target"]
    words = ["--seconds", "1", "--lessons", "3", "--n_tokens", "6", "--json", str(tmp_path / "rows.json")]
    aspect.main([*pair, *words], shapes={1: 128, 2: 64})
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["layers"], row["width"], row["parameters"]) for row in rows] == [(1, 128, 196608), (2, 64, 98304)]
    for row in rows:
        assert row["steps"] == max(1, round(1000 / row["step_ms"])) and 0 < row["alpha"] < 1 and row["c"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 1 + 2
