"""The spread of the iterations is counted, and the same command counts the same."""

import json

import pytest

from benchmarks import iterations
from plumbing.errors import UserError
from speculative.measure.recorder import Iteration
from speculative.sampling import Step


def test_a_row():
    """3 iterations of 2 drafts for 6 tokens, and 2 of 2 for 6: r = 6/9 and 6/6."""
    three = [Iteration(Step([1, 2], 2, 1))] * 3
    two = [Iteration(Step([1, 2, 3], 2, 2))] * 2
    row = iterations.summarise([three, two])
    assert row["r"] == pytest.approx((6 / 9 + 1) / 2) and row["standard_error"] == pytest.approx(1 / 6)
    assert (row["iterations"], row["p50"], row["sequences"]) == (2.5, 2.5, 2)
    assert row["sd"] == pytest.approx(0.5**0.5)


def test_the_same_command_counts_the_same(capsys, tmp_path):
    path = tmp_path / "rows.json"
    words = ["--K", "2", "--settings", "0", "1:0.9", "--sequences", "21", "--n_tokens", "4", "--json", str(path)]
    tables = []
    for _ in range(2):
        iterations.main(words)
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    greedy, sampled = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert (greedy["sequences"], sampled["sequences"]) == (20, 21)  # a seed changes nothing of a greedy text
    assert 2 <= sampled["iterations"] <= 4 and sampled["top_p"] == 0.9


@pytest.mark.parametrize("words", [["--sequences", "1"], ["--K", "0"], ["--settings", "x"], ["--n_tokens", "0"]])
def test_bad_flags(words):
    with pytest.raises(UserError):
        iterations.main(words)
