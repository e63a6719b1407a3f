"""Several devices, here eight that XLA makes of one CPU: the same tokens as on one.

XLA counts its devices when it starts, so all of it runs in processes of their own.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from tiny import decoded, first_layer, logits_themselves, python, random_params

from speculative.engines.model import CachedNetwork
from speculative.filters import Filters

pytestmark = pytest.mark.slow  # processes that compile everything

# Five heads, which none of 2, 4 and 8 divides.
HPARAMS = {"n_vocab": 50, "n_ctx": 32, "n_embd": 40, "n_head": 5, "n_layer": 2}
PROMPTS = [[3, 1, 4, 1, 5], [2, 7], [1, 8, 2, 8, 1, 8, 2, 8], [4], [5, 9], [0, 4, 5]]  # four at a time
N_HEAD = {1: 5, 2: 6, 4: 8, 8: 8}  # {number of devices: heads, of which each device has a share}
COPIES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (2, 2), (4, 2), (2, 4)]  # (copies, devices of each)


# ---- In a process of its own -----------------------------------------------------------------------------------------


def models():
    """(target, draft), each as (params, hparams)."""
    params = random_params(HPARAMS, seed=1)
    return (params, HPARAMS), first_layer(params, HPARAMS)


def loop_of(mesh, temperature=0.9, split_draft=False):
    from speculative.engines.jax.loop import DeviceDecoder
    from speculative.engines.jax.pair import DeviceLoop
    from speculative.engines.jax.sharding import place

    target, draft = models()
    networks = place(*target, "float32", mesh), place(*draft, "float32", mesh, split_draft)
    return DeviceLoop(DeviceDecoder(*networks, Filters(temperature)), 3)


def decode(loop):
    return decoded(loop.steps(PROMPTS[0], 16, 3, np.random.default_rng(1)))


def collectives(program):
    names = re.findall(r" = \(?\S+ ([a-z-]+?)(?:-start)?\(", program.as_text())
    return [name for name in names if re.fullmatch("all-reduce|all-gather|all-to-all|reduce-scatter|.*-permute", name)]


def on_devices():
    """The results that the tests below look at, for each number of devices."""
    import jax

    from speculative.engines.jax.model import JaxModel
    from speculative.engines.jax.sharding import make_mesh, place

    found = {"sampled": decode(loop_of(make_mesh(1))), "greedy": decode(loop_of(make_mesh(1), 0.0))}
    for n in N_HEAD:
        mesh = make_mesh(n)
        loop = loop_of(mesh)
        target = loop.decoder.networks["target"]
        model = JaxModel(target, to_probs=logits_themselves)
        arguments = target.params, np.zeros(4, np.int32), np.int32(0), model.new_cache()
        found[n] = {
            "logits": model(PROMPTS[0], 2).tolist(),
            "int8": JaxModel(place(*models()[0], "int8", mesh), logits_themselves)(PROMPTS[0], 2).tolist(),
            "sampled": decode(loop),
            "n_head": target.n_head,
            "bytes": sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(target.params)),
            "collectives": collectives(model.step.lower(*arguments).compile()),
        }
    found["greedy, with a draft that is split"] = decode(loop_of(make_mesh(4), 0.0, split_draft=True))
    return found


def on_copies():
    from speculative.engines.jax.pair import shape_of
    from speculative.engines.jax.sharding import make_mesh

    found = {}
    for n_data, n_model in COPIES:
        loop = loop_of(make_mesh(n_model, n_data))
        texts = [[] for _ in PROMPTS]
        for rows in loop.rows(PROMPTS, 12, 3, np.random.default_rng(1), 4):
            for row in rows:
                texts[row.number] += row.tokens
        state = loop.start(PROMPTS[:4], 0, 12, 3, shape_of(PROMPTS, 12, 3, 4))
        program = loop.decoder.run.lower(loop.decoder.params, state, np.uint32(1), K=3).compile()
        found[f"{n_data} x {n_model}"] = {
            "texts": texts,
            "flops": program.cost_analysis()["flops"],
            "cache": state.target_cache[0][0].addressable_shards[0].data.shape[:2],
            "collectives": collectives(program),
        }
    return found


def on_eight(call):
    """The result of this function if XLA makes eight devices of the CPU."""
    # Optimisation would take most of the time, and changes nothing that is compared.
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    here = Path(__file__).parent
    settings = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    done = python("-c", f"import json, test_sharding as t; print(json.dumps(t.{call}()))", env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---- The results -----------------------------------------------------------------------------------------------------


def test_any_number_of_devices_gives_the_same_and_each_has_its_share():
    """Two all-reduces a layer join them, and one more the logits; the embeddings are gathered. All devices have wpe, the
    norms and the biases that every device adds; the others are shared, added heads included."""
    found = on_eight("on_devices")
    assert len(found["sampled"]) == 16
    assert found["greedy, with a draft that is split"] == found["greedy"] != found["sampled"]
    logits = CachedNetwork(*models()[0]).logits(PROMPTS[0], 2)
    int8 = np.array(found["1"]["int8"])
    assert 1e-4 < np.abs(int8 - logits).max() < 0.1 * np.abs(int8).max()
    n_embd, n_layer = 40, 2
    everywhere = 4 * (HPARAMS["n_ctx"] * n_embd + (6 * n_layer + 2) * n_embd)
    of_heads = 4 * n_layer * (4 * n_embd * n_embd + 3 * n_embd)
    rest = found["1"]["bytes"] - everywhere - of_heads
    for n, n_head in N_HEAD.items():
        one = found[str(n)]
        assert one["sampled"] == found["sampled"]
        np.testing.assert_allclose(one["logits"], logits, atol=5e-5)
        np.testing.assert_allclose(one["int8"], int8, atol=5e-5)
        assert one["n_head"] == n_head
        assert one["bytes"] == everywhere + (rest + of_heads * n_head // 5) // n
        assert sorted(one["collectives"]) == (["all-gather"] + ["all-reduce"] * (2 * 2 + 1) if n > 1 else [])


def test_any_number_of_copies_gives_the_same_texts_and_shares_the_rows_and_the_work():
    copies = on_eight("on_copies")
    whole = copies["1 x 1"]
    assert ([*map(len, whole["texts"])], len({*map(tuple, whole["texts"])})) == ([12] * 6, 6)
    for n_data, n_model in COPIES:
        found = copies[f"{n_data} x {n_model}"]
        assert found["texts"] == whole["texts"]
        assert found["cache"] == [4 // n_data, N_HEAD[n_model] // n_model]
        if n_model == 1:
            assert found["flops"] < 1.1 * whole["flops"] / n_data
            assert found["collectives"].count("all-reduce") <= 4  # whether all are done; and nothing of the models
