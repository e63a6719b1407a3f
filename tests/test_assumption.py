"""Where a window costs more than a row: experts against every window there is, and the command on models of no size."""

import json
from itertools import combinations, product

import numpy as np
import pytest
from tiny import random_params

from gpt2 import ffn
from plumbing.errors import UserError
from speculative.engines.formats import FORMATS
from speculative.engines.packed import pack
from speculative.engines.runtime import compiled_pass as compiled_kernels

pytestmark = pytest.mark.skipif(not compiled_kernels(), reason="numba is not installed")
assumption = pytest.importorskip("benchmarks.assumption")
from benchmarks import experts, parts  # noqa: E402


@pytest.mark.parametrize(("E", "k", "n_rows"), [(4, 2, 1), (4, 2, 3), (5, 1, 4), (3, 3, 2)])
def test_the_formula_is_the_mean_over_every_window(E, k, n_rows):
    windows = product(combinations(range(E), k), repeat=n_rows)
    touched = [len({expert for row in window for expert in row}) for window in windows]
    assert experts.expected_experts(E, k, n_rows) == pytest.approx(np.mean(touched))


def test_random_rows_are_routed_as_the_formula_takes_them():
    rng = np.random.default_rng(0)
    router, _ = experts.random_experts(8, rng, 32, 16)
    chosen, shares = experts.route(rng.standard_normal((5 * 4000, 32), np.float32), router, 2)
    assert np.all(chosen[:, 0] != chosen[:, 1]) and np.allclose(shares.sum(-1), 1)
    touched = np.array([len(np.unique(window)) for window in chosen.reshape(4000, 10)])
    assert abs(touched.mean() - experts.expected_experts(8, 2, 5)) < 4 * touched.std() / 4000**0.5


class Untouchable:
    __array_ufunc__ = None

    def __rmatmul__(self, x):
        raise AssertionError("an expert that no row was sent to was read")


def test_a_mixture_adds_up_the_experts_of_each_row_and_reads_no_other():
    rng = np.random.default_rng(1)
    router, weights = experts.random_experts(8, rng, 32, 16, weight=np.asarray)
    x = rng.standard_normal((3, 32), np.float32)
    chosen, shares = experts.route(x, router, 2)
    expected = [
        sum(share * ffn(row[None], **weights[e])[0] for e, share in zip(es, shares_of_row, strict=True))
        for row, es, shares_of_row in zip(x, chosen, shares, strict=True)
    ]
    untouched = {"c_fc": {"w": Untouchable(), "b": 0}, "c_proj": {"w": Untouchable(), "b": 0}}
    weights = [expert if e in chosen else untouched for e, expert in enumerate(weights)]
    assert np.allclose(experts.mixture(x, router, weights, 2), expected, atol=1e-5)
    with pytest.raises(AssertionError, match="no row was sent to"):
        experts.mixture(x, router, [untouched] * 8, 2)


def test_distinct_experts_of_each_window_of_a_text():
    chosen = np.array([[0, 1], [1, 2], [1, 0], [3, 4]])
    assert experts.n_distinct(chosen, 1).tolist() == [2, 2, 2, 2]
    assert experts.n_distinct(chosen, 2).tolist() == [3, 3, 4] and experts.n_distinct(chosen, 3).tolist() == [3, 5]


@pytest.mark.parametrize("n_rows", [1, 5, 23])
def test_the_product_in_one_thread_is_the_product(n_rows):
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((n_rows, 70), (70, 45)))
    assert np.allclose(x @ experts.OneThread(w), x @ w, atol=1e-4)


@pytest.mark.slow
def test_a_router_learns_where_it_helps():
    """Rows of two kinds, of which each has a function of its own: experts that tell them apart explain them."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2000, 8)).astype(np.float32)
    y = np.where(x[:, :1] > 0, np.abs(x), -2 * np.tanh(x)).astype(np.float32)
    _, before = experts.learn(x, y, 4, 2, 1)
    router, after = experts.learn(x, y, 4, 2, 300)
    assert router.shape == (8, 4) and after < before / 3


def test_where_a_speedup_ends():
    assert assumption.where_it_crosses([1, 2, 4, 8], [2, 1.5, 0.5, 0.4]) == pytest.approx(3)
    assert (
        assumption.where_it_crosses([1, 2], [2, 1.5]) is None
        and assumption.where_it_crosses([1, 2], [0.9, 0.8]) is None
    )


def test_the_roofline():
    assert [assumption.roofline(8.0, 2.0, n) for n in (1, 4, 5)] == [8, 8, 10]


@pytest.fixture
def no_size(monkeypatch):
    """Models and experts of a few thousand parameters."""

    def cut_model(size, times, convert, seed=0):
        hparams = {"n_vocab": 50, "n_ctx": 1024, "n_embd": 16, "n_head": 2, "n_layer": 2 if size == "1558M" else 1}
        return pack(random_params(hparams, seed), convert), hparams

    for module in (assumption, parts):
        monkeypatch.setattr(module, "cut_model", cut_model)
    monkeypatch.setattr(experts, "N_EMBD", 32)
    monkeypatch.setattr(experts, "N_HIDDEN", 64)

    return assumption.main


def test_the_command(no_size, capsys, tmp_path):
    names = ["experts", "batch", "context", "operations", "parts"]
    path = tmp_path / "rows.json"
    no_size([*names, "--rounds", "1", "--B", "1", "2", "--json", str(path), "--out", str(tmp_path / "pictures")])
    found = json.loads(path.read_text(encoding="utf-8"))
    shown = capsys.readouterr().out
    for name in names:
        assert assumption.EXPERIMENTS[name][3] in shown and len(found[name]) > 2
        assert (tmp_path / "pictures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    [row] = [row for row in found["experts"] if (row["E"], row["B"], row["rows"]) == (8, 1, 5)]
    assert row["formula"] == pytest.approx(6.1016, abs=1e-4) and 2 <= row["counted"] <= 8
    of_parts = [row for row in found["parts"] if row["weights"] == "kernels" and row["context"] == 1000]
    assert [row["part"] for row in of_parts] == ["linear layers", "attention", "logits", "rest", "all"]
    assert all(row["one"] > 0 for row in of_parts)
    assert [row["B"] for row in found["batch"]] == [1, 2] * len(FORMATS) and found["operations"][0]["speedup"] == 1
    shares = [row["share"] for row in found["context"] if row["dtype"] == "float32"]
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] < 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("batches", "NAME: must be one of experts, router, batch, context, operations, parts (did you mean batch?)"),
        ("batch --B 64", "--B: must be a whole number from 1 to 32"),
        ("batch --alpha 0", "--alpha: must be a number above 0"),
        ("parts --K 0", "--K: must be"),
        ("parts --json no/such/folder.json", "cannot write to no/such/folder.json"),
        ("parts --out file/folder", "cannot write to file/folder"),
    ],
)
def test_bad_flags_are_said_before_anything_is_measured(monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(assumption, "EXPERIMENTS", dict.fromkeys(assumption.EXPERIMENTS))
    with pytest.raises(UserError) as error:
        assumption.main(words.split())
    assert message in str(error.value)
