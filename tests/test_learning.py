"""The benchmarks of drafts that learn: what is measured is kept and not made twice, and what is shown is what was
measured."""

import numpy as np
import pytest

pytest.importorskip("jax")

from benchmarks import distillation
from plumbing.errors import UserError
from training import recipe


@pytest.fixture
def command(tiny_pair, tmp_path, monkeypatch):
    """run(*flags) runs a benchmark on the tiny pair, for a few steps."""
    words = np.random.default_rng(0).choice(["the", "in", "thing", "at"], (400, 12))
    (tmp_path / "text.txt").write_text("\n\n".join(map(" ".join, words)))
    (tmp_path / "prompts.txt").write_text("the thing\nin the\nat\n")
    models = ["--models_dir", str(tiny_pair), "--target_model_size", "target", "--draft_model_size", "draft"]
    monkeypatch.chdir(tmp_path)

    def run(module, *flags):
        module.main([*flags, *models])

    return run


@pytest.mark.slow
def test_the_grid_goes_on_where_it_was_interrupted(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(distillation, "DIVERGENCES", {"jsd": None})
    monkeypatch.setattr(distillation, "TEXTS", ("target", "draft"))
    monkeypatch.setattr(distillation, "fit_gaussian", lambda divergence: (np.arange(3),) * 3)
    monkeypatch.setattr(distillation, "N_TEST", 1)
    flags = ["text.txt", "--steps", "2", "--seeds", "1", "--n_prompts", "2", "--n_tokens", "12"]
    flags += ["--prompts", "prompts.txt", "--out", "out"]
    trained, distil = [], recipe.distil

    def counted(r, *args, **options):
        trained.append((r.divergence, r.text, r.seed))
        if len(trained) == 2:
            raise KeyboardInterrupt
        return distil(r, *args, **options)

    monkeypatch.setattr(distillation, "distil", counted)
    with pytest.raises(KeyboardInterrupt):
        command(distillation, *flags)
    command(distillation, *flags)
    assert trained == [("jsd", "target", 0), ("jsd", "draft", 0), ("jsd", "draft", 0)]
    shown = capsys.readouterr().out
    command(distillation, *flags)  # what is all there is only shown
    assert len(trained) == 3 and capsys.readouterr().out.splitlines()[-2:] == shown.splitlines()[-2:]
    start, _, *rows = shown[shown.index("divergence") :].splitlines()[1:-1]
    assert start.split()[:2] == ["the", "start"] and len(rows) == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["distillation.png", "runs.jsonl"]


def test_a_row_is_the_mean_of_its_seeds_and_their_spread():
    figures = [dict.fromkeys(distillation.FIGURES, value) for value in (0.5, 0.7)]
    [row] = distillation.summarise({("kl", "corpus", seed): each for seed, each in enumerate(figures)})
    assert row["alpha1"] == pytest.approx(0.6) and row["alpha1_sd"] == pytest.approx(0.02**0.5)


def test_one_gaussian_covers_both_modes_or_seeks_one():
    x, covering, q = distillation.fit_gaussian("kl")
    _, seeking, _ = distillation.fit_gaussian("reverse_kl")
    assert q.sum() == pytest.approx(1) and covering.sum() == pytest.approx(1, abs=1e-5)
    mean, spread = (covering * x).sum(), ((covering * x**2).sum() - (covering * x).sum() ** 2) ** 0.5
    assert mean == pytest.approx((q * x).sum(), abs=0.05)  # that of the mixture, as is the spread
    assert spread == pytest.approx(((q * x**2).sum() - (q * x).sum() ** 2) ** 0.5, abs=0.05)
    assert (seeking * x).sum() == pytest.approx(-2, abs=0.1) and seeking[x > 1].sum() < 0.01


def test_a_folder_that_cannot_be_written_is_one_line(command, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UserError, match="cannot write to out: "):
        command(distillation, "text.txt", "--out", "out")
