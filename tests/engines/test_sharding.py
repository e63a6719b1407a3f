"""Several devices, here eight that XLA makes of one CPU: the same tokens as on one.

XLA counts its devices when it starts, so all of it runs in a process of its own.
"""

import json
import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny import ROOT, convert, first_layer, place, python, random_params

from speculative.engines.network import CachedNetwork
from speculative.engines.plain import PlainPass
from speculative.filters import Filters
from speculative.rules import TOKEN

pytestmark = pytest.mark.slow  # a process that compiles everything

# Five heads, which none of 2, 4 and 8 divides.
HPARAMS = {"n_vocab": 50, "n_ctx": 32, "n_embd": 40, "n_head": 5, "n_layer": 2}
PROMPTS = [[3, 1, 4, 1, 5], [2, 7], [1, 8, 2, 8, 1, 8, 2, 8], [4], [5, 9], [0, 4, 5]]  # four at a time
N_HEAD = {1: 5, 2: 6, 4: 8, 8: 8}  # {number of devices: heads, of which each device has a share}
MESHES = [(1, 1), (1, 2), (1, 8), (4, 1), (2, 4)]  # (copies, devices of each)


def models():
    """(target, draft), each as (params, hparams)."""
    params = random_params(HPARAMS, seed=1)
    return (params, HPARAMS), first_layer(params, HPARAMS)


def collectives(program):
    names = re.findall(r" = \(?\S+ ([a-z-]+?)(?:-start)?\(", program.as_text())
    return [name for name in names if re.fullmatch("all-reduce|all-gather|all-to-all|reduce-scatter|.*-permute", name)]


def on_mesh(n_data, n_model):
    """The results that the test below compares; this runs in the other process."""
    import jax

    from speculative.engines.jax.device_decoder import DeviceDecoder
    from speculative.engines.jax.device_loops import DeviceLoops, Group, lengths_of
    from speculative.engines.jax.forward import cached
    from speculative.engines.jax.sharding import make_mesh

    mesh = make_mesh(n_model, n_data)
    target, draft = ((partial(convert, params), hparams) for params, hparams in models())
    network = place(*target, "float32", mesh, n_model > 1)
    # With the 8 devices the draft is split too; the product has all of it on each device.
    drafts = place(*draft, "float32", mesh, n_model == 8)
    loop = DeviceLoops(DeviceDecoder(network, drafts, Filters(0.9), Filters(0.9), TOKEN), 3, "draft", batch=4)
    texts = [[] for _ in PROMPTS]
    for steps in loop.rounds("speculative", PROMPTS, 12, [np.random.default_rng(1)], lambda _: False):
        for number, step, _ in steps:
            texts[number] += step.tokens
    state, _ = loop.start(Group(PROMPTS[:4], 0, 12, 3, *lengths_of(PROMPTS, 12, 3)))
    model = cached(network)
    arguments = network.params, np.zeros(4, np.int32), np.int32(0), model.forward.new_arrays()
    run = loop.decoder.run.lower(loop.decoder.params, state, np.uint32(1), np.int32(8), K=3).compile()
    return {
        "texts": texts,
        "logits": model.logits(PROMPTS[0], 2).tolist(),
        "int8": cached(place(*target, "int8", mesh, n_model > 1)).logits(PROMPTS[0], 2).tolist(),
        "bytes": sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(network.params)),
        "cache": state.target_cache[0][0].addressable_shards[0].data.shape[:2],
        "of_a_call": collectives(model.forward.step.lower(*arguments).compile()),
        "of_the_loop": collectives(run),
        "flops": run.cost_analysis()["flops"],
    }


def test_any_mesh_gives_the_same_texts_and_shares_the_weights_the_rows_and_the_work():
    """Two all-reduces a layer join the devices of a model, and one more the logits; the embeddings are gathered. All
    devices have wpe, the norms and the biases that every device adds; the other parameters are shared."""
    # Optimisation would take most of the time, and changes nothing that is compared.
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    path = os.pathsep.join(map(str, (ROOT, Path(__file__).parent, ROOT / "tests" / "support")))
    settings = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    program = "import json, test_sharding as t; print(json.dumps([t.on_mesh(*mesh) for mesh in t.MESHES]))"
    done = python("-c", program, env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    one = results[0]
    assert ([*map(len, one["texts"])], len({*map(tuple, one["texts"])})) == ([12] * 6, 6)
    logits = CachedNetwork(*models()[0], PlainPass(*models()[0])).logits(PROMPTS[0], 2)
    assert 1e-4 < np.abs(one["int8"] - logits).max() < 0.1 * np.abs(one["int8"]).max()
    n_embd, n_layer = 40, 2
    everywhere = 4 * (HPARAMS["n_ctx"] * n_embd + (6 * n_layer + 2) * n_embd)
    of_heads = 4 * n_layer * (4 * n_embd * n_embd + 3 * n_embd)
    rest = one["bytes"] - everywhere - of_heads
    for (n_data, n_model), found in zip(MESHES, results, strict=True):
        assert found["texts"] == one["texts"]
        np.testing.assert_allclose(found["logits"], logits, atol=5e-5)
        np.testing.assert_allclose(found["int8"], one["int8"], atol=5e-5)
        n_head = N_HEAD[n_model]
        assert found["cache"] == [4 // n_data, n_head // n_model]
        assert found["bytes"] == everywhere + (rest + of_heads * n_head // 5) // n_model
        if n_data == 1:
            expected = ["all-gather"] + ["all-reduce"] * (2 * 2 + 1) if n_model > 1 else []
            assert sorted(found["of_a_call"]) == expected
        if n_model == 1:
            assert found["flops"] < 1.1 * one["flops"] / n_data
            assert found["of_the_loop"].count("all-reduce") <= 4  # whether all are done; and nothing of the models
