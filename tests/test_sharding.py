"""Several devices, here eight that XLA makes of one CPU: the same tokens as on one.

XLA counts its devices when it starts, so that all of it runs in processes of their own.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from tiny import decoded, first_layer, logits_themselves, python, random_params

from speculative.engines.plain import CachedModel
from speculative.filters import Filters

pytestmark = pytest.mark.slow  # processes that compile everything

# Five heads, which none of 2, 4 and 8 divides.
HPARAMS = {"n_vocab": 50, "n_ctx": 32, "n_embd": 40, "n_head": 5, "n_layer": 2}
PROMPTS = [[3, 1, 4, 1, 5], [2, 7], [1, 8, 2, 8, 1, 8, 2, 8], [4], [5, 9], [0, 4, 5]]  # four at a time
N_HEAD = {1: 5, 2: 6, 4: 8, 8: 8}  # by the number of devices, the heads that each of them has a share of
COPIES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (2, 2), (4, 2), (2, 4)]  # (copies, devices of each)


# ---- In a process of its own -----------------------------------------------------------------------------------------


def models():
    """(target, draft), each as (params, hparams)."""
    params = random_params(HPARAMS, seed=1)
    return (params, HPARAMS), first_layer(params, HPARAMS)


def place(mesh=None, dtype="float32"):
    from speculative.engines.jax import sharding

    return [sharding.place(*model, dtype, mesh) for model in models()]


def decode(target, draft, temperature=0.9):
    from speculative.engines.jax.loop import DeviceDecoder

    decoder = DeviceDecoder(target, draft, Filters(temperature), block=4)
    return decoded(decoder.speculative(PROMPTS[0], 16, 3, seed=1))


def decode_batch(networks):
    from speculative.engines.jax.loop import DeviceDecoder

    decoder, texts = DeviceDecoder(*networks, Filters(0.9), block=4), [[] for _ in PROMPTS]
    for rows in decoder.batch(PROMPTS, 12, 3, seed=1, n_batch=4):
        for row in rows:
            texts[row.number] += row.step.tokens
    return decoder, texts


def collectives(program):
    names = re.findall(r" = \(?\S+ ([a-z-]+?)(?:-start)?\(", program.as_text())
    return [name for name in names if re.fullmatch("all-reduce|all-gather|all-to-all|reduce-scatter|.*-permute", name)]


def on_devices():
    """The results that the tests below look at, for each number of devices."""
    import jax

    from speculative.engines.jax import sharding
    from speculative.engines.jax.model import JaxModel

    found = {"sampled": decode(*place()), "greedy": decode(*place(), 0.0)}
    for n in N_HEAD:
        mesh = sharding.make_mesh(n)
        target, draft = place(mesh)
        model = JaxModel(target, to_probs=logits_themselves)
        arguments = target.params, np.zeros(4, np.int32), np.int32(0), model.new_cache()
        found[n] = {
            "logits": model(PROMPTS[0], 2).tolist(),
            "int8": JaxModel(place(mesh, "int8")[0], logits_themselves)(PROMPTS[0], 2).tolist(),
            "sampled": decode(target, draft),
            "n_head": target.n_head,
            "bytes": sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(target.params)),
            "collectives": collectives(model.step.lower(*arguments).compile()),
        }
        if n == 4:
            whole = sharding.place(*models()[1], "float32", mesh, split=False)
            found["greedy, with a whole draft"] = decode(target, whole, 0.0)
    return found


def on_copies():
    from speculative.engines.jax import sharding

    found = {}
    for n_data, n_model in COPIES:
        decoder, texts = decode_batch(place(sharding.make_mesh(n_model, n_data)))
        state = decoder.start(PROMPTS[:4], 12, 3, 1)
        program = decoder.run.lower(decoder.params, state, np.bool_(False), np.int32(-1), K=3).compile()
        found[f"{n_data} x {n_model}"] = {
            "texts": texts,
            "flops": program.cost_analysis()["flops"],
            "cache": state.target_cache[0][0].addressable_shards[0].data.shape[:2],
            "collectives": collectives(program),
        }
    return found


def on_eight(call):
    """The result of this function where XLA makes eight devices of the CPU."""
    # Optimisation would take most of the time, and change nothing of what is looked at.
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    here = Path(__file__).parent
    settings = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    done = python("-c", f"import json, test_sharding as t; print(json.dumps(t.{call}()))", env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found():
    return on_eight("on_devices")


@pytest.fixture(scope="module")
def copies():
    return on_eight("on_copies")


# ---- What came of it -------------------------------------------------------------------------------------------------


def test_the_tokens_and_the_logits_are_the_same_on_any_number_of_devices(found):
    """So they are with a draft that lies whole on every device. The scales of int8 lie with their weights."""
    assert len(found["sampled"]) == 16
    assert found["greedy, with a whole draft"] == found["greedy"] != found["sampled"]
    logits = CachedModel(*models()[0], logits_themselves)(PROMPTS[0], 2)
    int8 = np.array(found["1"]["int8"])
    assert 1e-4 < np.abs(int8 - logits).max() < 0.1 * np.abs(int8).max()
    for n in N_HEAD:
        assert found[str(n)]["sampled"] == found["sampled"]
        np.testing.assert_allclose(found[str(n)]["logits"], logits, atol=5e-5)
        np.testing.assert_allclose(found[str(n)]["int8"], int8, atol=5e-5)


def test_every_device_has_its_share_and_two_all_reduces_a_layer_join_them(found):
    """All but wpe, the norms and the biases that every device adds; the added heads are what is above that. One more
    all-reduce is for the logits, and the embeddings are gathered."""
    n_embd, n_layer = 40, 2
    everywhere = 4 * (HPARAMS["n_ctx"] * n_embd + (6 * n_layer + 2) * n_embd)
    of_heads = 4 * n_layer * (4 * n_embd * n_embd + 3 * n_embd)
    rest = found["1"]["bytes"] - everywhere - of_heads
    for n, n_head in N_HEAD.items():
        one = found[str(n)]
        assert one["n_head"] == n_head
        assert one["bytes"] == everywhere + (rest + of_heads * n_head // 5) // n
        assert sorted(one["collectives"]) == (["all-gather"] + ["all-reduce"] * (2 * 2 + 1) if n > 1 else [])


def test_the_texts_are_the_same_on_any_number_of_copies_which_share_the_rows_and_the_work(copies):
    """Prompts take the places of others that have ended. No two texts are the same."""
    whole = copies["1 x 1"]
    assert ([len(text) for text in whole["texts"]], len({*map(tuple, whole["texts"])})) == ([12] * 6, 6)
    for n_data, n_model in COPIES:
        found = copies[f"{n_data} x {n_model}"]
        assert found["texts"] == whole["texts"]
        assert found["cache"] == [4 // n_data, N_HEAD[n_model] // n_model]
        if n_model == 1:
            assert found["flops"] < 1.1 * whole["flops"] / n_data
            assert found["collectives"].count("all-reduce") <= 4  # whether all are done; and nothing of the models
