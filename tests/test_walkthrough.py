"""The check in docs/walkthrough.md: it passes, and a wrong rule fails it. (Its tables: test_benchmarks.py.)"""

import re

import pytest
from tiny import ROOT

from speculative import rules, sampling

PAGE = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
CHECK = re.search("```python\n(.*?)```", PAGE, re.DOTALL).group(1)


def test_the_check_passes(capsys):
    exec(CHECK, {})
    assert capsys.readouterr().out.count("gives every text as often as the target does") == 2


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (sampling, "residual", lambda q, p: q),
        (rules, "block_chances", lambda proposal, q: ([1.0] * len(q), [1.0] * len(q))),
    ],
)
def test_the_check_fails_if_a_rule_is_wrong(monkeypatch, module, name, wrong):
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError):
        exec(CHECK, {})
