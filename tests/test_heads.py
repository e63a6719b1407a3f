"""Heads on the target, from what the engine keeps to the command line."""

import re
from functools import partial

import numpy as np
import pytest
from conftest import MODELS
from tiny import HPARAMS, convert, decoded, logits_themselves, random_params, refusal

import main
from speculative.drafters.heads import FILE, Heads, check_heads, fingerprint, head_drafter, head_model, load_heads
from speculative.engines import formats, packed, runtime
from speculative.engines.plain import CachedModel, PlainPass
from speculative.filters import GREEDY
from speculative.sampling import autoregressive_sampling, speculative_sampling
from speculative.trees import Tree
from utils import load_encoder_hparams_and_params


def random_heads(hparams, n_heads=3, scale=0.02, seed=0):
    n_embd = hparams["n_embd"]
    w = np.random.default_rng(seed).normal(scale=scale, size=(n_heads, n_embd, n_embd)).astype(np.float32)
    return Heads(w, np.zeros((n_heads, n_embd), np.float32), "", "")


# ---- What the engine keeps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new_pass", [PlainPass, runtime.new_pass])
def test_the_last_blocks_output_is_kept(new_pass):
    """Over a series of chains and trees, it is that of the token that the text goes on from; no other text has one."""
    rng, params = np.random.default_rng(0), random_params()
    if new_pass is not PlainPass:
        params = convert(params, packed.packer("float32"))
    model, alone = (CachedModel(params, HPARAMS, logits_themselves, new_pass) for _ in range(2))
    x = rng.integers(4, size=3)
    assert model.hidden(x) is None
    for _ in range(40):
        tree = Tree([int(x[-1])])
        for node, token in enumerate(rng.permutation(6)[: rng.integers(7)]):  # siblings differ, as all drafters' do
            tree.add(int(rng.integers(node + 1)), int(token), None)
        if rng.random() < 0.5:
            model.tree(x, tree)
            walked = [tree.tokens[i] for i in tree.path(int(rng.integers(len(tree.tokens))))]
        else:
            drafts = rng.integers(4, size=int(rng.integers(4)))
            model(np.append(x, drafts), n_last=len(drafts) + 1)
            walked = [*drafts[: int(rng.integers(len(drafts) + 1))]]
        assert model.hidden(x[:-1]) is None
        assert model.hidden([*x, *walked, 9]) is None
        assert model.hidden(x[:0]) is None
        x = np.append(x, walked).astype(int)
        alone.forget()
        logits = alone(x)
        np.testing.assert_allclose(model.hidden(x), alone.forward.hidden[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model.forward.output(model.hidden(x)[None]), logits, rtol=1e-4, atol=1e-5)
        x = np.append(x, rng.integers(4))
        x = rng.integers(4, size=3) if len(x) > 15 else x
    model.forget()
    assert model.hidden(x[:-1]) is None


@pytest.mark.parametrize("dtype", formats.FORMATS)
def test_the_compiled_output_layer_is_that_of_the_pass(dtype):
    params = convert(random_params(), packed.packer(dtype))
    model = CachedModel(params, HPARAMS, logits_themselves, runtime.new_pass)
    for n in (1, 4, 9):
        logits = model(np.arange(12), n)
        np.testing.assert_array_equal(model.forward.output(model.forward.hidden), logits)
        np.testing.assert_array_equal(model(np.arange(12), n), logits)


# ---- From the command line -------------------------------------------------------------------------------------------


@pytest.fixture
def with_heads(tiny_pair):
    """save(heads, target=...) writes the tiny target's heads.safetensors; a good one lies there already."""
    from safetensors.numpy import save_file

    folder = tiny_pair / "target"
    _, hparams, params = load_encoder_hparams_and_params("target", str(tiny_pair))

    def save(heads=None, target=None, **tensors):
        heads = heads or random_heads(hparams)
        tensors = tensors or {"w": heads.w.astype(np.float16), "b": heads.b.astype(np.float16)}
        save_file(tensors, folder / FILE, metadata={"target": target or fingerprint(hparams, params["ln_f"])})

    save()
    yield save
    (folder / FILE).unlink(missing_ok=True)


@pytest.mark.parametrize(("tree", "most"), [(None, 3), ("2,2,1", 10), ("1,1,1,1,1", 3)])
def test_no_draft_model_is_needed(run_json, with_heads, tree, most):
    """Before the target has been called nothing is drafted, and then as many levels as there are heads."""
    flags = {"drafter": "heads", "draft_model_size": "nowhere", "temperature": 1, "dtype": "int8", "tree": tree}
    _, document = run_json(**flags)
    first, second, *_ = document["speculative"]["samples"][0]["iterations"]
    assert (first["drafted"], second["drafted"]) == (0, most)


def test_heads_that_cannot_be_used(tiny_pair, with_heads):
    usual = {"target_model_size": "target", "models_dir": tiny_pair, "prompt": "the thing", "drafter": "heads"}
    path, start = tiny_pair / "target" / FILE, partial(refusal, main.main, **usual)
    assert "--drafter heads is for --engine numpy" in start(engine="jax")
    w, b = np.zeros((2, 32, 32), np.float16), np.zeros((2, 32), np.float16)
    shapes = r"w and b are \[3, 12, 12\] and \[3, 12\]; for this target they have to be \[n, 32, 32\]"
    for wrong, line in (
        ({"target": "0" * 64}, "was trained for another target"),
        ({"heads": random_heads(HPARAMS)}, shapes),
        ({"heads": random_heads({"n_embd": 32}, n_heads=17)}, "n from 1 to 16"),
        ({"w": w.astype(np.int8), "b": b.astype(np.int8)}, "w and b are I8, not F16 or F32"),
        ({"w": w + np.nan, "b": b}, "NaN"),
        ({"w": w}, "tensors w and b"),
    ):
        with_heads(**wrong)
        said = start()
        assert re.search(line, said)
        assert str(path) in said
    with_heads()
    for content in (path.read_bytes()[:-9], b""):
        path.write_bytes(content)
        said = start()
        assert "damaged" in said
        assert str(path) in said
    path.unlink()
    assert "is not there: python -m training heads --target_model_size target makes it" in start()


def test_the_bundled_heads_guess_well(bundled):
    """They belong to the target, and a good part of their guesses is accepted."""
    encoder, hparams, params = bundled["tiny-target"]
    heads = check_heads(load_heads(str(MODELS / "tiny-target"), hparams), hparams, params["ln_f"])
    params = convert(params, packed.packer("float32"))
    target = CachedModel(params, hparams, GREEDY, runtime.new_pass)
    rng = np.random.default_rng(0)
    x = encoder.encode('"From the first, two facts were very obvious to me,')
    draft = head_drafter(head_model(target, heads, GREEDY), rng)
    steps = [*speculative_sampling(x, draft, target, 100, len(heads.b), rng)]
    assert len(heads.b) == 4
    assert sum(step.drafted for step in steps) > 3 * len(steps)
    assert 100 / len(steps) > 1.4
    target.forget()
    assert decoded(steps) == decoded(autoregressive_sampling(x, target, 100, rng))
