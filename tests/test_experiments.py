"""The experiments: where speculation stops paying, the papers' figures, what helps a draft to learn."""

import json
from itertools import product

import numpy as np
import pytest
from enumeration import output_distribution, random_model
from matplotlib.figure import Figure
from tiny import decoded, random_params, refusal

from benchmarks import assumption, paper, tables, theory
from speculative.accept import choose
from speculative.drafters.model import model_drafter
from speculative.engines.formats import FORMATS
from speculative.engines.packed import pack
from speculative.engines.runtime import compiled_pass as compiled_kernels
from speculative.measure.analysis import leviathan_speedup
from speculative.measure.record import Counted, Iteration
from speculative.sampling import speculative_sampling


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


# ---- Where a window costs more than a row ----------------------------------------------------------------------------


def test_a_speedup_ends_where_the_line_through_it_meets_1():
    for Bs, speedups, end in (
        ([1, 2, 4, 8], [2, 1.5, 0.5, 0.4], 3),
        ([1, 2], [2, 1.5], None),
        ([1, 2], [0.9, 0.8], None),
    ):
        assert assumption.where_it_ends(Bs, speedups) == (end and pytest.approx(end))
    assert [assumption.roofline(8.0, 2.0, n) for n in (1, 4, 5)] == [8, 8, 10]


@pytest.mark.skipif(not compiled_kernels(), reason="numba is not installed")
def test_assumption_measures_and_draws_every_experiment(capsys, tmp_path):
    """On models of a few thousand parameters."""

    def cut_model(size, convert):
        hparams = {"n_vocab": 50, "n_ctx": 1024, "n_embd": 16, "n_head": 2, "n_layer": 2 if size == "1558M" else 1}
        return pack(random_params(hparams), convert), hparams

    path = tmp_path / "rows.json"
    words = ["--rounds", "1", "--B", "1", "2", "--json", str(path), "--out", str(tmp_path)]
    assumption.main(words, cut_model)
    found = json.loads(path.read_text(encoding="utf-8"))
    shown = capsys.readouterr().out
    for name, (*_, title) in assumption.EXPERIMENTS.items():
        assert title in shown
        assert is_picture(tmp_path / f"{name}.png")
    assert [row["B"] for row in found["batch"]] == [1, 2] * len(FORMATS)
    shares = [row["share"] for row in found["context"] if row["dtype"] == "float32"]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1


# ---- The papers' figures ---------------------------------------------------------------------------------------------


def test_the_picture_of_the_theory_has_the_runs_point(tmp_path, capsys):
    """The picture is written, and its point is the run's."""
    path, out = tmp_path / "run.json", tmp_path / "theory.png"
    figures = {"alpha": 0.8, "c": 0.1, "mean_beta": 1.2, "usual_K": 4}
    words = ["--run", str(path), "--out", str(out)]
    for broken in ({}, figures | {"alpha": None}, [1]):
        path.write_text(json.dumps({"figures": broken}), encoding="utf-8")
        assert "is not what" in refusal(theory.main, words)
    path.write_text(json.dumps({"figures": figures}), encoding="utf-8")
    theory.main(words)
    assert is_picture(out)
    header, _, mine, best = capsys.readouterr().out.splitlines()
    assert "α = 0.800, c = 0.100" in header
    assert "1.20 in the run" in header
    assert mine.split()[-4:] == ["4", "3.36", "2.40", "1.49"]  # (1 - 0.8^5) / 0.2; that / 1.4; 5 / that
    assert best.split()[2] == "6"  # 2.470, of 2.460 for 5 and 2.448 for 7


def test_what_is_drawn_is_the_formula():
    tokens, time, best, _ = axes = Figure().subplots(1, 4)
    theory.plot_theory({"alpha": 0.8, "c": 0.1, "K": 4}, axes)
    assert [float(line.get_ydata()[0]) for line in tokens.lines[:4]] == [1] * 4  # at α = 0, whatever K
    assert time.lines[2].get_ydata()[4] == pytest.approx(1 / leviathan_speedup(0.8, 4, 0.1))
    for panel, point in ((tokens, (0.8, 3.3616)), (time, (4, 1.4 / 3.3616)), (best, (0.8, 0.1))):
        [(x, y)] = [(*line.get_xdata(), *line.get_ydata()) for line in panel.lines if line.get_marker() == "*"]
        assert (x, y) == pytest.approx(point)


@pytest.mark.parametrize(("alpha", "c", "K"), [(0.3, 0.5, 0), (0.99, 0.001, 16), (0.5, 0.499, 1), (0.8, 0.1, 6)])
def test_the_best_lookahead_is_that_of_the_formula(alpha, c, K):
    assert theory.best_lookahead(alpha, c) == K


@pytest.mark.parametrize("b", [1.0, 0.5, 0.1])
def test_the_distribution_with_lenience_is_that_of_the_loop(b):
    """The first token of a window, over every path that the sampler can take."""
    model, draft = random_model(1, 5), random_model(2, 5)
    x = np.array([1, 3])
    rule = choose(lenience=b).chain
    exact = output_distribution(
        lambda rng: decoded(speculative_sampling(x, model_drafter(draft, rng), model, 2, 1, rng, rule))[0]
    )
    found = paper.lenient_distribution(draft(x)[0].astype(float), model(x)[0].astype(float), b)  # [5]
    assert found == pytest.approx([exact.get(token, 0) for token in range(5)])


def test_distances_are_summed_over_all_texts_of_two_tokens():
    """After two tokens, against the same sum written out."""
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.ones(3), (4, 3)) for _ in range(2))

    def model(table):
        return lambda x: table[len(x), [x[-1]]]

    found = paper.exact_distances(model(p), model(q), [2], [1.0, 0.4])
    assert found[1.0] == pytest.approx((0, 0))
    lenient = [[paper.lenient_distribution(p[n, t], q[n, t], 0.4) for t in range(3)] for n in range(3)]
    one = sum(abs(lenient[1][2][t] - q[1, 2, t]) for t in range(3)) / 2
    both = [lenient[1][2][s] * lenient[2][s][t] - q[1, 2, s] * q[2, s, t] for s, t in product(range(3), repeat=2)]
    assert found[0.4] == pytest.approx((one, sum(map(abs, both)) / 2))
    assert found[0.4][1] > found[0.4][0] > 0


@pytest.mark.parametrize("figure", paper.PRESETS)
def test_what_is_decoded_is_shown(tmp_path, benchmark, figure):
    words = ["--prompts", str(tmp_path / "prose.txt"), "--repeats", "2", "--n_tokens", "6", "--K", "1", "2"]
    words += ["--n_exact", "1", "--json", str(tmp_path / "rows.json")]
    drawn = paper.PRESETS[figure].plot is not None
    if drawn:
        words += ["--out", str(tmp_path / "picture.png")]
    if figure == "lenience":
        words += ["--lenience", "1", "0.5"]
    _, *lines = benchmark(paper, figure, *words)
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert lines[: len(rows)] == tables.table(rows, paper.PRESETS[figure].columns).splitlines()[1:]
    assert drawn == (tmp_path / "picture.png").exists()
    for row in rows:
        assert row["runs"] == 4
        assert row["texts"] == (2 if row["temperature"] == 0 else 4)  # a greedy text is the same again
    assert (rows[0]["K"], rows[0]["text_iterations"], rows[0]["text_iterations_sd"]) == (0, 6, 0)
    if figure == "lenience":  # more of it is further away
        plain, *lenient = rows
        assert plain["lenience"] is None
        assert [(row["K"], row["lenience"]) for row in lenient] == [(1, 1), (1, 0.5), (2, 1), (2, 0.5)]
        assert lenient[0]["one"] == pytest.approx(0, abs=1e-6)
        assert lenient[1]["two"] >= lenient[1]["one"] > 0


def test_a_row_of_iterations_is_their_mean_and_spread(benchmark, tmp_path):
    words = ["--prompts", str(tmp_path / "prose.txt"), "--n_tokens", "8", "--K", "2", "--repeats", "2"]
    _, *lines, _, last = benchmark(paper, "table1", *words)
    assert [line.split()[:3] for line in lines[:2]] == [["prose", "0", "ArS"], ["prose", "0", "SpS"]]
    assert lines[0].split()[-3:] == lines[1].split()[-3:]  # the same texts, so the same figures
    assert last == "At temperature 0, texts that differ from autoregressive decoding's: 0"


def test_a_row_of_texts():
    """3 iterations of 2 drafts for 6 tokens, and 2 of 2 for 6: r = 6/9 and 6/6."""
    three = [Iteration(Counted([1, 2], 2, 1))] * 3
    two = [Iteration(Counted([1, 2, 3], 2, 2))] * 2
    row = tables.of_texts([three, two])
    assert (row["text_r"], row["text_r_error"]) == (pytest.approx((6 / 9 + 1) / 2), pytest.approx(1 / 6))
    assert (row["text_iterations"], row["p50"], row["texts"]) == (2.5, 2.5, 2)
    assert row["text_iterations_sd"] == pytest.approx(0.5**0.5)


def test_the_same_command_counts_the_same_iterations(benchmark, tmp_path):
    words = ["--prompts", str(tmp_path / "prose.txt"), "--K", "2", "--settings", "1:0.9", "--n_tokens", "4"]
    words += ["--repeats", "9"]
    shown = benchmark(paper, "iterations", *words)
    assert shown == benchmark(paper, "iterations", *words)
    r, iterations = (float(shown[2].split()[i]) for i in (4, 6))
    assert (0.3 <= r <= 1, 2 <= iterations <= 4) == (True, True)
