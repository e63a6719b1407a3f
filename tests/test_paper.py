"""The pictures of formulas: their point is the run's, and a file that is no run is said in one line."""

import json

import pytest
from matplotlib.figure import Figure

from benchmarks import paper
from speculative.errors import UserError
from speculative.measure.analysis import leviathan_speedup

FIGURES = {"alpha": 0.8, "c": 0.1, "mean_beta": 1.2, "usual_K": 4}


def run(monkeypatch, tmp_path, figures=FIGURES, out="theory.png"):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"figures": figures}), encoding="utf-8")
    words = ["paper", "theory", "--run", str(path), "--out", str(tmp_path / out)]
    monkeypatch.setattr("sys.argv", words)
    paper.main()


def test_the_picture_is_written_and_the_point_is_the_runs(monkeypatch, tmp_path, capsys):
    run(monkeypatch, tmp_path)
    assert (tmp_path / "theory.png").read_bytes().startswith(b"\x89PNG")
    header, _, mine, best = capsys.readouterr().out.splitlines()
    assert "α = 0.800, c = 0.100" in header and "1.20 in the run" in header
    assert mine.split()[-4:] == ["4", "3.36", "2.40", "1.49"]  # (1 - 0.8^5) / 0.2; that / 1.4; 5 / that
    assert best.split()[2] == str(paper.best_lookahead(0.8, 0.1)) == "6"  # 2.470, of 2.460 for 5 and 2.448 for 7


def test_what_is_drawn_is_the_formula():
    axes = Figure().subplots(1, 4)
    paper.plot({"alpha": 0.8, "c": 0.1, "K": 4}, axes)
    tokens, time, best, _ = axes
    assert [float(line.get_ydata()[0]) for line in tokens.lines[:4]] == [1] * 4  # at α = 0, whatever K
    assert time.lines[2].get_ydata()[4] == pytest.approx(1 / leviathan_speedup(0.8, 4, 0.1))
    for panel, point in ((tokens, (0.8, 3.3616)), (time, (4, 1.4 / 3.3616)), (best, (0.8, 0.1))):
        [(x, y)] = [(*line.get_xdata(), *line.get_ydata()) for line in panel.lines if line.get_marker() == "*"]
        assert (x, y) == pytest.approx(point)


@pytest.mark.parametrize(("alpha", "c", "K"), [(0.3, 0.5, 0), (0.99, 0.001, 16), (0.5, 0.499, 1)])
def test_the_best_lookahead(alpha, c, K):
    assert paper.best_lookahead(alpha, c) == K


@pytest.mark.parametrize("figures", [{}, FIGURES | {"alpha": None}, [1]])
def test_a_file_that_is_no_run(monkeypatch, tmp_path, figures):
    with pytest.raises(UserError, match="is not what"):
        run(monkeypatch, tmp_path, figures)
    assert not (tmp_path / "theory.png").exists()


def test_a_run_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["paper", "theory", "--run", str(tmp_path / "none.json")])
    with pytest.raises(UserError, match="cannot read"):
        paper.main()
