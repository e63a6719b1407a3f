"""The pictures of formulas: their point is the run's, and a file that is no run is said in one line."""

import json

import numpy as np
import pytest
from enumeration import output_distribution, random_model
from matplotlib.figure import Figure

from benchmarks import paper
from plumbing.errors import UserError
from speculative.drafters.model import model_drafter
from speculative.measure.analysis import leviathan_speedup
from speculative.sampling import speculative_sampling

FIGURES = {"alpha": 0.8, "c": 0.1, "mean_beta": 1.2, "usual_K": 4}


def run(tmp_path, figures=FIGURES, out="theory.png"):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"figures": figures}), encoding="utf-8")
    paper.main(["theory", "--run", str(path), "--out", str(tmp_path / out)])


def test_the_picture_is_written_and_the_point_is_the_runs(tmp_path, capsys):
    run(tmp_path)
    assert (tmp_path / "theory.png").read_bytes().startswith(b"\x89PNG")
    header, _, mine, best = capsys.readouterr().out.splitlines()
    assert "α = 0.800, c = 0.100" in header and "1.20 in the run" in header
    assert mine.split()[-4:] == ["4", "3.36", "2.40", "1.49"]  # (1 - 0.8^5) / 0.2; that / 1.4; 5 / that
    assert best.split()[2] == str(paper.best_lookahead(0.8, 0.1)) == "6"  # 2.470, of 2.460 for 5 and 2.448 for 7


def test_what_is_drawn_is_the_formula():
    axes = Figure().subplots(1, 4)
    paper.plot_theory({"alpha": 0.8, "c": 0.1, "K": 4}, axes)
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
def test_a_file_that_is_no_run(tmp_path, figures):
    with pytest.raises(UserError, match="is not what"):
        run(tmp_path, figures)
    assert not (tmp_path / "theory.png").exists()


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        paper.main(["theory", "--run", str(tmp_path / "none.json")])


def test_the_distribution_with_lenience_is_that_of_the_loop():
    """The first token of a window, over every path that the sampler can take."""
    model, draft = random_model(1, 5), random_model(2, 5)
    x = np.array([1, 3])
    for b in (1.0, 0.5, 0.1):

        def decode(rng, b=b):
            drafter = model_drafter(draft, rng)
            steps = speculative_sampling(x, drafter, model, 2, 1, rng, b)
            return tuple(token for step in steps for token in step.tokens)[:1]

        exact = output_distribution(decode)
        found = paper.lenient_distribution(draft(x)[0].astype(float), model(x)[0].astype(float), b)  # [5]
        assert found == pytest.approx([exact.get((token,), 0) for token in range(5)])


def test_exact_distances():
    """After two tokens, against the same sum written out."""
    rng = np.random.default_rng(0)
    rows = {name: rng.dirichlet(np.ones(3), (4, 3)) for name in "pq"}

    class Pair:
        def draft(self, x):
            return rows["p"][len(x), [x[-1]]]

        def target(self, x):
            return rows["q"][len(x), [x[-1]]]

    found = paper.exact_distances(Pair(), [2], [1.0, 0.4])
    assert found[1.0] == pytest.approx((0, 0))
    q = [[paper.lenient_distribution(rows["p"][n, t], rows["q"][n, t], 0.4) for t in range(3)] for n in range(3)]
    one = sum(abs(q[1][2][t] - rows["q"][1, 2, t]) for t in range(3)) / 2
    both = [q[1][2][s] * q[2][s][t] - rows["q"][1, 2, s] * rows["q"][2, s, t] for s in range(3) for t in range(3)]
    assert found[0.4] == pytest.approx((one, sum(map(abs, both)) / 2)) and found[0.4][1] > found[0.4][0] > 0


@pytest.mark.parametrize("figure", ["figure1", "lenience"])
def test_what_is_decoded_is_drawn(tmp_path, tiny_pair, capsys, figure):
    words = ["--models_dir", str(tiny_pair), "--draft_model_size", "draft", "--target_model_size", "target"]
    words += ["--sequences", "3", "--n_tokens", "6", "--n_prompts", "2", "--domains", "prose", "--K", "1", "2"]
    words += ["--lenience", "1", "0.5", "--n_exact", "1", "--out", str(tmp_path / "picture.png")]
    paper.main([figure, *words, "--json", str(tmp_path / "rows.json")])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    if figure == "figure1":
        assert [row["K"] for row in rows] == [0, 1, 2] * 2 and rows[0]["iterations"] == 6 and rows[0]["sd"] == 0
        assert all(row["ms"] > 0 and row["sequences"] == 3 for row in rows)
    else:
        assert [(row["K"], row["b"]) for row in rows] == [(1, 1), (1, 0.5), (2, 1), (2, 0.5)]
        assert rows[0]["one"] == pytest.approx(0, abs=1e-6) and rows[1]["two"] >= rows[1]["one"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("theory", "theory needs --run"),
        ("figure1 --run run.json", "theory needs --run"),
        ("figure1 --sequences 1", "--sequences: must be"),
        ("lenience --lenience 0", "--lenience: must be"),
        ("figure1 --out no/such/folder.png", "cannot write to no/such/folder.png"),
    ],
)
def test_bad_flags(monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper, "Pair", None)
    with pytest.raises(UserError, match=message):
        paper.main(words.split())
