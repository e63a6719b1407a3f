"""main.py --engine jax: the whole command, on the devices of JAX."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_flags import parse

import main
from plumbing.errors import UserError
from speculative.cli import checks
from speculative.cli import devices as on_device
from speculative.cli.prompts import choose_prompts
from speculative.engines import memory
from speculative.measure import verify

pytest.importorskip("jax")
import jax

from speculative.engines.jax import model as jax_model
from speculative.engines.jax import processes, sharding
from speculative.engines.jax.pair import greedy_differences

PROMPTS = ["the thing in", "a", "she was not in the house", "one more"]
N = 9


@pytest.fixture(scope="module")
def run_json(tiny_pair, tmp_path_factory):
    """flags -> (what main() prints, what it writes)."""
    path = tmp_path_factory.mktemp("run") / "run.json"
    usual = {"prompt": PROMPTS[0], "target_model_size": "target", "draft_model_size": "draft", "models_dir": tiny_pair}
    usual |= {"n_tokens_to_generate": N, "K": 3, "engine": "jax", "json": path}

    def run_json(**flags):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main.main(**{flag: str(value) for flag, value in (usual | flags).items() if value is not None})
        return out.getvalue(), json.loads(path.read_text(encoding="utf-8"))

    return run_json


@pytest.fixture(scope="module")
def on_numpy(run_json):
    """flags -> the same for the other engine."""
    return partial(run_json, engine="numpy", threads=1)


@pytest.fixture(scope="module")
def one_run(run_json):
    """Of a prompt, on the device. What is compiled for it does for most tests here."""
    return run_json(n_tokens_to_generate=24)


@pytest.fixture(scope="module")
def same_on_numpy(on_numpy):
    return on_numpy(n_tokens_to_generate=24)


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return path


def tokens_of(document, decoder="speculative"):
    return [sample["tokens"] for sample in document[decoder]["samples"]]


def test_the_text_is_that_of_numpy(one_run, same_on_numpy):
    out, found = one_run
    assert "first difference" not in out and "Speedup = " in out
    assert tokens_of(found) == tokens_of(found, "autoregressive") == tokens_of(same_on_numpy[1])


@pytest.mark.parametrize(
    "flags",
    [
        {"drafter": "prompt_lookup+model"},
        {"n_samples": 2, "stop": "e"},
        pytest.param({"K": "auto"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_what_the_loop_on_the_device_does_not_know_goes_by_the_python_loop(run_json, on_numpy, flags):
    """And n_samples and stop texts go by either."""
    _, found = run_json(**flags)
    _, expected = on_numpy(**flags)
    assert tokens_of(found) == tokens_of(found, "autoregressive") == tokens_of(expected)


def test_a_batch_is_its_prompts(run_json, on_numpy, prompt_file, monkeypatch):
    """In no more memory than they need."""
    monkeypatch.setattr(memory, "available", lambda: 10**7)
    out, document = run_json(prompt=None, prompt_file=prompt_file, batch=3)
    assert [prompt["text"] for prompt in document["prompts"]] == PROMPTS and document["prompt"]["text"] == PROMPTS[0]
    assert tokens_of(document) == tokens_of(document, "autoregressive")
    for prompt, tokens, sample in zip(PROMPTS, tokens_of(document), document["speculative"]["samples"], strict=True):
        [alone] = tokens_of(on_numpy(prompt=prompt)[1])
        assert tokens == alone and out.count(f"Text = {prompt}{sample['text']}\n") == 2
    assert document["figures"]["tokens"] == 36 and 0.5 < document["figures"]["useful_row_calls"] <= 1
    assert out.index("Speculative Decode") < out.index("Speedup = ")
    with pytest.raises(UserError, match=r"of memory, and .* are free: take smaller models or a smaller --batch"):
        run_json(batch=4096)


def test_a_stop_text_ends_a_prompt_of_a_batch_as_it_does_one_alone(run_json, on_numpy, prompt_file):
    stop = on_numpy(prompt=PROMPTS[1])[1]["speculative"]["samples"][0]["text"][2:4]
    _, document = run_json(prompt=None, prompt_file=prompt_file, batch=3, stop=stop)
    assert len(tokens_of(document)[1]) < N and tokens_of(document) == tokens_of(document, "autoregressive")
    for prompt, sample in zip(PROMPTS, document["speculative"]["samples"], strict=True):
        [alone] = on_numpy(prompt=prompt, stop=stop)[1]["speculative"]["samples"]
        assert (sample["text"], sample["tokens"]) == (alone["text"], alone["tokens"]) and stop not in sample["text"]


def test_what_is_not_known_is_null_and_not_printed(one_run, same_on_numpy):
    out, document = one_run
    f, iterations = document["figures"], document["speculative"]["samples"][0]["iterations"]
    assert [f["seconds"][part] for part in ("drafting", "scoring", "rest")] == [None] * 3
    assert {i[key] for i in iterations for key in ("drafting", "scoring", "seconds")} == {None}
    assert "drafting" not in out and ("Predicted = " in out) != f["busy"]
    assert 0 < f["seconds"]["prefill"] < f["seconds"]["speculative"]
    if not f["busy"]:  # on a busy machine a window may seem cheaper than a row, and nothing is predicted
        assert f["c"] == f["t_draft"] / f["t_target"] > 0 and f["beta"]["4"] > 0 and f["predicted_leviathan"] > 0
    assert [len(i["alpha"]) for i in iterations] == [min(i["accepted"] + 1, i["drafted"]) for i in iterations]
    expected = same_on_numpy[1]["figures"]
    for key in ("r", "alpha", "alpha_by_position", "matching", "met_by_position", "tokens_per_iteration_histogram"):
        assert f[key] == pytest.approx(expected[key]), key


def test_the_machine_names_the_device(one_run, same_on_numpy):
    found, numpy_machine = one_run[1]["machine"], same_on_numpy[1]["machine"]
    names = ("engine", "device_platform", "device_kind", "devices", "jax")
    assert [found[name] for name in names] == ["jax", "cpu", "cpu", jax.device_count(), jax.__version__]
    assert numpy_machine["engine"] == "numpy" and "jax" not in numpy_machine


@pytest.mark.slow  # compiles a loop for each of four lookaheads, twice
def test_verify_has_a_form_for_this_engine(tiny_pair, monkeypatch, capsys):
    from speculative.engines.jax import loop as jax_loop

    monkeypatch.setattr(verify, "verify", partial(verify.verify, draws=25))
    monkeypatch.setattr(verify, "PROMPTS", verify.PROMPTS[:1])
    flags = {"verify": True, "engine": "jax", "target_model_size": "target", "draft_model_size": "draft", "K": 2}
    main.main(**flags, models_dir=tiny_pair)
    out = capsys.readouterr().out
    assert "passed  greedy" in out and "rows" not in out and "would have shown" in out
    accept = jax_loop.accept

    def wrong(x_draft, p, q, k, *args):
        accepted, token = accept(x_draft, p, q, k, *args)
        return accepted, (token + (accepted < k)) % q.shape[1]  # another token than was resampled

    monkeypatch.setattr(jax_loop, "accept", wrong)
    with pytest.raises(SystemExit):
        main.main(**flags, models_dir=tiny_pair)
    assert "FAILED  greedy" in capsys.readouterr().out


@pytest.mark.slow  # compiles both loops anew, as it samples
def test_one_prompt_several_times_is_sampled_anew_for_each(run_json):
    _, document = run_json(batch=3, temperature=1, seed=1)
    assert len({tuple(tokens) for tokens in tokens_of(document)}) == 3
    assert tokens_of(run_json(batch=3, temperature=1, seed=1)[1]) == tokens_of(document)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch": 2, "engine": "numpy"}, "--batch needs the loop on the device"),
        ({"batch": 2, "K": "auto"}, "--batch needs the loop on the device"),
        ({"batch": 2, "drafter": "prompt_lookup"}, "--batch needs the loop on the device"),
        ({"batch": 2, "stream": True}, "--batch and --stream cannot be combined"),
        ({"batch": 4097}, "--batch must be a whole number from 1 to 4096"),
        ({"threads": 2}, "--threads is for --engine numpy"),
        ({"batch": 4, "data_parallel": 3}, "--data_parallel 3 gives each copy of the models as many prompts"),
        ({"batch": 512, "data_parallel": 512}, "--mesh 1 --data_parallel 512 needs 512 devices"),
        (
            {"data_parallel": 2, "engine": "numpy"},
            "--data_parallel is of no use here: it is about the devices of --engine jax",
        ),
        ({"mesh": 2, "engine": "numpy"}, "--mesh is of no use here: it is about the devices of --engine jax"),
        ({"mesh": 512}, "--mesh 512 needs 512 devices"),
    ],
)
def test_flags_that_do_not_go_together(run_json, flags, message):
    with pytest.raises(UserError, match=message):
        run_json(**flags)


@pytest.mark.parametrize(("free", "fits"), [(10**4, False), (10**9, True), (None, True)])
def test_a_model_that_does_not_fit_onto_the_device(monkeypatch, free, fits):
    """Whatever memory the machine itself has."""
    stats = None if free is None else {"bytes_limit": free + 500, "bytes_in_use": 500}
    device = SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    monkeypatch.setattr(jax_model, "devices", lambda n, flags="": [device])
    monkeypatch.setattr(memory, "available", lambda: 0)
    hparams = {"n_vocab": 260, "n_ctx": 128, "n_embd": 12, "n_head": 3, "n_layer": 2}
    with (
        contextlib.nullcontext()
        if fits
        else pytest.raises(UserError, match=r"the models need .* GB of memory, and 0.0 GB are free")
    ):
        checks.check_memory([(hparams, "float32")], "jax", 1, 18)


@pytest.mark.parametrize(("device", "extra"), [("/dev/nvidia0", "cuda12"), ("/dev/accel0", "tpu"), (None, None)])
def test_an_accelerator_that_jax_does_not_see_is_named(device, extra):
    found = on_device.unused_accelerator(exists=lambda path: path == device)
    assert found is None if device is None else f'pip install "jax[{extra}]=={jax.__version__}"' in found


@pytest.mark.skipif(jax.devices()[0].platform != "cpu", reason="JAX sees an accelerator")
def test_auto_is_numpy_where_there_is_no_accelerator():
    assert on_device.choose_engine("auto") == "numpy"


def test_a_window_wider_than_the_text_costs_no_more(run_json, on_numpy):
    flags = {"n_tokens_to_generate": 4, "K": 10**18 - 1}
    assert tokens_of(run_json(**flags)[1]) == tokens_of(on_numpy(**flags)[1])


def test_prompts_as_editors_write_them(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfin the\r\n\r\na thing\r\nit\r\n")
    assert choose_prompts(parse(prompt_file=str(path), engine="jax", batch=3)) == ["in the", "a thing", "it"]
    with pytest.raises(UserError, match=r"--batch 4 needs as many prompts, and .* has 3"):
        choose_prompts(parse(prompt_file=str(path), engine="jax", batch=4))


def test_a_jsonl_file_is_the_same_without_a_batch(tmp_path):
    path = tmp_path / "prompts.JSONL"
    path.write_text('{"prompt": "in the"}\n{"prompt": "a thing"}\n')
    assert choose_prompts(parse(prompt_file=str(path))) == ["in the"]


@pytest.mark.parametrize("address", ["nonsense", "localhost:", "localhost:port", "localhost:0", "localhost:99999"])
def test_addresses_that_are_none(monkeypatch, address):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    with pytest.raises(UserError, match="must be host:port of the first process"):
        processes.start_processes()


@pytest.mark.parametrize("count", ["two", "-1", "99999999999"])
def test_counts_that_are_none(monkeypatch, count):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", count)
    with pytest.raises(UserError, match="JAX_NUM_PROCESSES must be a whole number"):
        processes.start_processes()


def test_a_mesh_that_leaves_processes_out(monkeypatch):
    monkeypatch.setattr(sharding.jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"--mesh 1 leaves some processes without a device: --mesh \d+ takes all"):
        sharding.make_mesh(1)


def test_an_automatic_K_and_several_processes_exclude_each_other(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    o = parse(engine="jax", K="auto")
    with pytest.raises(UserError, match="--K auto goes by measured times"):
        on_device.check(o)


def test_greedy_texts_that_part_are_reported():
    """By a model whose two best logits are 2 and 3 apart from one another by a margin of 0.25."""
    logits = np.array([[0, 1, 4.25, 4.5]], np.float32)
    target = SimpleNamespace(with_probs=lambda to_probs: lambda x: to_probs(logits))
    prompts, texts = [[5, 6], [7]], [[3, 3], [3, 3, 3]]
    assert greedy_differences(prompts, target, texts, texts) == []
    [line] = greedy_differences(prompts, target, texts, [[3, 3], [3, 2, 3]])
    assert line.startswith(
        "for prompt 2, first difference at position 2: token 3 or 2, where the two best logits are 0.25 apart"
    )


@pytest.mark.slow  # two processes, which both compile everything
def test_two_processes_share_the_work_and_one_prints(tiny_pair, run_json):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = ["--engine=jax", "--mesh=2", "--target_model_size=target", "--draft_model_size=draft", "--quiet", "--K=3"]
    flags += [f"--models_dir={tiny_pair}", "--n_tokens_to_generate=9", f"--prompt={PROMPTS[0]}"]
    environment = os.environ | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
    environment["JOIN_SECONDS"] = "60"  # another program may take the port meanwhile
    processes = [
        subprocess.Popen(
            [sys.executable, "main.py", *flags],
            cwd=Path(main.__file__).parent,
            env=environment | {"JAX_PROCESS_ID": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    [sample] = run_json()[1]["speculative"]["samples"]
    assert outputs[0][0].count(f"Text = {PROMPTS[0]}{sample['text']}\n") == 2
    assert "Decode" not in outputs[1][0] and "the draft lies" in outputs[0][1]
    assert "Gloo" not in outputs[0][0] + outputs[1][0]


@pytest.mark.slow  # two processes, which import JAX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("process_id", [0, 1])
def test_where_one_process_ends_the_other_ends_with_a_line(process_id, number, tiny_pair, tmp_path):
    """At once, and not with a trace of JAX's runtime after its hundred seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = ["--engine=jax", "--mesh=2", "--target_model_size=target", "--draft_model_size=draft", "--quiet", "--K=3"]
    environment = os.environ | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
    pair = []
    for i in range(2):
        with open(tmp_path / f"err{i}", "w") as err:
            process = subprocess.Popen(
                [sys.executable, "main.py", *flags, f"--models_dir={tiny_pair}", "--prompt=the"],
                cwd=Path(main.__file__).parent,
                env=environment | {"JAX_PROCESS_ID": str(i), "PYTHONUNBUFFERED": "1"},
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        pair.append(process)
    for i in range(2):
        while "[Gloo]" not in (tmp_path / f"err{i}").read_text():  # they compute together
            assert pair[i].poll() is None, (tmp_path / f"err{i}").read_text()
            time.sleep(0.1)
    pair[process_id].send_signal(number)
    for process in pair:
        process.communicate()
    ended, left = pair[process_id], pair[1 - process_id]
    assert (ended.returncode, left.returncode) == (143 if number == signal.SIGTERM else -signal.SIGKILL, 2)
    last = (tmp_path / f"err{1 - process_id}").read_text().splitlines()[-1]
    assert last.startswith("error: ") and ("another of the processes" in last or "Gloo" in last)


@pytest.mark.slow  # a process, which imports JAX
@pytest.mark.parametrize("process_id", ["0", "1"])
def test_a_process_that_nobody_joins_ends_with_a_line(process_id):
    """The first, which the others are to find, or another, which finds nobody."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        [sys.executable, "main.py", "--demo", "--engine=jax"],
        cwd=Path(main.__file__).parent,
        env=environment | {"JAX_PROCESS_ID": process_id, "JOIN_SECONDS": "1"},
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stdout) == (2, "")
    last = process.stderr.splitlines()[-1]
    assert last.startswith("error: the other processes have not joined within JOIN_SECONDS=1: check JAX_COORDINATOR")
