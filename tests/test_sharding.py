"""Several devices, here eight that XLA makes of one CPU, and two processes: the same tokens as on one.

XLA counts its devices when it starts, so that all of it runs in processes of their own.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import first_layer, logits_themselves, random_params

from speculative.engines.plain import CachedModel
from speculative.filters import Filters

pytestmark = pytest.mark.slow  # processes that compile everything

# Five heads, which none of 2, 4 and 8 divides.
HPARAMS = {"n_vocab": 50, "n_ctx": 32, "n_embd": 40, "n_head": 5, "n_layer": 2}
PROMPT = [3, 1, 4, 1, 5]
N_HEAD = {1: 5, 2: 6, 4: 8, 8: 8}  # by the number of devices, the heads that each of them has a share of

DEVICES = [1, 2, 4, 8]
ALL_COPIES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (2, 2), (4, 2), (2, 4)]


def models():
    """(target, draft), each as (params, hparams)."""
    params = random_params(HPARAMS, seed=1)
    return (params, HPARAMS), first_layer(params, HPARAMS)


def decode(network, draft, temperature):
    from speculative.engines.jax.loop import DeviceDecoder

    decoder = DeviceDecoder(network, draft, Filters(temperature), block=4)
    return [token for step in decoder.speculative(PROMPT, 16, 3, seed=1) for token in step.tokens]


def on_devices(devices):
    """What the tests below look at, for each number of devices."""
    import jax

    from speculative.engines.jax import sharding
    from speculative.engines.jax.model import JaxModel

    found = {}
    for n in DEVICES:
        mesh = sharding.make_mesh(n)
        target, draft = (sharding.place(*model, "float32", mesh) for model in models())
        model = JaxModel(target, to_probs=logits_themselves)
        arguments = target.params, np.zeros(4, np.int32), np.int32(0), model.new_cache()
        program = model.step.lower(*arguments).compile().as_text()
        found[n] = {
            "logits": model(PROMPT, 2).tolist(),
            "int8": JaxModel(sharding.place(*models()[0], "int8", mesh), logits_themselves)(PROMPT, 2).tolist(),
            "sampled": decode(target, draft, 0.9),
            "n_head": target.n_head,
            "bytes": sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(target.params)),
            "collectives": collectives(program),
        }
        if n == 4:
            whole = sharding.place(*models()[1], "float32", mesh, split=False)
            found["greedy, with a whole draft"] = decode(target, whole, 0.0)
    for kind, temperature in [("sampled", 0.9), ("greedy", 0.0)]:
        networks = [sharding.place(*model) for model in models()]
        found[kind] = decode(*networks, temperature)
    return found


def is_collective(name):
    return name in ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")


PROMPTS = [PROMPT, [2, 7], [1, 8, 2, 8, 1, 8, 2, 8], [4], [5, 9], [0, 4, 5]]  # four at a time


def decode_batch(network, draft):
    from speculative.engines.jax.loop import DeviceDecoder

    decoder, texts = DeviceDecoder(network, draft, Filters(0.9), block=4), [[] for _ in PROMPTS]
    for rows in decoder.batch(PROMPTS, 12, 3, seed=1, n_batch=4):
        for row in rows:
            texts[row.number] += row.step.tokens
    return decoder, texts


def on_copies(shapes):
    """What the tests below look at, for each (copies of the models, devices of each copy)."""
    from speculative.engines.jax import sharding

    found = {}
    for n_data, n_model in shapes:
        mesh = sharding.make_mesh(n_model, n_data)
        decoder, texts = decode_batch(*(sharding.place(*model, "float32", mesh) for model in models()))
        state = decoder.start(PROMPTS[:4], 12, 3, 1)
        program = decoder.run.lower(decoder.params, state, np.bool_(False), np.int32(-1), K=3).compile()
        found[f"{n_data} x {n_model}"] = {
            "texts": texts,
            "flops": program.cost_analysis()["flops"],
            "cache": state.target_cache[0][0].addressable_shards[0].data.shape[:2],
            "collectives": collectives(program.as_text()),
        }
    return found


def collectives(program):
    names = re.findall(r" = \(?\S+ ([a-z-]+?)(?:-start)?\(", program)
    return [name for name in names if is_collective(name)]


def in_two_processes():
    """Two devices in each of two processes."""
    from speculative.engines.jax import processes, sharding

    first = processes.start_processes()
    import jax

    mesh = sharding.make_mesh(4)
    target = sharding.place(*models()[0], "float32", mesh)
    draft, seconds = sharding.place_draft(*models()[1], "float32", mesh, repeats=1)
    found = {"tokens": decode(target, draft, 0.9), "local": jax.local_device_count(), "first": first}
    mesh = sharding.make_mesh(2, 2)
    _, texts = decode_batch(*(sharding.place(*model, "float32", mesh) for model in models()))
    return found | {"seconds": seconds, "texts": texts}


def start(call, n_devices, **environment):
    # Optimisation would take most of the time, and change nothing of what is looked at.
    flags = f"--xla_force_host_platform_device_count={n_devices} --xla_backend_optimization_level=0"
    here = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, "-c", f"import json, test_sharding as t; print('\\n' + json.dumps(t.{call}))"],
        env={
            **os.environ,
            "XLA_FLAGS": flags,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": f"{here}{os.pathsep}{here.parent}",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out.strip().split("\n")[-1])


@pytest.fixture(scope="module")
def found():
    return result(start(f"on_devices({DEVICES})", 8))


def test_the_tokens_are_the_same_on_any_number_of_devices(found):
    assert len(found["sampled"]) == 16
    for n in DEVICES:
        assert found[str(n)]["sampled"] == found["sampled"]


def test_the_draft_may_lie_whole_on_every_device(found):
    assert found["greedy, with a whole draft"] == found["greedy"] != found["sampled"]


def test_the_logits_are_those_of_numpy(found):
    expected = CachedModel(*models()[0], logits_themselves)(PROMPT, 2)
    for n in DEVICES:
        np.testing.assert_allclose(found[str(n)]["logits"], expected, atol=5e-5)


def test_the_scales_of_int8_lie_with_their_weights(found):
    expected = np.array(found["1"]["int8"])
    assert 1e-4 < np.abs(expected - found["1"]["logits"]).max() < 0.1 * np.abs(expected).max()
    for n in DEVICES:
        np.testing.assert_allclose(found[str(n)]["int8"], expected, atol=5e-5)


def test_heads_are_added_until_they_divide(found):
    assert [found[str(n)]["n_head"] for n in DEVICES] == [N_HEAD[n] for n in DEVICES]


def test_two_all_reduces_a_layer_one_for_the_logits_and_the_embeddings_gathered(found):
    assert found["1"]["collectives"] == []
    for n in DEVICES[1:]:
        assert sorted(found[str(n)]["collectives"]) == ["all-gather"] + ["all-reduce"] * (2 * 2 + 1)


def test_every_device_has_its_share(found):
    """All but wpe, the norms and the biases that every device adds; the added heads are what is above that."""
    n_embd, n_layer = 40, 2
    everywhere = 4 * (HPARAMS["n_ctx"] * n_embd + (6 * n_layer + 2) * n_embd)
    of_heads = 4 * n_layer * (4 * n_embd * n_embd + 3 * n_embd)
    rest = found["1"]["bytes"] - everywhere - of_heads
    for n in DEVICES:
        assert found[str(n)]["bytes"] == everywhere + (rest + of_heads * N_HEAD[n] // 5) // n


@pytest.fixture(scope="module")
def copies():
    return result(start(f"on_copies({ALL_COPIES})", 8))


def test_the_texts_are_the_same_on_any_number_of_copies(copies):
    """Where prompts take the places of others too; and no two texts are the same."""
    expected = copies["1 x 1"]["texts"]
    assert [len(text) for text in expected] == [12] * 6 and len({*map(tuple, expected)}) == 6
    for found in copies.values():
        assert found["texts"] == expected


def test_each_copy_has_its_share_of_the_rows_and_of_the_work(copies):
    whole = copies["1 x 1"]["flops"]
    for shape, found in copies.items():
        n_data, n_model = map(int, shape.split(" x "))
        assert found["cache"] == [4 // n_data, N_HEAD[n_model] // n_model]
        if n_model == 1:
            assert found["flops"] < 1.1 * whole / n_data
            assert found["collectives"].count("all-reduce") <= 4  # whether all are done; and nothing of the models


def test_two_processes_decode_the_same_tokens(found, copies):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        start("in_two_processes()", 2, JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=str(i))
        for i in range(2)
    ]
    results = [result(process) for process in processes]
    for i, one in enumerate(results):
        assert one["tokens"] == found["sampled"]
        assert (one["local"], one["first"]) == (2, i == 0)
        assert one["texts"] == copies["1 x 1"]["texts"]
    assert results[0]["seconds"] == results[1]["seconds"]
