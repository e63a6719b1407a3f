"""The bundled pair: small files, a good draft, and a target that every weight format keeps."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
from checkpoint_files import MODELS
from tiny import OneText, refusal

from gpt2 import gpt2
from speculative import load_pair
from speculative.checkpoints.folder import find_files, load_params, open_checkpoint
from speculative.engines.c.forward import CompiledPass
from speculative.engines.c.packing import pack
from speculative.engines.formats import FORMATS
from speculative.report.run import check_files
from speculative.run.options import DEMO, Options, make_options


def test_its_files_are_small():
    assert sum(path.stat().st_size for path in MODELS.glob("tiny-*/*")) <= 16e6


@pytest.fixture(scope="module")
def held_out(bundled):
    """A passage that was held out of training, in windows of n_ctx tokens, and gpt2.py's greedy choices in each."""
    encoder, hparams, params = bundled["tiny-target"]
    tokens = np.array(encoder.encode((MODELS / "tiny-target/held_out.txt").read_text(encoding="utf-8")))
    n_ctx = hparams["n_ctx"]
    windows = [tokens[i : i + n_ctx] for i in range(0, len(tokens) - n_ctx, n_ctx)]
    assert len(windows) >= 3
    return windows, [gpt2(x, **params, n_head=hparams["n_head"]).argmax(axis=1) for x in windows]


# In how many places the greedy choice is float32's, at least; docs/kernels.md has the figures.
SAME = {"float32": 1, "float16": 0.99, "bfloat16": 0.98, "int8": 0.975, "int4": 0.88}


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_weight_format_predicts_as_well(bundled, held_out, dtype):
    _, hparams, _ = bundled["tiny-target"]
    run = OneText(CompiledPass(load_params(MODELS / "tiny-target", hparams, partial(pack, dtype)), hparams, 1))
    same = [run(x, len(x)).argmax(axis=1) == choices for x, choices in zip(*held_out, strict=True)]
    assert np.mean(same) >= SAME[dtype]


def test_r_is_high_over_held_out_prompts(pair):
    lines = (MODELS / "tiny-target/prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    assert len(set(prompts)) == 20
    steps = [pair.steps("speculative", pair.encode(prompt), 40, np.random.default_rng(0)) for prompt in prompts]
    assert np.median([40 / sum(step.n_drafted + 1 for step in of_one) for of_one in steps]) >= 0.6


def test_the_target_of_the_demo_is_the_tiny_one_padded(pair):
    """It computes the tiny target's text, and reads as much for a token as a model of its shape."""
    padded = load_pair(target_model_size="padded-target", draft_model_size="tiny-draft", models_dir=str(MODELS))
    prompt = DEMO["prompt"]
    tiny = "".join(step.text for step in pair.autoregressive(prompt, 12))
    assert "".join(step.text for step in padded.speculative(prompt, 12)) == tiny
    assert padded.models["target"].weight_bytes > 300e6
    for name in ("encoder.json", "vocab.bpe"):
        assert (MODELS / "padded-target" / name).read_bytes() == (MODELS / "tiny-target" / name).read_bytes()


def test_a_padded_model_without_its_small_one_names_that(tmp_path):
    shutil.copytree(MODELS / "padded-target", tmp_path / "padded")
    small = tmp_path / "tiny-target"
    small.mkdir()
    (small / "hparams.json").write_bytes((MODELS / "tiny-target" / "hparams.json").read_bytes())
    assert f"{small} lacks " in refusal(find_files, "padded", str(tmp_path))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"n_ctx": 100}, "n_ctx should be at least 256, not 100"),
        ({"n_layer": 1}, "n_layer should be at least 12, not 1"),
        ({"n_embd": 120, "n_head": 3}, "n_embd should be at least 194, not 120"),
        ({"n_head": 24}, "n_embd / n_head should be 64"),
    ],
)
def test_a_shape_to_which_a_model_cannot_be_padded_is_one_line(changed, fault, tmp_path):
    for name in ("padded-target", "tiny-target"):
        shutil.copytree(MODELS / name, tmp_path / name)
    path = tmp_path / "padded-target" / "hparams.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    checkpoint = open_checkpoint(find_files("padded-target", str(tmp_path)))
    assert refusal(checkpoint.open_weights).endswith(f"it is padded from {tmp_path / 'tiny-target'}, so {fault}")


def test_no_output_is_a_file_that_a_model_is_read_from(tmp_path):
    """Not in the folder of a padded model's small one, and not where a link in the folder leads."""
    weights = tmp_path / "elsewhere.safetensors"
    shutil.copytree(MODELS / "tiny-target", tmp_path / "models" / "linked")
    (tmp_path / "models" / "linked" / "model.safetensors").rename(weights)
    (tmp_path / "models" / "linked" / "model.safetensors").symlink_to(weights)
    linked = {"models_dir": str(tmp_path / "models"), "target_model_size": "linked"}
    for options, path in (({"demo": True}, MODELS / "tiny-target" / "model.safetensors"), (linked, weights)):
        assert refusal(check_files, [str(path)], make_options(Options, options)).startswith(f"this run uses {path}")
