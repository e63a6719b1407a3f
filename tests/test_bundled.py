"""The bundled pair: small files, a good draft, and a target that every weight format keeps."""

import json

import numpy as np
import pytest
from conftest import MODELS

from gpt2 import gpt2
from speculative import load_pair
from speculative.checkpoints.loading import load_params
from speculative.engines.c.engine import new_pass
from speculative.engines.c.packing import packer
from speculative.engines.formats import FORMATS

PAIR = ["tiny-draft", "tiny-target"]


def test_its_files_are_small_and_the_target_is_deep(bundled):
    assert sum(path.stat().st_size for name in PAIR for path in (MODELS / name).iterdir()) <= 16e6
    for name in ("encoder.json", "vocab.bpe"):
        assert (MODELS / "tiny-draft" / name).read_bytes() == (MODELS / "tiny-target" / name).read_bytes()
    assert bundled["tiny-target"][1]["n_layer"] >= 12
    assert bundled["tiny-draft"][1]["n_layer"] <= 2


@pytest.fixture(scope="module")
def held_out(bundled):
    """A passage that was held out of training, in windows of n_ctx + 1 tokens."""
    encoder, hparams, _ = bundled["tiny-target"]
    tokens = np.array(encoder.encode((MODELS / "tiny-target/held_out.txt").read_text(encoding="utf-8")))
    n_ctx = hparams["n_ctx"]
    windows = [tokens[i : i + n_ctx + 1] for i in range(0, len(tokens) - n_ctx, n_ctx)]
    assert len(windows) >= 3
    return windows


def loss(logits, windows):  # of each window [n_ctx, n_vocab]; nats per token
    log_q = [rows - np.log(np.exp(rows).sum(-1, keepdims=True)) for rows in logits]
    return -np.mean([rows[np.arange(len(rows)), x[1:]].mean() for rows, x in zip(log_q, windows, strict=True)])


@pytest.fixture(scope="module")
def exact(bundled, held_out):
    """The logits of gpt2.py over the target's own weights."""
    _, hparams, params = bundled["tiny-target"]
    return [gpt2(x[:-1], **params, n_head=hparams["n_head"]) for x in held_out]


# In how many places the greedy choice is float32's, at least; docs/kernels.md has the figures.
SAME = {"float32": 1, "bfloat16": 0.98, "int8": 0.975, "int4": 0.88}


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_weight_format_predicts_as_well(bundled, exact, held_out, dtype):
    _, hparams, _ = bundled["tiny-target"]
    run = new_pass(load_params(MODELS / "tiny-target", hparams, packer(dtype)), hparams)
    found = [run(x[:-1], len(x) - 1) for x in held_out]
    assert abs(loss(found, held_out) / loss(exact, held_out) - 1) < 0.005
    same = [a.argmax(axis=1) == b.argmax(axis=1) for a, b in zip(found, exact, strict=True)]
    assert np.mean(same) >= SAME[dtype]


def test_r_is_high_over_held_out_prompts():
    lines = (MODELS / "tiny-target/prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    assert len(set(prompts)) == 20
    session = load_pair(demo=True, threads=1)
    steps = [session.steps("speculative", session.encode(prompt), 40, np.random.default_rng(0)) for prompt in prompts]
    assert np.median([40 / sum(step.drafted + 1 for step in of_one) for of_one in steps]) >= 0.6
