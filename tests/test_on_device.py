"""main.py --engine jax: the whole command, on the devices of JAX."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import PROMPT
from test_flags import parse
from tiny import ROOT, refusal, tokens_of

from speculative import checks, load_pair
from speculative.checkpoints.config import load_hparams
from speculative.cli.prompts import choose_prompts
from speculative.engines import devices as on_device
from speculative.engines import formats, memory
from speculative.filters import Filters
from speculative.session import Session
from speculative.support.terminal import SHOWN

pytest.importorskip("jax")
import jax

from speculative.engines.jax import processes, sharding
from speculative.engines.jax.pair import greedy_differences

PROMPTS = [PROMPT, "a", "she was not in the house", "one more"]
N = 9


@pytest.fixture
def on_jax(run_json):
    """flags -> (what main() prints, what it writes)."""
    return partial(run_json, engine="jax", threads=None, n_tokens_to_generate=N, K=3)


@pytest.fixture
def on_numpy(run_json):
    """flags -> the same for the other engine."""
    return partial(run_json, n_tokens_to_generate=N, K=3)


def test_the_text_is_that_of_numpy_and_what_is_not_known_is_null_and_not_printed(on_jax, on_numpy):
    out, document = on_jax(n_tokens_to_generate=24)
    _, on_numpy = on_numpy(n_tokens_to_generate=24)
    assert "first difference" not in out
    assert "The texts " in out
    assert tokens_of(document) == tokens_of(document, "autoregressive") == tokens_of(on_numpy)
    f, iterations = document["figures"], document["speculative"]["samples"][0]["iterations"]
    assert [f["seconds"][part] for part in ("drafting", "scoring", "rest")] == [None] * 3
    assert {i[key] for i in iterations for key in ("drafting", "scoring", "seconds")} == {None}
    assert "drafting" not in out
    assert ("Predicted = " in out) != f["busy"]
    assert 0 < f["seconds"]["prefill"] < f["seconds"]["speculative"]
    if not f["busy"]:  # on a busy machine a window may seem cheaper than a row, and nothing is predicted
        assert f["c"] == f["t_draft"] / f["t_target"] > 0
        assert f["beta"]["4"] > 0
        assert f["predicted_leviathan"] > 0
    assert [len(i["alpha"]) for i in iterations] == [min(i["accepted"] + 1, i["drafted"]) for i in iterations]
    for key in ("r", "alpha", "tested_by_position", "tokens_per_iteration_histogram"):
        assert f[key] == pytest.approx(on_numpy["figures"][key]), key
    names = ("engine", "device_platform", "device_kind", "devices", "jax")
    expected = ["jax", "cpu", "cpu", jax.device_count(), jax.__version__]
    assert [document["machine"][name] for name in names] == expected
    assert on_numpy["machine"]["engine"] == "numpy"
    assert "jax" not in on_numpy["machine"]


@pytest.mark.parametrize(
    "flags",
    [
        {"drafter": "prompt_lookup+model"},
        {"n_samples": 2, "stop": "e"},
        {"n_tokens_to_generate": 4, "K": 10**18 - 1},
        pytest.param({"K": "auto"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_flags_give_the_same_text_on_both(on_jax, on_numpy, flags):
    """The Python loop takes what the loop on the device does not know; a window wider than the text costs no more."""
    _, found = on_jax(**flags)
    _, expected = on_numpy(**flags)
    assert tokens_of(found) == tokens_of(found, "autoregressive") == tokens_of(expected)


def test_other_filters_reach_the_target_and_its_draft(tiny_pair):
    """The draft keeps the temperature of its own, as on the other engine."""
    flags = {"target_model_size": "target", "draft_model_size": "draft", "models_dir": tiny_pair}
    pair = load_pair(**flags, engine="jax", temperature=1.0, draft_temperature=0.5).pair
    cooler = pair.at(Filters(0.8, top_k=3))
    assert cooler.target.to_probs == Filters(0.8, top_k=3)
    assert cooler.models["draft"].to_probs == cooler.draft_filters == Filters(0.5, top_k=3)
    assert cooler.decoder is not pair.decoder
    assert cooler.seconds == {}


def test_a_batch_is_its_prompts_each_to_its_stop(on_jax, on_numpy, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    stop = "h"  # which the first text alone has
    out, document = on_jax(prompt=None, prompt_file=path, batch=3, stop=stop)
    assert [prompt["text"] for prompt in document["prompts"]] == PROMPTS
    assert document["prompt"]["text"] == PROMPTS[0]
    assert tokens_of(document) == tokens_of(document, "autoregressive")
    for prompt, sample in zip(PROMPTS, document["speculative"]["samples"], strict=True):
        [alone] = on_numpy(prompt=prompt, stop=stop)[1]["speculative"]["samples"]
        assert (sample["text"], sample["tokens"]) == (alone["text"], alone["tokens"])
        assert stop not in sample["text"]
        assert out.count(f"Text = {prompt}{sample['text']}\n") == 2
    lengths = [*map(len, tokens_of(document))]
    assert lengths[0] < N == lengths[1]
    assert document["figures"]["tokens"] == sum(lengths)
    assert 0.5 < document["figures"]["useful_row_calls"] <= 1
    assert out.index("Speculative Decode") < out.index("The texts ")


@pytest.mark.slow  # compiles a loop for each of four lookaheads, twice
def test_verify_has_a_form_for_this_engine(run_verify):
    verify = partial(run_verify, engine="jax", threads=None, K=2)
    status, out = verify(draws=25)
    assert status == 0
    assert "passed  greedy" in out
    assert "rows" not in out
    assert "would have shown" in out
    status, out = verify(draws=40, lenience=0.01)
    assert status == 1
    assert "FAILED  speculative against the target" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch": 2, "engine": "numpy"}, "--batch decodes prompts together in JAX's loop"),
        ({"batch": 2, "K": "auto"}, "--batch decodes prompts together in JAX's loop"),
        ({"batch": 2, "drafter": "prompt_lookup"}, "--batch decodes prompts together in JAX's loop"),
        ({"batch": 4097}, "--batch must be a whole number from 1 to 4096"),
        ({"batch": 4, "data_parallel": 3}, "--data_parallel 3 gives each copy of the models as many prompts"),
        ({"batch": 512, "data_parallel": 512}, "--mesh 1 --data_parallel 512 needs 512 devices"),
        ({"mesh": 512}, "--mesh 512 needs 512 devices"),
    ],
)
def test_flags_that_do_not_go_together(on_jax, flags, message):
    assert message in refusal(on_jax, **flags)


@pytest.mark.parametrize(("free", "fits"), [(10**16, False), (10**17, True), (None, True)])
def test_a_model_that_does_not_fit_onto_the_device(free, fits):
    """A larger one than the machine itself could hold."""
    stats = None if free is None else {"bytes_limit": free // 4 + 500, "bytes_in_use": 500}
    device = SimpleNamespace(memory_stats=lambda: stats)
    hparams = {"n_vocab": 260, "n_ctx": 128, "n_embd": 10**6, "n_head": 10, "n_layer": 1000}
    check = partial(checks.check_memory, [(hparams, "float32")], "jax", 4, 18, accelerator=lambda: device)
    if fits:
        check()
    else:
        assert "of memory, and 10000000.0 GB are free" in refusal(check)


def test_each_row_of_a_batch_takes_a_cache(tiny_pair):
    """Of its prompt and what is decoded, on the copy of the models that decodes it."""
    n_cached = 10**12 * (20 + N)
    o = parse(draft_model_size="draft", target_model_size="target", models_dir=tiny_pair, engine="jax")
    o = o.replaced(n_tokens_to_generate=N, batch=2 * 10**12, data_parallel=2)
    line = refusal(Session, o, {}, parse, ["a", "x" * 20])
    folders = tiny_pair / "draft", tiny_pair / "target"
    needed = sum(memory.needed(load_hparams(folder / "hparams.json"), "float32", n_cached) for folder in folders)
    assert line.startswith(f"the models need {needed / 1e9:.1f} GB")
    assert line.endswith("or a smaller --batch")


@pytest.mark.parametrize(("device", "extra"), [("/dev/nvidia0", "cuda12"), ("/dev/accel0", "tpu"), (None, None)])
def test_an_accelerator_that_jax_does_not_see_is_named(device, extra):
    found = on_device.unused_accelerator(exists=lambda path: path == device)
    assert found is None if device is None else f'pip install "jax[{extra}]=={jax.__version__}"' in found


@pytest.mark.skipif(jax.devices()[0].platform != "cpu", reason="JAX sees an accelerator")
def test_auto_is_numpy_where_there_is_no_accelerator():
    assert on_device.choose_engine("auto") == "numpy"


def test_prompts_as_editors_write_them(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfin the\r\n\r\na thing\r\nit\r\n")
    assert choose_prompts(parse(prompt_file=str(path), engine="jax", batch=3)) == ["in the", "a thing", "it"]
    line = refusal(choose_prompts, parse(prompt_file=str(path), engine="jax", batch=4))
    assert line.startswith("--batch 4 needs as many prompts, and ")
    assert " has 3" in line
    path = tmp_path / "prompts.JSONL"  # which is the same without a batch
    path.write_text('{"prompt": "in the"}\n{"prompt": "a thing"}\n')
    assert choose_prompts(parse(prompt_file=str(path))) == ["in the"]


@pytest.mark.parametrize("address", ["nonsense", "localhost:", "localhost:port", "localhost:0", "localhost:99999"])
@pytest.mark.parametrize("count", ["two", "-1", "99999999999"])
def test_addresses_and_counts_that_are_none(monkeypatch, address, count):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    monkeypatch.setenv("JAX_NUM_PROCESSES", count)
    assert "must be host:port of the first process" in refusal(processes.start_processes)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1234")
    assert "JAX_NUM_PROCESSES must be a whole number" in refusal(processes.start_processes)


def test_several_processes_exclude_a_mesh_of_one_and_times(monkeypatch):
    line = refusal(sharding.make_mesh, 1, n_processes=lambda: 2)
    assert line.startswith("--mesh 1 leaves some processes without a device: --mesh ")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    assert "--K auto goes by measured times" in refusal(on_device.check, parse(K="auto").replaced(engine="jax"))


def test_greedy_texts_that_part_are_reported():
    """By a model whose two best logits, of 2 and 3, are 0.25 apart; the line says whether rounding explains that."""
    logits = np.array([[0, 1, 4.25, 4.5]], np.float32)
    target = SimpleNamespace(with_probs=lambda to_probs: lambda x: to_probs(logits))
    prompts, texts = [[5, 6], [7]], [[3, 3], [3, 3, 3]]
    assert greedy_differences(prompts, target, texts, texts, 1.0) == []
    for dtype, verdict in (
        ("bfloat16", "as near as rounding can bring into another order."),
        ("float32", "a defect, as rounding decides where they are at most 0.001 apart."),
    ):
        tolerance = formats.on_jax(dtype).tolerance
        [line] = greedy_differences(prompts, target, texts, [[3, 3], [3, 2, 3]], tolerance)
        where = "for prompt 2, first difference at position 2: token 3 or 2, where the two best logits are 0.25 apart"
        assert line == f"{where}: {verdict}"


# ---- Several processes -----------------------------------------------------------------------------------------------


@pytest.fixture
def start(tiny_pair, tmp_path):
    """(number, flags, settings) -> the process of that number of two; its standard error goes to .err, a file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
    models = ["--target_model_size=target", "--draft_model_size=draft", f"--models_dir={tiny_pair}"]

    def start(number, *flags, **settings):
        env = environment | {"JAX_PROCESS_ID": str(number), "PYTHONUNBUFFERED": "1"} | settings
        command = [sys.executable, "main.py", "--engine=jax", "--quiet", "--K=3", *models, *flags]
        path = tmp_path / f"err{number}"
        with open(path, "w") as err:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=err, text=True)
        process.err = path
        return process

    return start


@pytest.mark.slow  # which both compile everything
def test_two_processes_share_the_work_and_one_prints(start, on_jax, tmp_path):
    """Two devices in each, so that both the models and the prompts are split over the processes; the texts are those of
    one device, and both place the draft by the same measured times."""
    path = tmp_path / "two.json"
    flags = {"batch": 4, "temperature": 1, "n_tokens_to_generate": N, "prompt": PROMPT}
    words = [f"--{name}={value}" for name, value in flags.items()] + ["--mesh=2", "--data_parallel=2", f"--json={path}"]
    devices = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"}
    # Another program may take the port meanwhile.
    pair = [start(i, *words, JOIN_SECONDS="60", **devices) for i in range(2)]
    (first, _), (second, _) = (process.communicate() for process in pair)
    said = [process.err.read_text() for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said[0]
    _, alone = on_jax(**flags)
    texts = [sample["text"] for sample in alone["speculative"]["samples"]]
    assert len({*texts}) == 4
    assert tokens_of(json.loads(path.read_text(encoding="utf-8"))) == tokens_of(alone)
    assert all(f"Text = {PROMPT}{text.translate(SHOWN)}\n" in first for text in texts)
    assert "Decode" not in second
    assert "Gloo" not in first + second
    placed = [[line for line in err.splitlines() if line.startswith("the draft lies")] for err in said]
    assert placed[0] == placed[1]
    assert len(placed[0]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
@pytest.mark.parametrize("process_id", [0, 1])
def test_where_one_process_ends_the_other_ends_with_a_line(process_id, number, status, start):
    """At once, and not with a trace of JAX's runtime after its hundred seconds."""
    pair = [start(i, "--mesh=2", "--prompt=the") for i in range(2)]
    for process in pair:
        while "[Gloo]" not in process.err.read_text():  # they compute together
            assert process.poll() is None, process.err.read_text()
            time.sleep(0.1)
    ended, left = pair[process_id], pair[1 - process_id]
    ended.send_signal(number)
    for process in pair:
        process.communicate()
    assert (ended.returncode, left.returncode) == (status, 2)
    last = left.err.read_text().splitlines()[-1]
    assert last.startswith("error: ")
    assert "another of the processes" in last or "Gloo" in last


@pytest.mark.slow
@pytest.mark.parametrize("process_id", [0, 1])
def test_a_process_that_nobody_joins_ends_with_a_line(process_id, start):
    """The first, which the others are to find, or another, which finds nobody."""
    process = start(process_id, JOIN_SECONDS="1")
    assert (process.communicate()[0], process.returncode) == ("", 2)
    last = process.err.read_text().splitlines()[-1]
    assert last.startswith("error: the other processes have not joined within JOIN_SECONDS=1: check JAX_COORDINATOR")
