"""A draft that learns while it serves: the texts stay the target's exactly; what is kept is what the target said."""

import json
from argparse import Namespace

import numpy as np
import pytest
from enumeration import output_distribution, random_model, remembered, total_variation
from tiny import random_params

pytest.importorskip("jax")

import jax

from benchmarks import online as benchmark
from plumbing.errors import UserError
from speculative.drafters.base import Proposal
from speculative.drafters.model import model_drafter
from speculative.engines.plain import CachedModel
from speculative.filters import Filters
from speculative.sampling import autoregressive_sampling
from training import online
from training.online import Learner, serve
from training.recipe import Model
from utils import load_encoder_hparams_and_params

HPARAMS = {"n_vocab": 3, "n_ctx": 8, "n_embd": 4, "n_head": 1, "n_layer": 1}
OPTIONS = Namespace(divergence="kl", temperature=1.0, rate=0.1, seed=0, n_buffer=4, n_batch=2, n_steps=3)


def small_draft(params):
    params = jax.tree.map(np.array, params)
    return remembered(CachedModel(params, HPARAMS, Filters()))


class Remembering(Learner):
    """Learns the same from the same text, once for all paths. Its params are a model by then."""

    def __init__(self, models):
        """models: {text: the draft that learned from it}"""
        super().__init__(Model(random_params(HPARAMS), 1), 4, OPTIONS)
        self.models = models

    def learn(self, rng):
        key = self.buffer[-1].x.tobytes() + self.buffer[-1].q.tobytes()
        if key not in self.models:
            super().learn(rng)
            self.models[key] = small_draft(self.state[0])
        return 0.0

    @property
    def params(self):
        return self.models[self.buffer[-1].x.tobytes() + self.buffer[-1].q.tobytes()]


def test_the_texts_on_both_sides_of_an_update_are_the_targets_exactly(monkeypatch):
    """The distribution of two texts together, of which the draft learns from the first before it drafts the second."""
    target, before = random_model(5, 3), small_draft(random_params(HPARAMS))
    options, models = Namespace(**vars(OPTIONS), n_tokens=2, K=1, every=1), {}

    def online_texts(rng):
        served = serve([[0], [1]], [rng] * 2, before, target, options, Remembering(models), lambda model: model)
        return tuple(tuple(one.x.tolist()) for one in served)

    def of_target(rng):
        texts = []
        for prompt in (0, 1):
            steps = autoregressive_sampling([prompt], target, 2, rng)
            texts.append((prompt, *(token for step in steps for token in step.tokens)))
        return tuple(texts)

    expected = output_distribution(of_target)
    assert total_variation(output_distribution(online_texts), expected) < 1e-6
    changes = [abs(model(np.array([1]))[0] - before(np.array([1]))[0]).sum() for model in models.values()]
    assert len(changes) > 3 and min(changes) > 0.01  # each text has taught it something

    def stale(model, rng):
        """Drafts with what was learned, and says that it was the draft before."""

        def draft(x, k):
            tokens = model_drafter(model, rng)(x, k).tokens
            return Proposal(tokens, [before(np.append(x, tokens[:i]).astype(int))[0] for i in range(len(tokens))])

        return draft

    monkeypatch.setattr(online, "model_drafter", stale)
    assert total_variation(output_distribution(online_texts), expected) > 0.01


def test_what_is_kept_is_what_the_target_said(tiny_pair):
    """At every token of a text, whichever way it came to be there; and a lesson has it at the token before."""
    models = []
    for name in ("target", "draft"):
        _, hparams, params = load_encoder_hparams_and_params(name, str(tiny_pair))
        params = jax.tree.map(lambda a: a * np.float32(0.3), params)
        models.append(CachedModel(params, hparams, Filters(0.8)))
    target, draft = models
    text, steps = online.decode_and_keep([5, 6, 7], draft, target, 20, 3, np.random.default_rng(0))
    assert {step.accepted for step in steps} >= {0, 1, 2}
    assert text.x.shape == (23,) and text.q.shape == (20, 260) and text.q.dtype == np.float16
    np.testing.assert_allclose(text.q, target(text.x[:-1], n_last=20), atol=1e-3)

    options = Namespace(**vars(OPTIONS) | {"temperature": 0.8})
    lesson = Learner(Model(jax.tree.map(np.asarray, draft.params), 4), 30, options).lesson([text, text])
    assert lesson.x.shape == (2, 30) and lesson.counts.sum(1).tolist() == [20, 20]
    q = lesson.q.reshape(2, 30, 260)
    for i in np.flatnonzero(lesson.counts[1]):
        np.testing.assert_array_equal(q[1, i], text.q[i - 2])
        assert q[1, i, lesson.x[1, i + 1]] > 0 and lesson.temperature[1] == np.float32(0.8)


def test_the_draft_learns_what_the_target_says():
    target, params = random_model(5, 3), random_params(HPARAMS)
    options = Namespace(**vars(OPTIONS) | {"n_steps": 40, "rate": 0.02}, n_tokens=6, K=2, every=4)
    learner, rngs = Learner(Model(params, 1), 8, options), [np.random.default_rng(i) for i in range(24)]
    served = list(serve([[0, 1]] * 24, rngs, small_draft(params), target, options, learner, small_draft))
    losses = [one.loss for one in served]
    assert [i for i, loss in enumerate(losses) if loss is not None] == [3, 7, 11, 15, 19, 23]
    assert losses[23] < losses[3] - 0.05 and len(learner.buffer) == 4


# ---- The command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def arguments(tiny_pair, tmp_path):
    """The flags of a short run on a copy of the models."""
    for name in ("target", "draft"):
        (tmp_path / "models" / name).mkdir(parents=True)
        for path in (tiny_pair / name).iterdir():
            (tmp_path / "models" / name / path.name).symlink_to(path)
    (tmp_path / "prompts.txt").write_text("".join(f"the {i} things\n" for i in range(7)))
    models = ["--target_model_size", "target", "--draft_model_size", "draft", "--models_dir", str(tmp_path / "models")]
    prompts = ["--prompts", str(tmp_path / "prompts.txt"), "--n_tokens", "6", "--every", "2", "--n_steps", "2"]
    return [*models, *prompts, "--out", "new", "--n_batch", "2"]


def test_it_writes_the_texts_and_leaves_the_draft_and_goes_on_after_an_interruption(
    arguments, tmp_path, capsys, monkeypatch
):
    online.main(arguments)
    whole = capsys.readouterr()
    assert [json.loads(line)["prompt"] for line in whole.out.splitlines()] == [f"the {i} things" for i in range(7)]
    assert "text 6/7: r 0." in whole.err and "--draft_model_size new" in whole.err
    _, _, params = load_encoder_hparams_and_params("new", str(tmp_path / "models"))
    _, _, before = load_encoder_hparams_and_params("draft", str(tmp_path / "models"))
    assert np.isfinite(params["wte"]).all() and not np.array_equal(params["wte"], before["wte"])
    with pytest.raises(UserError, match="new is there already"):
        online.main(arguments)

    again, save = [*arguments, "--out", "again"], online.save_checkpoint

    def interrupted(*args):
        save(*args)
        if args[2] == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(online, "save_checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        online.main(again)
    first = capsys.readouterr().out.splitlines()
    monkeypatch.undo()
    online.main(again)
    captured = capsys.readouterr()
    assert first + captured.out.splitlines() == whole.out.splitlines()[:4] + captured.out.splitlines()
    assert len(first) == 4 and len(captured.out.splitlines()) == 3 and "going on from" in captured.err
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["again", "draft", "new", "target"]


BAD = {
    "--every 8": "has 7 prompts, and the draft learns after every 8",
    "--n_tokens 100": "--n_prompt and --n_tokens make 148 tokens, and the context has 128",
    "--temperature 0 --divergence reverse_kl": "temperature above 0",
    "--K 0": "must be a whole number of at least 1",
    "--prompts none.txt": "cannot read the file of prompts",
    "--draft_model_size none": "none",
    "--target_model_size draft --draft_model_size target": "the smaller of the two",
    "--rate 1e30": "the loss is not a number after .* steps: the last checkpoint stays",
}


@pytest.mark.parametrize("flags", BAD)
def test_what_is_wrong_is_one_line(flags, arguments, tmp_path):
    with pytest.raises(UserError, match=BAD[flags]) as error:
        online.main([*arguments, *flags.split()])
    assert "\n" not in str(error.value) and not (tmp_path / "models" / "new").exists()


def test_too_little_memory_is_said_before_anything_is_loaded(arguments, monkeypatch):
    monkeypatch.setattr(online.memory, "available", lambda: 1000)
    with pytest.raises(UserError, match=r"GB of memory, and 0\.0 GB are free: take"):
        online.main(arguments)


# ---- The benchmark ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_serves_every_form_the_same_stream(arguments, tmp_path, monkeypatch, capsys):
    (tmp_path / "code.txt").write_text("in the\nat thing in\n")
    flags = ["--n_texts", "8", "--n_again", "2", "--every", "2", "--n_steps", "1", "--n_tokens", "6", "--n_batch", "2"]
    first, second = str(tmp_path / "prompts.txt"), str(tmp_path / "code.txt")
    names = ["--target_model_size", "target", "--draft_model_size", "draft", "--models_dir", str(tmp_path / "models")]
    benchmark.main([first, second, *names, *flags, "--out", str(tmp_path / "out")])
    lines = capsys.readouterr().out.splitlines()
    forms = ["frozen", "online", "distilled on 10%", "distilled on 50%", "distilled on 100%"]
    rows = [line for line in lines if line.strip().startswith(tuple(forms)) and ": r" not in line]
    assert [row.strip().startswith(form) for row, form in zip(rows, forms, strict=True)] == [True] * 5
    assert any("learning costs" in line and "pa" in line for line in lines)
    assert (tmp_path / "out" / "online.png").stat().st_size > 1000


def test_the_verdict_says_when_it_pays():
    o = Namespace(n_texts=10, n_tokens=100)
    rows = [{"ms": 2.0}, {"ms": 1.0, "learning": 5.0}]  # 0.1 s less for each text, for 0.5 s
    assert "it has paid after 50 more texts" in benchmark.verdict(rows, o)
    assert benchmark.verdict([rows[0], {"ms": 1.0, "learning": 0.5}], o).endswith("it pays while it goes on")
    assert benchmark.verdict([rows[0], {"ms": 2.5, "learning": 0.5}], o).endswith("it never pays")
