"""The check in docs/walkthrough.md: it passes, and a wrong rule fails it. (Its tables: test_benchmarks.py.)"""

import re

import pytest
from tiny import ROOT

PAGE = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
CHECK = re.search("```python\n(.*?)```", PAGE, re.DOTALL).group(1)


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
