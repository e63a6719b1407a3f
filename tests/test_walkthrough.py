"""docs/walkthrough.md: its tables are those of the models, and its check of the rules passes and can fail."""

import re

import numpy as np
import pytest
from tiny import ROOT

from benchmarks import walkthrough
from gpt2 import gpt2
from speculative import rules, sampling
from speculative.filters import to_distribution

PAGE = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
CHECK = re.search("```python\n(.*?)```", PAGE, re.DOTALL).group(1)
NUMBER = r"\d+\.\d+"


def tables(text):
    return re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)


def test_the_tables_are_those_that_the_command_prints(capsys):
    walkthrough.main([])
    printed = tables(capsys.readouterr().out)
    assert len(printed) == 4
    for kept, new in zip(tables(PAGE), printed, strict=True):
        assert re.split(NUMBER, kept.strip()) == re.split(NUMBER, new.strip())
        numbers = [[float(number) for number in re.findall(NUMBER, table)] for table in (kept, new)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.0101)  # another CPU rounds the last digit in its own way


def test_the_residual_is_that_of_the_models(bundled):
    """gpt2.py without a cache computes the rejected position again."""
    text = walkthrough.PROMPT + " Mr. Holmes, that you"
    p, q = (
        to_distribution(gpt2(encoder.encode(text), **params, n_head=hparams["n_head"])[-1:], walkthrough.TEMPERATURE)[0]
        for encoder, hparams, params in (bundled["tiny-draft"], bundled["tiny-target"])
    )
    [j] = bundled["tiny-target"][0].encode(" were")
    said = [float(re.search(f"{words} ({NUMBER})", PAGE)[1]) for words in ("Its sum is", "whose share was")]
    assert said == pytest.approx([1 - np.minimum(p, q).sum(), sampling.max_fn(q - p)[j]], abs=0.001)


def test_the_check_passes(capsys):
    exec(CHECK, {})
    assert capsys.readouterr().out.count("gives every text as often as the target does") == 2


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (sampling, "residual", lambda q, p: q),
        (sampling, "ratio", lambda q, p, j: q[j]),
        (rules, "residual", lambda q, p: q),
        (rules, "block_chances", lambda proposal, q: ([1.0] * len(q), [1.0] * len(q))),
    ],
)
def test_the_check_fails_if_a_rule_is_wrong(monkeypatch, module, name, wrong):
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError):
        exec(CHECK, {})
