"""main.py --engine jax: the whole command, on the devices of JAX."""

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoint_files import PROMPT, USUAL
from tiny import python, refusal, tokens_of

import main
from speculative import load_pair

pytest.importorskip("jax")
import jax

from speculative.engines.jax.engine import JaxEngine
from speculative.report.record import Difference
from speculative.run.greedy import greedy_difference

OUTCOME = itemgetter("tokens", "drafted", "accepted")  # of an iteration
PROMPTS = [PROMPT, "a", "she was not in the house", "one more"]
N = 9


@pytest.fixture
def on_numpy(tiny_pair, tmp_path, capsys):
    """flags -> the printed text, the JSON document."""
    path = tmp_path / "run.json"
    usual = USUAL | {"models_dir": tiny_pair, "json": path, "n_tokens_to_generate": N, "K": 3}

    def decode(**flags):
        main.main(**{flag: str(value) for flag, value in (usual | flags).items() if value is not None})
        return capsys.readouterr().out, json.loads(path.read_text(encoding="utf-8"))

    return decode


@pytest.fixture
def on_jax(on_numpy):
    """The same for the other engine."""
    return partial(on_numpy, engine="jax", threads=None)


def test_the_text_is_that_of_numpy_and_times_are_those_of_the_loop(on_jax, on_numpy):
    _, document = on_jax(n_tokens_to_generate=24, n_samples=2)
    _, on_numpy = on_numpy(n_tokens_to_generate=24, n_samples=2)
    assert tokens_of(document) == tokens_of(document, "autoregressive") == tokens_of(on_numpy)
    f = document["figures"]
    iterations = document["speculative"]["samples"][0]["iterations"]
    assert all(i["derived"] and i["drafting"] + i["scoring"] == pytest.approx(i["seconds"]) for i in iterations)
    assert [[role for role, *_ in i["calls"]] for i in iterations[1:]] == [
        [*["draft"] * (3 * (i["drafted"] > 0)), "target"] for i in iterations[1:]
    ]
    assert [(i["prefill"], i["draft_prefill"]) for i in iterations] == [(i is iterations[0],) * 2 for i in iterations]
    assert [len(i["alpha"]) for i in iterations] == [min(i["accepted"] + 1, i["drafted"]) for i in iterations]
    assert 0 < f["seconds"]["prefill"] < f["seconds"]["speculative"]
    assert f["t_target"] > 0
    assert f["beta"].keys() == {str(i["drafted"] + 1) for i in iterations[1:]}
    for key in ("r", "alpha", "accepted", "drafted", "tokens_per_iteration"):
        assert f[key] == pytest.approx(on_numpy["figures"][key]), key
    names = ("engine", "device_platform", "devices", "jax")
    found = [document["machine"][name] for name in names]
    assert found == ["jax", jax.default_backend(), jax.device_count(), jax.__version__]
    assert not on_numpy["machine"].get("jax")


def test_a_batch_is_its_prompts_each_to_its_stop_text(on_jax, on_numpy, tmp_path):
    """Two groups, of which the second is not full. A window wider than the text costs no more."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    out, document = on_jax(prompt=None, prompt_file=path, batch=3, stop="h", K=1000)
    alone = [on_numpy(prompt=prompt, stop="h", K=1000)[1]["speculative"]["samples"][0] for prompt in PROMPTS]
    expected = [sample["tokens"] for sample in alone]
    assert [len(tokens) < N for tokens in expected] == [True, False, False, False]  # the first text alone has an h
    assert tokens_of(document) == tokens_of(document, "autoregressive") == expected
    steps = [sample["iterations"] for sample in document["speculative"]["samples"]]
    for found, known in zip(steps, [sample["iterations"] for sample in alone], strict=True):
        assert [*map(OUTCOME, found)] == [*map(OUTCOME, known)]
    assert len({*map(len, steps)}) > 2  # ragged, or nothing was tested
    assert [found[0]["prefill"] for found in steps] == [True, False, False, True]  # of each group's first text
    assert document["figures"]["tokens"] == sum(map(len, expected))
    assert [prompt["text"] for prompt in document["prompts"]] == PROMPTS
    for prompt, sample in zip(PROMPTS, alone, strict=True):
        assert out.count(f"Text = {prompt}{sample['text']}\n") == 2


IN_PYTHON = {"drafter": "prompt_lookup+model", "K": "auto"}  # for which no loop is compiled


@pytest.mark.slow  # compiles a loop for each of four lookaheads
@pytest.mark.parametrize(("how", "status"), [({"accept": "block"}, 0), ({"accept": "lenient:0.01"}, 1), (IN_PYTHON, 0)])
def test_verify_runs_on_this_engine(run_verify, how, status):
    found, out = run_verify(engine="jax", threads=None, draws=40, **{"K": 2} | how)
    assert found == status
    assert "passed  greedy" in out
    assert "rows" not in out
    assert ("FAILED  speculative against the target" in out) == (status == 1)


def test_a_batch_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(JaxEngine, "free_bytes", lambda engine: 10**8)
    assert "or a smaller batch" in refusal(load_pair, demo=True, engine="jax", batch=4096)


def test_greedy_texts_that_differ_are_reported_with_their_margin():
    """The model's two best logits, of tokens 2 and 3, are 0.25 apart; the line says whether rounding explains it."""
    logits = np.array([[0, 1, 4.25, 4.5]], np.float32)
    target = SimpleNamespace(logits=lambda x: logits)
    prompts = [[5, 6], [7]]
    texts = [[3, 3], [3, 3, 3]]
    options = SimpleNamespace(dtype="float32")
    engine = JaxEngine(mesh=1, data_parallel=1)
    session = SimpleNamespace(engine=engine, models={"target": target}, options=options, exact=False)
    assert greedy_difference(session, prompts, [texts, texts]) is None
    for dtype, verdict in (
        ("bfloat16", "rounding can change their order."),
        ("float32", "a defect, as rounding changes the order of logits that are at most 0.001 apart."),
    ):
        options.dtype = dtype
        which = "for prompt 2, first difference at position 2: token 3 or 2, where the two best logits are 0.25 apart"
        expected = Difference(f"{which}: {verdict}", dtype == "float32")
        assert greedy_difference(session, prompts, [texts, [[3, 3], [3, 2, 3]]]) == expected


@pytest.mark.slow  # both processes compile everything
def test_two_processes_share_the_work_and_one_prints(tiny_pair, on_jax, tmp_path):
    """Two devices in each, so that both the models and the prompts are split over the processes; the texts are those of
    one device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    path = tmp_path / "two.json"
    flags = {"batch": 4, "temperature": 1, "n_tokens_to_generate": N, "prompt": PROMPT, "K": 3}
    pair = {"target_model_size": "target", "draft_model_size": "draft", "models_dir": tiny_pair}
    more = {"engine": "jax", "mesh": 2, "data_parallel": 2, "json": path}
    words = [f"--{name}={value}" for name, value in (flags | pair | more).items()]
    env = os.environ | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
    env["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    with ThreadPoolExecutor() as threads:
        envs = [env | {"JAX_PROCESS_ID": str(i)} for i in range(2)]
        first, second = threads.map(lambda env: python("main.py", *words, env=env), envs)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    _, alone = on_jax(**flags)
    assert len({*map(str, tokens_of(alone))}) == 4
    assert tokens_of(json.loads(path.read_text(encoding="utf-8"))) == tokens_of(alone)
    assert first.stdout.count("Text = ") == 8
    assert "Text = " not in second.stdout
