"""Weights that are finite, and too large to compute with: a decode ends in one line that names model and position."""

import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import HPARAMS, random_params, refusal

from speculative.engines import cpu
from speculative.engines.plain import CachedModel, check_finite
from speculative.filters import GREEDY

LINE = r"error: the {} gives logits that are not finite, at position \d+: its weights are damaged, or too large .*\n"


@pytest.fixture(params=["target", "draft"])
def broken(request, tiny_pair, tmp_path):
    """The flags of a pair of which one model has such a weight, and that model's name."""
    models = shutil.copytree(tiny_pair, tmp_path / "models")
    path = models / request.param / "model.safetensors"
    arrays = load_file(path)
    arrays["h.0.attn.c_attn.weight"][:, 0] = np.float32(3e38)  # queries become infinite, and scores NaN
    save_file(arrays, path)
    flags = [f"--models_dir={models}", "--target_model_size=target", "--draft_model_size=draft", "--prompt=the thing"]
    return [*flags, "--n_tokens_to_generate=8", "--threads=1"], f"{request.param} {request.param}"


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--temperature=0.7 --top_p=0.9 --top_k=5 --n_samples=2",
        "--K=auto",
        "--tree=2,2",
        "--drafter=self/model --K=4/2",
        "--verify",
        "--dtype=int8 --draft_dtype=int4",
    ],
)
def test_a_run_ends_in_one_line(broken, words, command):
    flags, name = broken
    status, _, err = command(*flags, *words.split())
    assert status == 2
    assert re.fullmatch(LINE.format(name), err.splitlines(keepends=True)[-1])


@pytest.mark.filterwarnings("error")
def test_where_numpy_multiplies_too():
    """Without a warning of NumPy's beside it."""
    params = random_params()
    params["blocks"][1]["attn"]["c_attn"]["w"][:, 0] = np.float32(3e38)
    line = refusal(CachedModel(params, HPARAMS, GREEDY), [1, 2, 3], 2)
    assert line.startswith("the model gives logits that are not finite, at position 2:")


@pytest.mark.skipif(not cpu.has_numba(), reason="nothing is packed without numba")
def test_packed_weights_too(broken, command):
    flags, name = broken
    assert command(*flags, "--pack")[0] == 0
    status, _, err = command(*flags)
    assert status == 2
    assert re.fullmatch(LINE.format(rf"{name}, mapped from .*\.pack,"), err.splitlines(keepends=True)[-1])


@pytest.mark.parametrize(("broken", "words"), [("target", "--K=3"), ("draft", "--K=auto")], indirect=["broken"])
def test_on_jax_too(broken, words, command):
    """In one loop on the device, and in the loop that calls its models."""
    pytest.importorskip("jax")
    flags, name = broken
    status, _, err = command(*flags[:-1], "--engine=jax", *words.split())
    name = name if words == "--K=auto" else f"({name}|target|draft model)"
    assert status == 2
    assert re.search(f"{LINE.format(name)}$", err)


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_position_is_that_of_the_token_that_would_have_come(row, value):
    logits = np.zeros((3, 50), np.float32)  # [n, n_vocab]
    logits[:, 7] = -np.inf  # a probability of 0
    check_finite(logits, "the target", 11)
    logits[row, 30] = value
    line = refusal(check_finite, logits, "the target", 11)
    assert line.startswith(f"the target gives logits that are not finite, at position {11 + row}:")
