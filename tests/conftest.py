"""The parts that several test files share: the fixtures' place, the bundled pair, and a tiny model in every form."""

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's threads would wait for each other, as several tests run at once

import numpy as np
import pytest
from checkpoint_files import MODELS, PROMPT, USUAL, write_safetensors, write_small_files, write_tf
from enumeration import Clock

import main
from speculative import load_pair
from speculative.checkpoints.weights import checkpoint_shapes
from speculative.engines import contract, model, network
from speculative.engines.c.engine import CEngine
from speculative.lookahead import learned
from speculative.report import expected, measuring, turns
from speculative.run import steps
from speculative.run.options import DEMO
from speculative.support.errors import guarded
from speculative.verify import sampled
from speculative.verify.checks import PROMPTS, verify
from utils import load_encoder_hparams_and_params

DEMO["target_model_size"] = "tiny-target"  # not padded, which would cost each test seconds

# Compiling takes most of the time of JAX's tests. So XLA optimises nothing, and compiles a program by one thread.
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write screens and pages to the files in tests")
    parser.addoption("--long-engine-name", action="store_true", help="as on a CPU whose instructions take 40 letters")


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
    monkeypatch.setattr(expected, "TIMING_SECONDS", 0.0)
    monkeypatch.setattr(expected, "MOST_SECONDS", 0.0)  # so that a score withholds its speedups


@pytest.fixture(autouse=True)
def engine_name(request, monkeypatch):
    """With --long-engine-name, the engine's words take 60 letters, which break lines elsewhere."""
    if request.config.getoption("--long-engine-name"):
        name = "AVX-512 with VNNI, BF16, FP16 and some more of these"
        monkeypatch.setattr(CEngine, "words", lambda engine: f"C ({name}), {engine.threads} thread")


@pytest.fixture
def repeating(decoding_once, monkeypatch):
    """Repeat short decodes and timed calls, as the product does."""
    monkeypatch.setattr(turns, "SHORT_SECONDS", 0.5)
    monkeypatch.setattr(measuring, "TIMING_SECONDS", (0.25, 0.5))


SECONDS_OF_A_ROW = {"the target": 0.01, "the draft": 0.001, "the int8": 0.003}


@pytest.fixture
def clock(repeating, monkeypatch):
    """Time passes when a network is fed, and at no other time."""
    clock = Clock()
    monkeypatch.setattr(CEngine, "window_seconds", contract.Engine.window_seconds)  # which feeds the network
    monkeypatch.setattr(CEngine, "words", lambda engine: "C (AVX2), 2 threads")  # lines wrap alike on every machine
    for module in (contract, learned, model, sampled, measuring, steps):
        if hasattr(module, "time"):
            monkeypatch.setattr(module, "time", clock)
    for module in (turns, expected):
        monkeypatch.setattr(module, "seconds_waited", lambda: 0.0)
    monkeypatch.setattr(expected, "MOST_SECONDS", 60.0)
    feed = network.CachedNetwork.feed

    def timed(network, x, n, n_last, *tree):
        row = next(seconds for name, seconds in SECONDS_OF_A_ROW.items() if network.name.startswith(name))
        clock.now += row * (1 + 0.1 * (len(x) - n - 1))
        return feed(network, x, n, n_last, *tree)

    monkeypatch.setattr(network.CachedNetwork, "feed", timed)
    return clock


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
