"""python -m training distil: the divergences and their gradients, where the text comes from, a run that is interrupted,
and one line for whatever is wrong."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import rel_entr
from tiny import ROOT

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from plumbing.errors import UserError
from speculative.engines.plain import CachedModel
from speculative.filters import to_distribution
from training import distil, recipe, texts
from training.divergences import DIVERGENCES
from training.network import load_gpt2, log_probs
from training.recipe import Lesson, Model, Recipe
from utils import load_encoder_hparams_and_params

FORMULAS = {
    "kl": lambda p, q: rel_entr(q, p).sum(-1),
    "reverse_kl": lambda p, q: rel_entr(p, q).sum(-1),
    "jsd": lambda p, q: (rel_entr(q, (p + q) / 2) + rel_entr(p, (p + q) / 2)).sum(-1) / 2,
    "tvd": lambda p, q: 1 - np.minimum(p, q).sum(-1),
}
SMALL = {"n_batch": 4, "n_seq": 16, "n_rows": 64, "steps": 16, "rate": 0.01}


@pytest.fixture(scope="module")
def loaded(tiny_pair):
    """(target, draft), and begin(n_rows, n_seq, rng)"""
    models = []
    for name in ("target", "draft"):
        _, hparams, params = load_encoder_hparams_and_params(name, str(tiny_pair))
        params = jax.tree.map(lambda a: jnp.asarray(a) * 0.3, params)  # so that no distribution is all but one-hot
        models.append(Model(params, hparams["n_head"]))
    tokens = np.random.default_rng(0).integers(260, size=2000).astype(np.int32)
    return *models, texts.from_corpus(tokens)


@pytest.fixture
def arguments(tiny_pair, tmp_path):
    """The flags of a short run on copies of the models, which may be given once more after them."""
    for name in ("target", "draft"):
        (tmp_path / "models" / name).mkdir(parents=True)
        for path in (tiny_pair / name).iterdir():
            (tmp_path / "models" / name / path.name).symlink_to(path)
    (tmp_path / "prompts.txt").write_text("".join(f"the {i} things\n" for i in range(20)))
    words = np.random.default_rng(0).choice(["the", "in", "thing", "at"], (400, 12))
    (tmp_path / "text.txt").write_text("\n\n".join(map(" ".join, words)))
    models = ["--target_model_size", "target", "--models_dir", str(tmp_path / "models"), "--out", "new"]
    return [*models, "--n_batch", "4", "--n_seq", "16", "--steps", "8"]


# ---- Divergences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergences_are_their_formulas_and_their_gradients_their_differences(name):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        logits, q = rng.standard_normal((5, 9)), rng.dirichlet(np.full(9, 0.5), 5)

        def mean(logits):
            return DIVERGENCES[name](jax.nn.log_softmax(logits), q).mean()

        p = jax.nn.softmax(logits)
        np.testing.assert_allclose(mean(logits), FORMULAS[name](np.asarray(p), q).mean(), rtol=1e-9)
        gradient = jax.grad(mean)(logits)
        step = 1e-5 * np.eye(45).reshape(45, 5, 9)
        differences = jax.vmap(lambda d: (mean(logits + d) - mean(logits - d)) / 2e-5)(step)
        np.testing.assert_allclose(gradient.ravel(), differences, rtol=1e-4, atol=1e-9)


def test_the_loss_counts_what_the_draft_says_after_the_prompt(loaded):
    """Its gradient in the draft's parameters against a difference, and no gradient of what does not count."""
    _, draft, begin = loaded
    gpt2, rng = load_gpt2(), np.random.default_rng(1)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: jnp.asarray(a, np.float64), draft.params)
        x, n_prompt = begin(2, 12, rng)
        q = rng.dirichlet(np.full(260, 0.5), 24)
        lesson = Lesson(x, q, np.array([1.0, 0.7]), recipe.after_prompt(x, n_prompt))
        loss = jax.jit(recipe.make_loss(gpt2, draft.n_head, "jsd"))
        gradient = jax.jit(jax.grad(loss))(params, lesson)
        direction = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), params)
        shifted = [jax.tree.map(lambda a, d, h=h: a + h * d, params, direction) for h in (1e-6, -1e-6)]
        difference = (loss(shifted[0], lesson) - loss(shifted[1], lesson)) / 2e-6
        along = sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), gradient, direction)))
        np.testing.assert_allclose(along, difference, rtol=1e-3)
        elsewhere = np.where(lesson.counts.ravel()[:, None] > 0, q, np.eye(260)[np.zeros(24, int)])
        np.testing.assert_allclose(loss(params, lesson._replace(q=elsewhere)), loss(params, lesson), rtol=1e-12)


# ---- Learning --------------------------------------------------------------------------------------------------------


def test_acceptance_is_that_of_the_decoders(loaded, tiny_pair):
    target, draft, begin = loaded
    gpt2 = load_gpt2()
    lessons = recipe.held_out_lessons(Recipe(**SMALL, temperatures=(0.7, 0.0)), begin, target, gpt2, 2)
    shown = recipe.mean_acceptance(gpt2, draft, lessons)
    assert list(shown) == ["α at temperature 0.7", "α at temperature 0"]
    for t, each in lessons.items():
        alphas = []
        for lesson in each:
            for row, counts in zip(np.asarray(lesson.x), lesson.counts, strict=True):
                p, q = (
                    CachedModel(
                        jax.tree.map(np.asarray, model.params),
                        {"n_ctx": 128, "n_layer": len(model.params["blocks"]), "n_embd": 32, "n_head": 4},
                        lambda logits, t=t: to_distribution(logits, t),
                    )(row, n_last=len(row))
                    for model in (draft, target)
                )
                alphas += [float(np.minimum(a, b).sum()) for a, b, n in zip(p, q, counts, strict=True) if n]
        assert shown[f"α at temperature {t:g}"] == pytest.approx(np.mean(alphas), abs=2e-3)


@pytest.mark.parametrize(("text", "mixture"), [("corpus", 0.5), ("target", 0.5), ("draft", 0.5), ("mixed", 0.25)])
def test_rows_come_from_whom_the_recipe_says(text, mixture, loaded):
    """A row that a model wrote at temperature 0 is its greedy choice, and the corpus goes on as it stands."""
    target, draft, begin = loaded
    r = Recipe(**SMALL, text=text, mixture=mixture, temperatures=(0.0,))
    source = recipe.Texts(r, begin, target, draft.n_head, load_gpt2(), {})

    def greedy(model, x, n_prompt):
        says = log_probs(load_gpt2(), model.params, model.n_head, x).reshape(*x.shape, -1).argmax(-1)
        after = recipe.after_prompt(x, n_prompt)[:, :-1]
        return ((says[:, :-1] == x[:, 1:]) | (after == 0)).all(1)

    x, n_prompt, temperature = source.batch(5, draft.params)
    assert x.shape == (4, 16) and not temperature.any() and (n_prompt <= 4).all()
    by_target, by_draft = (greedy(model, x, n_prompt) for model in (target, draft))
    expected = {"corpus": (0, 0), "target": (4, 0), "draft": (0, 4), "mixed": (3, 1)}[text]
    assert (by_target.sum(), by_draft.sum()) == expected
    np.testing.assert_array_equal(source.batch(5, draft.params)[0], x)


def test_a_run_that_was_interrupted_ends_like_one_that_was_not(loaded, tmp_path, monkeypatch):
    target, draft, begin = loaded
    r = Recipe(**SMALL, text="mixed")
    whole, history = recipe.distil(r, target, draft, begin, begin, tmp_path / "whole.npz", every=4)
    assert history[-1][1]["α at temperature 1"] > history[0][1]["α at temperature 1"] + 0.05

    calls, teach = [], recipe.teach

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 15:  # 4 of them are of what is held out
            raise KeyboardInterrupt
        return teach(*args)

    monkeypatch.setattr(recipe, "teach", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recipe.distil(r, target, draft, begin, begin, tmp_path / "part.npz", every=4)
    monkeypatch.undo()
    again, _ = recipe.distil(r, target, draft, begin, begin, tmp_path / "part.npz", every=4)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="of another run"):
        recipe.distil(Recipe(**SMALL), target, draft, begin, begin, tmp_path / "part.npz", every=4)


# ---- The command -----------------------------------------------------------------------------------------------------


def test_the_new_draft_is_a_folder_that_loads(arguments, tmp_path, capsys):
    more = ["--first_layers", "1", "--prompts", str(tmp_path / "prompts.txt"), "--temperature", "0", "1"]
    distil.main([*arguments, *more])
    out = capsys.readouterr().out
    assert "α at temperature 0 on held-out text of the target: 0." in out and "--draft_model_size new" in out
    _, hparams, params = load_encoder_hparams_and_params("new", str(tmp_path / "models"))
    assert hparams["n_layer"] == 1 and np.isfinite(params["wte"]).all()
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == ["draft", "new", "target"]
    with pytest.raises(UserError, match="new is there already"):
        distil.main([*arguments, *more])


BAD = {
    "--draft_model_size draft --first_layers 1 --files text.txt": "either --draft_model_size or --first_layers",
    "--draft_model_size draft": "either --files or --prompts",
    "--draft_model_size draft --files text.txt --prompts prompts.txt": "either --files or --prompts",
    "--draft_model_size draft --prompts prompts.txt --text corpus": "corpus needs --files",
    "--draft_model_size draft --files text.txt --divergence reverse_kl --temperature 0 1": "temperatures above 0",
    "--draft_model_size draft --files text.txt --divergence l2": "invalid choice: 'l2'",
    "--draft_model_size draft --files text.txt --steps 0": "must be a whole number of at least 1",
    "--draft_model_size draft --files text.txt --mixture 2": "must be a number above 0 and at most 1",
    "--draft_model_size draft --files text.txt --rate -1": "must be a number above 0",
    "--draft_model_size draft --files text.txt --n_seq 200": "--n_seq 200 tokens, and the context has 128",
    "--draft_model_size draft --files empty.txt": "empty.txt is empty",
    "--draft_model_size draft --files latin.txt": "not UTF-8",
    "--draft_model_size draft --files none.txt": "cannot read the text from .*none.txt: No such file",
    "--draft_model_size draft --files short.txt": "the text is too short",
    "--draft_model_size draft --prompts prompts.txt --n_batch 17": "20 prompts, and a batch of 17",
    "--draft_model_size draft --prompts bad.jsonl": 'each line of .*bad.jsonl should be an object with "prompt"',
    "--draft_model_size none --files text.txt": "none",
    "--draft_model_size other --files text.txt": "other and target have different vocabularies",
    "--first_layers 3 --files text.txt": "--first_layers 3: target has 2",
    "--draft_model_size target --target_model_size draft --files text.txt": "the smaller of the two",
}


@pytest.mark.parametrize("flags", BAD)
def test_what_is_wrong_is_one_line(flags, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "short.txt").write_text("A paragraph.\n\nAnother.")
    (tmp_path / "bad.jsonl").write_text(json.dumps({"text": "no prompt"}))
    other = tmp_path / "models" / "other"
    other.mkdir()
    for path in (tmp_path / "models" / "draft").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    vocab = json.loads((other / "encoder.json").read_text())
    vocab["!"], vocab['"'] = vocab['"'], vocab["!"]
    (other / "encoder.json").write_text(json.dumps(vocab))
    with pytest.raises(UserError, match=BAD[flags]) as error:
        distil.main([*arguments, *flags.split()])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "models" / "new").exists()


def test_too_little_memory_is_said_before_anything_is_loaded(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(distil.memory, "available", lambda: 1000)
    with pytest.raises(UserError, match=r"GB of memory, and 0\.0 GB are free: take"):
        distil.main([*arguments, "--first_layers", "1", "--files", str(tmp_path / "text.txt")])


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(arguments, tmp_path):
    more = ["--first_layers", "1", "--prompts", str(tmp_path / "prompts.txt"), "--steps", "400", "--every", "4"]
    command = [sys.executable, "-m", "training", "distil", *arguments, *more]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True) as process:
        while "step 8/" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130 and err == "interrupted: the same command goes on from the last checkpoint\n"
    assert (tmp_path / "models" / "new.npz").exists() and not (tmp_path / "models" / "new").exists()
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert again.returncode == 0 and "going on from" in again.stdout and "400/400" in again.stdout
