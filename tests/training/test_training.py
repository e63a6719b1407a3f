"""python -m training: each command on the smallest numbers; the product uses its results."""

import json
import math
import re
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import MODELS
from scipy.special import rel_entr
from tiny import HPARAMS, random_params, refusal

pytest.importorskip("jax")

import jax

from encoder import get_encoder
from gpt2 import gpt2
from speculative import load_pair
from speculative.support.errors import UserError
from training import distil, loop, pair
from training.__main__ import main
from training.files import check_new, checkpoint_of, folder_of
from training.network import write
from utils import load_encoder_hparams_and_params

SMALL = "--n_rows 16 --n_batch 4 --n_seq 16 --steps 4"
PROMPTS = MODELS / "tiny-target" / "prompts.jsonl"


@pytest.fixture
def models(tiny_pair, tmp_path):
    """A folder with copies of the tiny target and draft."""
    shutil.copytree(tiny_pair, tmp_path / "models")
    return tmp_path / "models"


def train(models, command, words):
    paths = ["--models_dir", str(models), "--prompts", str(PROMPTS)]
    main([command, *paths, "--target_model_size", "target", *words.split()])


# ---- Each command makes something that the product decodes with ------------------------------------------------------


def test_a_distilled_draft_is_accepted_more_often_even_if_interrupted(models, monkeypatch, capsys):
    words = f"--first_layers 1 --temperature 0 1 --text mixed {SMALL} --steps 12"
    train(models, "distil", f"{words} --out whole")
    shown = capsys.readouterr()
    lines = re.findall(
        r"α at temperature [01] on held-out text of the target: (.*) before, (.*) of what is saved", shown.out
    )
    greedy, sampled = [[*map(float, line)] for line in lines]
    assert greedy[1] > greedy[0]
    assert sampled[1] > sampled[0] + 0.05
    assert "step 12/12, loss" in shown.err
    assert load_pair("whole", "target", str(models), threads=1).compare("the thing", 8).r > 0

    save = loop.save_checkpoint

    def interrupted(path, state, step, identity):
        save(path, state, step, identity)
        if step == 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save_checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(models, "distil", f"{words} --out part")
    assert not (models / "part").exists()
    capsys.readouterr()
    train(models, "distil", f"{words} --out part")
    assert "part.npz, step 10" in capsys.readouterr().err
    files = [(models / name / "model.safetensors").read_bytes() for name in ("whole", "part")]
    assert files[0] == files[1]
    assert sorted(path.name for path in models.iterdir()) == ["draft", "part", "target", "whole"]


@pytest.mark.parametrize("words", [f"distil {SMALL}", "online --n_prompt 8 --n_tokens 6 --n_steps 2 --n_batch 2"])
def test_a_draft_that_learned_nothing_is_saved_as_it_began(models, capsys, words):
    command, words = words.split(maxsplit=1)
    train(models, command, f"--draft_model_size draft --out new {words} --rate -1")  # uphill
    shown = capsys.readouterr()
    assert "nothing was gained: α on held-out text did not rise" in shown.err
    figures = re.findall(r": (0\.\d+) before, (0\.\d+) of what is saved", shown.out + shown.err)
    assert all(before == saved for before, saved in figures)
    assert figures
    wte = [load_encoder_hparams_and_params(name, str(models))[2]["wte"] for name in ("draft", "new")]
    np.testing.assert_array_equal(*[a.astype(np.float16) for a in wte])


@pytest.mark.slow
def test_trained_heads_decode(models):
    train(models, "heads", f"--heads 2 {SMALL}")
    session = load_pair(target_model_size="target", models_dir=str(models), drafter="heads", threads=1)
    assert session.compare("the thing", 8).r > 0
    assert not list(models.glob("target/heads.*npz"))


def test_online_prints_the_texts_and_saves_the_draft(models, capsys):
    sizes = "--n_prompt 8 --n_tokens 6 --every 8 --n_steps 2 --n_batch 2"
    train(models, "online", f"--draft_model_size draft --out new {sizes}")
    shown = capsys.readouterr()
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    assert [json.loads(line)["prompt"] for line in shown.out.splitlines()] == prompts
    assert "s decoding" in shown.err
    assert "α at temperature 1 on held-out text of the target: " in shown.err
    assert (models / "new").is_dir()


@pytest.mark.slow
def test_a_pair_is_made_from_text(tmp_path, capsys):
    rng = np.random.default_rng(0)
    words = re.findall(r"\S+", "the cat dog sat ran on under mat river house old and then it saw a café “naïve” 1894")
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(rng.choice(words, 30)) for _ in range(600)))
    sizes = "--target 300 32 16 2 2 --steps 20 --draft_steps 4 --n_rows 16"
    main(["pair", "--files", str(tmp_path / "text.txt"), "--out", str(tmp_path / "pair"), *sizes.split()])
    losses = [float(line.split()[-1]) for line in capsys.readouterr().err.splitlines() if "held-out loss" in line]
    assert losses[0] == pytest.approx(math.log(300), abs=0.1)  # all tokens are equally likely at the start
    assert losses[-1] < losses[0] - 0.2
    session = load_pair("tiny-draft", "tiny-target", str(tmp_path / "pair"), threads=1)
    assert session.compare("the cat sat", 8).r > 0
    text = "The café, “unseen”: ŁódźΩ 😀!\n\n  "
    encoder = get_encoder("tiny-target", str(tmp_path / "pair"))
    assert encoder.decode(encoder.encode(text)) == text


# ---- Laws ------------------------------------------------------------------------------------------------------------

FORMULAS = {
    "kl": lambda p, q: rel_entr(q, p).sum(-1),
    "reverse_kl": lambda p, q: rel_entr(p, q).sum(-1),
    "jsd": lambda p, q: (rel_entr(q, (p + q) / 2) + rel_entr(p, (p + q) / 2)).sum(-1) / 2,
    "tvd": lambda p, q: 1 - np.minimum(p, q).sum(-1),
}


@pytest.mark.parametrize("name", distil.DIVERGENCES)
def test_divergences_are_their_formulas(name):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        p, q = rng.dirichlet(np.full(9, 0.5), (2, 5))
        np.testing.assert_allclose(distil.DIVERGENCES[name](np.log(p), q), FORMULAS[name](p, q), rtol=1e-9)


def test_written_text_at_temperature_0_is_greedy():
    params = random_params()
    x = np.zeros((2, HPARAMS["n_ctx"]), np.int32)
    x[:, :4] = [3, 1, 4, 1]
    found = write(params, HPARAMS["n_head"], x, np.array([4, 4]), np.float32([0, 1]), jax.random.key(0))
    logits = gpt2(np.asarray(found[0]), **params, n_head=HPARAMS["n_head"])  # [n_ctx, n_vocab]
    np.testing.assert_array_equal(found[0, 4:], logits[3:-1].argmax(-1))
    assert found[0].tolist() != found[1].tolist()


def test_the_paragraphs_of_a_book_are_found_whatever_ends_its_lines():
    book = "\n\n".join(f"Paragraph {i}\nhas two lines." for i in range(600))
    texts = pair.split_works([book])
    assert pair.split_works([book.replace("\n", "\r\n")]) == texts
    assert len(texts[1]) == 1


# ---- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "give either --draft_model_size or --first_layers"),
        ("--first_layers 1 --divergence l2", "invalid choice: 'l2'"),
        ("--first_layers 1 --divergence reverse_kl --temperature 0", "needs temperatures above 0"),
        ("--first_layers 1 --n_seq 200", "rows of 200 tokens do not fit into the context of target, 128"),
        ("--first_layers 1 --prompts missing.txt", "missing.txt"),
        ("--first_layers 1 --out draft", "already exists"),
        ("--draft_model_size draft", "different vocabularies"),
    ],
)
def test_refusals(models, capsys, words, line):
    vocab = json.loads((models / "draft" / "encoder.json").read_text())
    (models / "draft" / "encoder.json").write_text(json.dumps(vocab | {"!": vocab["?"], "?": vocab["!"]}))
    with pytest.raises((UserError, SystemExit)) as end:
        train(models, "distil", f"--out new {SMALL} {words}")
    assert line in str(end.value) + capsys.readouterr().err
    assert not (models / "new").exists()


def test_the_loop_refuses_the_checkpoint_of_another_run_and_a_loss_that_is_not_a_number(tmp_path):
    def fit(identity, factor, steps):
        def loss(params, batch):
            return factor * params["w"].sum()

        def nothing(*args):
            return {}

        loop.fit({"w": np.ones(2)}, loss, nothing, nothing, steps, 0.1, tmp_path / "a.npz", identity, 1)

    fit("a run", 1.0, steps=1)
    with pytest.raises(UserError, match="belongs to a run with other flags"):
        fit("another", 1.0, steps=1)
    with pytest.raises(UserError, match=r"the loss is not a number after step 2: delete .*a\.npz and try"):
        fit("a run", math.nan, steps=2)
    whole = (tmp_path / "a.npz").read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole.replace(b"\0", b"\1")):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"a\.npz is damaged: delete it to begin again"):
            fit("a run", 1.0, steps=2)


@pytest.mark.parametrize(("out", "folder"), [("new", "models/new"), ("./new", "new"), ("/a/new", "/a/new")])
def test_out_is_a_name_in_models_dir_or_a_path(out, folder):
    o = Namespace(out=out, models_dir="models")
    assert folder_of(o) == Path(folder)
    assert checkpoint_of(o) == Path(f"{folder}.npz")


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    assert f"cannot be made: {tmp_path / 'file'} is a file" in refusal(check_new, tmp_path / "file" / "x")
    assert "already exists" in refusal(check_new, tmp_path / "file")
    check_new(tmp_path / "a" / "b")


def test_out_that_leads_out_of_models_dir_is_refused():
    assert "--out 'a/../../b' should be" in refusal(folder_of, Namespace(out="a/../../b", models_dir="models"))
