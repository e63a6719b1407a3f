"""Drafts that learn, beforehand (python -m training distil) and while they serve (online).

The tests say what they learn from and what they make small, that the texts stay the target's, that an interrupted run
goes on, and that whatever is wrong is said in one line."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest
from enumeration import output_distribution, random_model, remembered, total_variation
from scipy.special import rel_entr
from tiny import ROOT, Interrupted, decoded, random_params, refusal

pytest.importorskip("jax")

import jax

from speculative.engines import memory
from speculative.engines.plain import CachedModel
from speculative.filters import Filters
from speculative.sampling import autoregressive_sampling
from training import distil, online, recipe, texts
from training.divergences import DIVERGENCES
from training.network import load_gpt2, log_probs
from training.online import Learner, serve
from training.recipe import Lesson, Model, Recipe
from utils import load_encoder_hparams_and_params

SMALL = {"n_batch": 4, "n_seq": 16, "n_rows": 64, "steps": 16, "rate": 0.01}


@pytest.fixture(scope="module")
def loaded(tiny_pair):
    """(target, draft), and begin(n_rows, n_seq, rng)"""
    models = []
    for name in ("target", "draft"):
        _, hparams, params = load_encoder_hparams_and_params(name, str(tiny_pair))
        params = jax.tree.map(lambda a: a * np.float32(0.3), params)  # so that no distribution is all but one-hot
        models.append(Model(params, hparams["n_head"]))
    tokens = np.random.default_rng(0).integers(260, size=2000).astype(np.int32)
    return *models, texts.from_corpus(tokens)


def on_numpy(model, temperature):
    hparams = {"n_ctx": 128, "n_layer": len(model.params["blocks"]), "n_embd": 32, "n_head": 4}
    return CachedModel(model.params, hparams, Filters(temperature))


# ---- What is made small ----------------------------------------------------------------------------------------------

FORMULAS = {
    "kl": lambda p, q: rel_entr(q, p).sum(-1),
    "reverse_kl": lambda p, q: rel_entr(p, q).sum(-1),
    "jsd": lambda p, q: (rel_entr(q, (p + q) / 2) + rel_entr(p, (p + q) / 2)).sum(-1) / 2,
    "tvd": lambda p, q: 1 - np.minimum(p, q).sum(-1),
}


@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergences_are_their_formulas(name):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        logits, q = rng.standard_normal((5, 9)), rng.dirichlet(np.full(9, 0.5), 5)
        found = DIVERGENCES[name](jax.nn.log_softmax(logits), q)
        np.testing.assert_allclose(found, FORMULAS[name](np.asarray(jax.nn.softmax(logits)), q), rtol=1e-9)


def test_the_loss_is_that_of_what_the_draft_says_after_the_prompt(loaded):
    """Each row has its own temperature; where the target is greedy, the draft's is 1."""
    _, draft, begin = loaded
    rng = np.random.default_rng(1)
    x, n_prompt = begin(2, 12, rng)
    q = rng.dirichlet(np.full(260, 0.5), 24)
    lesson = Lesson(x, q, np.array([0.7, 0.0]), recipe.after_prompt(x, n_prompt))
    assert lesson.counts.sum(1).tolist() == (13 - n_prompt).tolist()
    log_p = jax.jit(log_probs, static_argnums=(0, 2))(load_gpt2(), draft.params, draft.n_head, x)  # [24, 260]
    p = np.asarray(jax.nn.softmax(log_p / np.repeat([0.7, 1.0], 12)[:, None]), float)
    expected = np.average(FORMULAS["jsd"](p, q), weights=lesson.counts.ravel())
    loss = jax.jit(recipe.make_loss(load_gpt2(), draft.n_head, "jsd"))(draft.params, lesson)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


# ---- Beforehand ------------------------------------------------------------------------------------------------------


def test_acceptance_is_that_of_the_decoders(loaded):
    target, draft, begin = loaded
    gpt2 = load_gpt2()
    lessons = recipe.held_out_lessons(Recipe(**SMALL, temperatures=(0.7, 0.0)), begin, target, gpt2, 2)
    shown = recipe.mean_acceptance(gpt2, draft, lessons)
    assert list(shown) == ["α at temperature 0.7", "α at temperature 0"]
    for t, each in lessons.items():
        alphas = []
        for lesson in each:
            for row, counts in zip(np.asarray(lesson.x), lesson.counts, strict=True):
                p, q = (on_numpy(model, t)(row, n_last=len(row)) for model in (draft, target))
                alphas += [float(np.minimum(a, b).sum()) for a, b, n in zip(p, q, counts, strict=True) if n]
        assert shown[f"α at temperature {t:g}"] == pytest.approx(np.mean(alphas), abs=2e-3)


@pytest.mark.parametrize(
    ("text", "mixture", "by_whom"),
    [("corpus", 0.5, (0, 0)), ("target", 0.5, (4, 0)), ("draft", 0.5, (0, 4)), ("mixed", 0.25, (3, 1))],
)
def test_rows_come_from_whom_the_recipe_says(text, mixture, by_whom, loaded):
    """A row that a model wrote at temperature 0 is its greedy choice, and the corpus goes on as it stands."""
    target, draft, begin = loaded
    r = Recipe(**SMALL, text=text, mixture=mixture, temperatures=(0.0,))
    source = recipe.Texts(r, begin, target, draft.n_head, load_gpt2(), {})

    def greedy(model, x, n_prompt):
        says = log_probs(load_gpt2(), model.params, model.n_head, x).reshape(*x.shape, -1).argmax(-1)
        after = recipe.after_prompt(x, n_prompt)[:, :-1]
        return ((says[:, :-1] == x[:, 1:]) | (after == 0)).all(1).sum()

    x, n_prompt, temperature = source.batch(5, draft.params)
    assert x.shape == (4, 16)
    assert not temperature.any()
    assert (n_prompt <= 4).all()
    assert (greedy(target, x, n_prompt), greedy(draft, x, n_prompt)) == by_whom
    assert not np.array_equal(source.batch(1, draft.params)[0], x)
    again = source.batch(16 + 5, draft.params)[0]  # the target writes 64 rows, for 16 steps, which then come again
    assert np.array_equal(again, x) == (text == "target")


def test_a_run_that_was_interrupted_ends_like_one_that_was_not(loaded, tmp_path):
    target, draft, begin = loaded
    r = Recipe(**SMALL, text="mixed")
    whole, history = recipe.distil(r, target, draft, begin, begin, tmp_path / "whole.npz", every=4)
    assert history[-1][1]["α at temperature 1"] > history[0][1]["α at temperature 1"] + 0.05
    calls = []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 5:  # in the third round of text, after a checkpoint
            raise KeyboardInterrupt
        return begin(*args)

    part = tmp_path / "part.npz"
    with pytest.raises(KeyboardInterrupt):
        recipe.distil(r, target, draft, interrupted, begin, part, every=4)
    again, its_history = recipe.distil(r, target, draft, begin, begin, part, every=4)
    assert [step for step, _ in its_history] == [step for step, _ in history] == [0, 4, 8, 12, 16]
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert "of another run" in refusal(recipe.distil, Recipe(**SMALL), target, draft, begin, begin, part, every=4)


# ---- While it serves -------------------------------------------------------------------------------------------------

HPARAMS = {"n_vocab": 3, "n_ctx": 8, "n_embd": 4, "n_head": 1, "n_layer": 1}
OPTIONS = {"divergence": "kl", "temperature": 1.0, "rate": 0.1, "seed": 0, "n_buffer": 4, "n_batch": 2, "n_steps": 3}


def small_draft(params):
    return remembered(CachedModel(jax.tree.map(np.array, params), HPARAMS, Filters()))


class Remembering(Learner):
    """Learns the same from the same text, once for all paths. Its params are a model by then."""

    def __init__(self, models):
        """models: {text: the draft that learned from it}"""
        super().__init__(Model(random_params(HPARAMS), 1), 4, Namespace(**OPTIONS))
        self.models = models

    @property
    def key(self):
        return self.buffer[-1].x.tobytes() + self.buffer[-1].q.tobytes()

    def learn(self, rng):
        if self.key not in self.models:
            super().learn(rng)
            self.models[self.key] = small_draft(self.state[0])
        return 0.0

    @property
    def params(self):
        return self.models[self.key]


def test_the_texts_on_both_sides_of_an_update_are_the_targets_exactly():
    """The joint distribution of two texts: the draft learns from the first before it drafts the second."""
    target, before = random_model(5, 3), small_draft(random_params(HPARAMS))
    options, models = Namespace(**OPTIONS, n_tokens=2, K=1, every=1), {}

    def online_texts(rng):
        served = serve([[0], [1]], [rng] * 2, before, target, options, Remembering(models), lambda model: model)
        return tuple(tuple(one.x.tolist()) for one in served)

    def of_target(rng):
        return tuple((prompt, *decoded(autoregressive_sampling([prompt], target, 2, rng))) for prompt in (0, 1))

    assert total_variation(output_distribution(online_texts), output_distribution(of_target)) < 1e-6
    changes = [abs(model(np.array([1]))[0] - before(np.array([1]))[0]).sum() for model in models.values()]
    assert len(changes) > 3
    assert min(changes) > 0.01  # each text has taught it something


def test_what_is_kept_is_what_the_target_said(loaded):
    """It is kept for every token of a text, however it came to be there; a lesson has it at the token before."""
    target, draft = (on_numpy(model, 0.8) for model in loaded[:2])
    text, steps = online.decode_and_keep([5, 6, 7], draft, target, 20, 3, np.random.default_rng(0))
    assert {step.accepted for step in steps} >= {0, 1, 2}
    assert (text.x.shape, text.q.shape, text.q.dtype) == ((23,), (20, 260), np.float16)
    np.testing.assert_allclose(text.q, target(text.x[:-1], n_last=20), atol=1e-3)

    lesson = Learner(loaded[1], 30, Namespace(**OPTIONS | {"temperature": 0.8})).lesson([text, text])
    assert (lesson.x.shape, lesson.counts.sum(1).tolist()) == ((2, 30), [20, 20])
    q = lesson.q.reshape(2, 30, 260)
    for i in np.flatnonzero(lesson.counts[1]):
        np.testing.assert_array_equal(q[1, i], text.q[i - 2])
        assert q[1, i, lesson.x[1, i + 1]] > 0
        assert lesson.temperature[1] == np.float32(0.8)


def test_the_draft_learns_what_the_target_says():
    target, params = random_model(5, 3), random_params(HPARAMS)
    options = Namespace(**OPTIONS | {"n_steps": 40, "rate": 0.02}, n_tokens=6, K=2, every=4)
    learner, rngs = Learner(Model(params, 1), 8, options), [np.random.default_rng(i) for i in range(24)]
    served = list(serve([[0, 1]] * 24, rngs, small_draft(params), target, options, learner, small_draft))
    losses = [one.loss for one in served]
    assert [i for i, loss in enumerate(losses) if loss is not None] == [3, 7, 11, 15, 19, 23]
    assert losses[23] < losses[3] - 0.05
    assert len(learner.buffer) == 4


# ---- The commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def models(tiny_pair, tmp_path, monkeypatch):
    """Copies of the tiny models, and files of text, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("target", "draft"):
        (tmp_path / "models" / name).mkdir(parents=True)
        for path in (tiny_pair / name).iterdir():
            (tmp_path / "models" / name / path.name).symlink_to(path)
    (tmp_path / "prompts.txt").write_text("".join(f"the {i} things\n" for i in range(20)))
    words = np.random.default_rng(0).choice(["the", "in", "thing", "at"], (400, 12))
    (tmp_path / "text.txt").write_text("\n\n".join(map(" ".join, words)))
    return tmp_path / "models"


DISTIL = "--target_model_size target --out new --n_batch 4 --n_seq 16 --steps 8"
ONLINE = "--target_model_size target --draft_model_size draft --out new --n_batch 2 --prompts prompts.txt"
ONLINE += " --n_tokens 6 --every 5 --n_steps 2"


def load(name, models):
    return load_encoder_hparams_and_params(name, str(models))[1:]


def test_the_new_draft_is_a_folder_that_loads(models, capsys):
    words = f"{DISTIL} --first_layers 1 --prompts prompts.txt --temperature 0 1".split()
    distil.main(words)
    out = capsys.readouterr().out
    assert "α at temperature 0 on held-out text of the target: 0." in out
    assert "--draft_model_size new" in out
    hparams, params = load("new", models)
    assert hparams["n_layer"] == 1
    assert np.isfinite(params["wte"]).all()
    assert sorted(path.name for path in models.iterdir()) == ["draft", "new", "target"]
    assert "new is there already" in refusal(distil.main, words)


def test_online_writes_the_texts_and_leaves_the_draft_and_goes_on_after_an_interruption(models, capsys):
    online.main(ONLINE.split())
    whole = capsys.readouterr()
    lines = whole.out.splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == [f"the {i} things" for i in range(20)]
    assert "text 15/20: r 0." in whole.err
    assert "--draft_model_size new" in whole.err
    params, before = load("new", models)[1], load("draft", models)[1]
    assert np.isfinite(params["wte"]).all()
    assert not np.array_equal(params["wte"], before["wte"])

    again = f"{ONLINE} --out again".split()
    with pytest.raises(KeyboardInterrupt), contextlib.redirect_stdout(Interrupted("the 11 things")) as part:
        online.main(again)
    online.main(again)
    captured = capsys.readouterr()
    assert part.getvalue().splitlines() == lines[:11]
    assert captured.out.splitlines() == lines[10:]
    assert "going on from" in captured.err
    assert sorted(path.name for path in models.iterdir()) == ["again", "draft", "new", "target"]


OF_TEXT = {  # of distil with --first_layers 1 --files text.txt
    "--draft_model_size draft": "either --draft_model_size or --first_layers",
    "--prompts prompts.txt": "either --files or --prompts",
    "--divergence reverse_kl --temperature 0": "temperatures above 0",
    "--divergence l2": "invalid choice: 'l2'",
    "--rate -1": "must be a number above 0",
    "--n_seq 200": "--n_seq 200 tokens, and the context has 128",
    "--n_batch 10000000": "GB of memory, and .* GB are free: take a",
    "--files short.txt": "the text is too short",
    "--files latin.txt": "not UTF-8",
    "--first_layers 3": "--first_layers 3: target has 2",
}
OF_DISTIL = {
    "--draft_model_size draft --prompts prompts.txt --text corpus": "corpus needs --files",
    "--draft_model_size draft --prompts prompts.txt --n_batch 17": "20 prompts, and a batch of 17",
    "--draft_model_size other --files text.txt": "other and target have different vocabularies",
    "--draft_model_size target --target_model_size draft --files text.txt": "the smaller of the two",
}
OF_ONLINE = {
    "--every 21": "has 20 prompts, and the draft learns after every 21",
    "--n_tokens 100": "--n_prompt and --n_tokens make 148 tokens, and the context has 128",
    "--temperature 0 --divergence reverse_kl": "temperature above 0",
    "--n_batch 10000000": "GB of memory, and .* GB are free: take a",
    "--rate 1e30": "the loss is not a number after .* steps: the last checkpoint stays",
}
BAD = [(distil, f"{DISTIL} --first_layers 1 --files text.txt {flags}", OF_TEXT[flags]) for flags in OF_TEXT]
BAD += [(distil, f"{DISTIL} {flags}", OF_DISTIL[flags]) for flags in OF_DISTIL]
BAD += [(online, f"{ONLINE} {flags}", OF_ONLINE[flags]) for flags in OF_ONLINE]


@pytest.mark.parametrize(("command", "words", "message"), BAD)
def test_what_is_wrong_is_one_line(command, words, message, models, tmp_path):
    if "0000" in words and memory.available() is None:
        pytest.skip("this system does not tell what is free")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "short.txt").write_text("A paragraph.\n\nAnother.")
    other = models / "other"
    other.mkdir()
    for path in (models / "draft").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    vocab = json.loads((other / "encoder.json").read_text())
    vocab["!"], vocab['"'] = vocab['"'], vocab["!"]
    (other / "encoder.json").write_text(json.dumps(vocab))
    assert re.search(message, refusal(command.main, words.split()))
    assert not (models / "new").exists()


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(models):
    words = f"{DISTIL} --first_layers 1 --prompts prompts.txt --steps 400 --every 4"
    command = [sys.executable, "-m", "training", "distil", *words.split()]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as process:
        while "step 8/" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err == "interrupted: the same command goes on from the last checkpoint\n"
    assert (models / "new.npz").exists()
    assert not (models / "new").exists()
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert again.returncode == 0
    assert "going on from" in again.stdout
    assert "400/400" in again.stdout
