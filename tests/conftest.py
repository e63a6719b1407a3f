"""The parts that several test files share: the fixtures' place, the bundled pair, and a tiny model in every form."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import struct
import threading
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's threads would wait for each other, as several tests run at once

import numpy as np
import pytest
from tiny import vocabulary

import main
from speculative import load_pair
from speculative.checkpoints.openai import masked_crc32c
from speculative.checkpoints.shapes import checkpoint_shapes
from speculative.report import measuring, turns
from speculative.run.options import DEMO
from speculative.support.errors import guarded
from speculative.verify.checks import PROMPTS, verify
from utils import load_encoder_hparams_and_params

MODELS = Path(__file__).parents[1] / "models"

DEMO["target_model_size"] = "tiny-target"  # not padded, which would cost each test seconds
PROMPT = "the thing in"
USUAL = {"target_model_size": "target", "draft_model_size": "draft", "threads": 1, "prompt": PROMPT}
USUAL["n_tokens_to_generate"] = 12

# Compiling takes most of the time of JAX's tests. So XLA optimises nothing, and compiles a program by one thread.
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write screens and pages to tests/golden*")


def pytest_configure(config):
    """Set the environment of the tests and of the processes that they start. The slow tests leave XLA as it is."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # a name that looks like one of the Hugging Face hub is not looked up there
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):  # servers are on this machine
        os.environ.pop(name, None)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(config.rootpath / ".pytest_cache" / "jax")
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**28)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.02"
    with contextlib.suppress(ImportError):  # an emulated ARM does not load its compiled part
        from hypothesis import settings

        settings.register_profile("default", deadline=None)  # no test has a limit of time
        settings.load_profile("default")
    if config.option.markexpr.startswith("not slow"):
        os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)


@pytest.fixture(autouse=True)
def decoding_once(monkeypatch):
    """Repeat no decode for the sake of its time. A test of the repeats asks for `repeating`."""
    monkeypatch.setattr(turns, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr(measuring, "TIMING_SECONDS", (0.0, 0.5))


@pytest.fixture
def repeating(decoding_once, monkeypatch):
    """Repeat short decodes and timed calls, as the product does."""
    monkeypatch.setattr(turns, "SHORT_SECONDS", 0.5)
    monkeypatch.setattr(measuring, "TIMING_SECONDS", (0.25, 0.5))


@pytest.fixture(scope="session")
def shared():
    """The folder of fixtures that SHARED_DIR names. If it is not set, the tests that need it are skipped."""
    if not os.environ.get("SHARED_DIR"):
        pytest.skip("SHARED_DIR is not set")
    folder = Path(os.environ["SHARED_DIR"])
    assert folder.is_dir(), f"SHARED_DIR is {folder}, which is not a folder"
    return folder


@pytest.fixture(scope="session")
def bundled():
    """{"tiny-target" or "tiny-draft": (encoder, hparams, params)}"""
    return {name: load_encoder_hparams_and_params(name, str(MODELS)) for name in ("tiny-target", "tiny-draft")}


@pytest.fixture(scope="session")
def pair():
    """A session over the bundled pair. A file whose tests need other models defines its own."""
    return load_pair(demo=True, threads=1)


@pytest.fixture(scope="session")
def tiny_hparams():
    """A GPT-2 of 35,712 parameters: 143 KB, room enough for a fault in the middle."""
    return {"n_vocab": 260, "n_ctx": 16, "n_embd": 32, "n_head": 4, "n_layer": 2}


@pytest.fixture(scope="session")
def tiny_arrays(tiny_hparams):
    """Its tensors under OpenAI's names."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in checkpoint_shapes(tiny_hparams).items()}


@pytest.fixture(scope="session")
def tiny_files(tiny_hparams, tiny_arrays, tmp_path_factory):
    """Its files: {name: bytes}, with the weights in both forms."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tf(folder, tiny_arrays)
    write_safetensors(folder / "model.safetensors", tiny_arrays)
    write_small_files(folder, tiny_hparams)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="session")
def tiny_pair(tiny_hparams, tmp_path_factory):
    """A models_dir of two folders, target and draft: a GPT-2 of two random layers, and the first of them alone."""
    models_dir, rng = tmp_path_factory.mktemp("pair"), np.random.default_rng(0)
    hparams = tiny_hparams | {"n_ctx": 128}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in checkpoint_shapes(hparams).items()}
    for model_size, n_layer in (("target", 2), ("draft", 1)):
        folder = models_dir / model_size
        folder.mkdir()
        write_small_files(folder, hparams | {"n_layer": n_layer})
        names = checkpoint_shapes(hparams | {"n_layer": n_layer})
        write_safetensors(folder / "model.safetensors", {name: arrays[name] for name in names})
    return models_dir


@pytest.fixture(scope="session")
def pair_words(tiny_pair):
    """The tiny pair, as the words of a command line."""
    return f"--models_dir={tiny_pair} --target_model_size=target --draft_model_size=draft --threads=1".split()


@pytest.fixture
def command(capsys):
    """words -> (exit status, standard output, standard error) of main.py, in this process."""
    handler = signal.getsignal(signal.SIGTERM)

    def command(*words):
        try:
            with guarded():
                main.main(**main.read_command(main.__doc__, list(words)))
            status = 0
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    yield command
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def run_verify(tiny_pair, capsys):
    """flags -> (exit status, the output of --verify), with few draws."""

    def run_verify(draws=10, limits=None, **flags):
        options = {name: value for name, value in USUAL.items() if name != "prompt"} | flags
        pair = load_pair(**options, models_dir=tiny_pair)
        try:
            verify(pair, PROMPT, PROMPTS[:1], draws=draws, **limits or {})
            status = 0
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().out

    return run_verify


def write_small_files(folder, hparams):
    """hparams.json, and a vocabulary of 260 tokens: the bytes, three merges and <|endoftext|>."""
    (folder / "hparams.json").write_text(json.dumps(hparams))
    merges = [("t", "h"), ("th", "e"), ("i", "n")]
    (folder / "encoder.json").write_text(json.dumps(vocabulary(merges)))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *map(" ".join, merges), ""]))


def write_tf(folder, arrays, prefix="model.ckpt"):
    """OpenAI's form, as TensorFlow's SaveV2 writes it: see speculative/checkpoints/openai.py. The import of TensorFlow
    takes seconds, so test_utils.py alone asks it whether this is its form."""
    entries = {b"": b"\x08\x01\x1a\x02\x08\x01"}  # one data file
    data = b""
    for name in sorted(arrays):
        array = arrays[name][None] if name.endswith("/w") else arrays[name]
        sizes = [b"\x08" + varint(n) for n in array.shape]
        shape = b"".join(b"\x12" + varint(len(size)) + size for size in sizes)
        content = array.tobytes()
        entry = b"\x08\x01\x12" + varint(len(shape)) + shape
        if data:
            entry += b"\x20" + varint(len(data))
        entry += b"\x28" + varint(len(content)) + b"\x35" + checksum(content)
        entries[f"model/{name}".encode()] = entry
        data += content
    table = block(entries)
    places = [varint(0) + varint(len(table) - 5)]  # a block's checksum and the byte before it do not count
    for content in ({}, {max(entries): places[0]}):  # no other tables, and the index of the blocks
        places.append(varint(len(table)) + varint(len(block(content)) - 5))
        table += block(content)
    footer = (places[1] + places[2]).ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    (folder / f"{prefix}.index").write_bytes(table + footer)
    (folder / f"{prefix}.data-00000-of-00001").write_bytes(data)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{prefix}"\nall_model_checkpoint_paths: "{prefix}"\n')


def block(entries):
    """A block of a LevelDB table: of each key what differs from the one before, the place of the first, and their
    number."""
    content, before = b"", b""
    for key, value in entries.items():
        n_shared = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, key, strict=False))])
        new = key[n_shared:]
        content += varint(n_shared) + varint(len(new)) + varint(len(value)) + new + value
        before = key
    content += struct.pack("<2I", 0, 1) + b"\0"  # not compressed
    return content + checksum(content)


def varint(n):
    return bytes([n]) if n < 128 else bytes([128 + n % 128]) + varint(n // 128)


def checksum(content):
    return struct.pack("<I", masked_crc32c(content))


def write_safetensors(path, arrays, prefix=""):
    """Hugging Face's form, written by their library."""
    from safetensors.numpy import save_file

    save_file({prefix + hugging_face_name(name): array for name, array in arrays.items()}, path)


def hugging_face_name(name):
    """ "h0/attn/c_attn/w" -> "h.0.attn.c_attn.weight"."""
    *path, last = name.split("/")
    if not path:
        return f"{last}.weight"
    path = [*("h", path[0][1:]), *path[1:]] if path[0][1:].isdigit() else path
    return ".".join([*path, "bias" if last == "b" else "weight"])


@pytest.fixture(scope="session")
def browser():
    """Chromium with its chromedriver, as Debian packages them (apt-get install chromium chromium-driver)."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no Chromium with chromedriver is installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    quiet = ("no-first-run", "disable-background-networking", "disable-component-update", "disable-sync")
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "window-size=1280,900", *quiet):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as driver:
        yield driver


@pytest.fixture
def serving():
    """bench -> the address at which it answers as --serve does, until the end of the test; .stop() ends it before."""
    pytest.importorskip("uvicorn")
    from speculative.cli.workbench import server

    with contextlib.ExitStack() as servers:

        def serving(bench):
            listening = servers.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            answering = server(bench)
            thread = threading.Thread(target=answering.run, args=([listening],))
            thread.start()

            @servers.callback
            def end():
                answering.should_exit = answering.force_exit = True
                thread.join()

            while not answering.started:
                time.sleep(0.01)
            return f"http://{address}/"

        serving.stop = servers.close
        yield serving
