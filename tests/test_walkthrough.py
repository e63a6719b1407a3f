"""The two worked examples and the proof in docs/: what they say is what the code computes."""

import re

import numpy as np
import pytest
from tiny import ROOT

from benchmarks import walkthrough
from gpt2 import gpt2
from speculative.filters import to_distribution
from speculative.sampling import max_fn

PAGE = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
CHECK = re.search("```python\n(.*?)```", PAGE, re.DOTALL).group(1)
NUMBER = r"\d+\.\d+"


@pytest.fixture(scope="module")
def page():
    return walkthrough.page()


def test_the_page_is_what_the_command_prints(page, capsys):
    """This holds up to the proof. The last digit of a number may differ, as another processor rounds it."""
    kept, _ = PAGE.split("\n## Why nothing is lost\n")
    assert re.split(NUMBER, kept) == re.split(NUMBER, page)
    numbers = [[float(number) for number in re.findall(NUMBER, text)] for text in (kept, page)]
    assert len(numbers[0]) > 40
    assert numbers[0] == pytest.approx(numbers[1], abs=0.0101)
    walkthrough.main([])
    assert capsys.readouterr().out == page


def test_the_numbers_are_those_of_the_models(page, bundled):
    """gpt2.py without a cache computes the rejected place again, and Algorithm 2's own function the residual."""
    text, draft, drawn = walkthrough.PROMPT + " Mr. Holmes, that you", " have", " were"
    rows = {}
    for name, (encoder, hparams, params) in bundled.items():
        logits = gpt2(encoder.encode(text), **params, n_head=hparams["n_head"])  # [n_seq, n_vocab]
        rows[name] = to_distribution(logits[-1:], walkthrough.TEMPERATURE)[0]  # [n_vocab]
    p, q = rows["tiny-draft"], rows["tiny-target"]
    [j], [own] = encoder.encode(draft), encoder.encode(drawn)
    _, rejection = page.split("## The target rejects")
    row = re.search(rf"\| `{draft}` \| ({NUMBER}) \| ({NUMBER}) \| ({NUMBER}) \| ({NUMBER}) \| rejected", rejection)
    said_p, said_q, ratio, u = map(float, row.groups())
    assert (said_p, said_q, ratio) == pytest.approx((p[j], q[j], q[j] / p[j]), abs=0.006)
    assert u > ratio
    [total] = re.findall(rf"Its sum is ({NUMBER})", rejection)
    [share] = re.findall(rf"whose share was ({NUMBER})", rejection)
    expected = 1 - np.minimum(p, q).sum(), max_fn(q - p)[own]
    assert (float(total), float(share)) == pytest.approx(expected, abs=0.001)


def test_the_check_of_the_theorem_passes(capsys):
    exec(CHECK, {})
    assert "1000 times of 1000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("min", lambda one, ratio: ratio),
        ("max", lambda zero, difference: difference),
        ("max", lambda zero, difference: max(zero, -difference)),
        ("max", lambda zero, difference: abs(difference)),
    ],
)
def test_the_check_of_the_theorem_can_fail(name, wrong):
    with pytest.raises(AssertionError):
        exec(CHECK, {name: wrong})
