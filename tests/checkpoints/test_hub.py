"""Models of the Hugging Face hub, by its own library, from a server on this machine that answers as the hub does."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_folders import CONFIG, random_tensors, sizes, write_folder
from servers import Handler, Server, served
from tiny import ROOT, random_arrays

NAME = "owner/my-gpt2"
COMMIT = "0123456789abcdef" * 2 + "01234567"
SETTINGS = CONFIG | {"vocab_size": 2048}
LOADER = """
import contextlib, io, json, os, sys
import utils
from speculative.support.errors import guarded

def load(*words):
    print(utils.load_encoder_hparams_and_params(*words)[2]["wte"].tobytes().hex()[:64])

def refresh(name):
    sys.argv = ["utils.py", "download", name, "--refresh"]
    utils.main()

for line in sys.stdin:
    function, words, os.environ["HF_TOKEN"] = json.loads(line)
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with guarded():
                {"load": load, "refresh": refresh}[function](*words)
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""


class Loader:
    """A process that loads models, one after the other: the library reads its variables when it is imported."""

    def __init__(self, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | variables
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        self.process = subprocess.Popen([sys.executable, "-c", LOADER], env=environment, **pipes)

    def __call__(self, function, *words, token=""):
        """Return the exit status, standard output and standard error of a command that would do the same."""
        print(json.dumps([function, words, token]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.communicate()


def printed(tensors):
    """What a load prints."""
    return np.ascontiguousarray(tensors["wte"]).tobytes().hex()[:64] + "\n"


def sha1(content):
    return hashlib.sha1(content).hexdigest()


class HubHandler(Handler):
    def do_HEAD(self):
        self.server.asked.append(self.path)
        super().do_HEAD()

    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()

    def end_headers(self):
        self.send_header("X-Repo-Commit", self.server.commit)
        if self.path in self.server.files:
            self.send_header("ETag", f'"{sha1(self.server.files[self.path])}"')
        super().end_headers()


def offered(contents, commit=COMMIT):
    """{name: content} -> the answers of the hub"""
    about = {"id": NAME, "sha": commit, "siblings": [{"rfilename": name} for name in contents]}
    listed = [{"type": "file", "path": name, "size": len(c), "oid": sha1(c)} for name, c in contents.items()]
    answers = {f"/api/models/{NAME}": about}
    for revision in ("main", commit, "refs%2Fpr%2F1"):
        answers |= {
            f"/api/models/{NAME}/{what}/{revision}": content
            for what, content in (("revision", about), ("tree", listed))
        }
    files = {path: json.dumps(content).encode() for path, content in answers.items()}
    return files | {f"/{NAME}/resolve/{commit}/{name}": content for name, content in contents.items()}


class Hub(Server):
    """The server, and two processes that load from it: one of them offline."""

    def __init__(self, folder):
        source = write_folder(folder / "source", SETTINGS, random_tensors(SETTINGS), n_parts=2)
        self.contents = {path.name: path.read_bytes() for path in source.iterdir()} | {"pytorch_model.bin": b"not read"}
        super().__init__(offered(self.contents))
        self.RequestHandlerClass = HubHandler
        self.home = folder / "hf"
        self.kept = folder / "kept"  # a home with the model
        variables = {"HF_ENDPOINT": self.url, "HF_HOME": str(self.home), "HF_HUB_DISABLE_XET": "1"}
        self.loader = Loader(**variables)
        self.offline = Loader(**variables, HF_HUB_OFFLINE="1")

    def begin(self, folder):
        """Begin a test, whose models_dir is in this folder, with an empty cache."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.folder = folder
        self.files, self.status, self.commit = offered(self.contents), Server.status, COMMIT
        self.forget()

    def forget(self):
        self.asked = []
        self.ranges.clear()

    def run(self, name=NAME, offline=False, **more):
        """Load a model -> the exit status, standard output and the last line of standard error."""
        load = self.offline if offline else self.loader
        status, out, err = load("load", name, str(self.folder / "models"), **more)
        return status, out, err.splitlines()[-1] if err else ""

    def fill(self):
        """Download the model, or copy what an earlier test has downloaded. Return what a run prints."""
        if self.kept.exists():
            shutil.copytree(self.kept, self.home, symlinks=True)
        else:
            status, _, err = self.run()
            assert status == 0, err
            shutil.copytree(self.home, self.kept, symlinks=True)
        self.forget()
        return printed(random_tensors(SETTINGS))

    def refresh(self):
        """Ask for a newer version. Return what is said."""
        status, _, err = self.loader("refresh", NAME)
        assert status == 0, err
        return err


@pytest.fixture(scope="module")
def hub_of_module(tmp_path_factory):
    with served(Hub(tmp_path_factory.mktemp("hub"))) as hub:
        yield hub
        hub.loader.end()
        hub.offline.end()


@pytest.fixture
def hub(hub_of_module, tmp_path):
    hub_of_module.begin(tmp_path)
    return hub_of_module


def test_a_model_is_downloaded_to_their_cache_and_read_there(hub, tmp_path):
    status, out, err = hub.run()
    assert (status, out) == (0, printed(random_tensors(SETTINGS))), err
    fetched = {path.rpartition("/")[2] for path, _ in hub.ranges}
    assert "pytorch_model.bin" not in fetched
    assert "model.safetensors.index.json" in fetched
    assert not (tmp_path / "models").exists()
    assert hub.run(f"{NAME}@refs/pr/1")[:2] == (0, out)


def newer(hub):
    """The hub has another version of the model. Return what a run prints with it."""
    settings = SETTINGS | {"n_layer": 1}
    tensors = random_arrays(sizes(settings), seed=1)
    folder = write_folder(Path(hub.folder, "newer"), settings, tensors, n_parts=2)
    commit = COMMIT[::-1]
    files = offered({path.name: path.read_bytes() for path in folder.iterdir()}, commit)
    hub.files = hub.files | files
    hub.commit = commit
    return printed(tensors)


def test_nothing_is_asked_for_what_is_in_the_cache(hub):
    """Whether or not the hub answers, and if its branch has moved. A newer version is asked for."""
    out = hub.fill()
    other = newer(hub)
    for offline in (False, True):
        assert hub.run(offline=offline)[:2] == (0, out)
    assert hub.asked == []
    hub.refresh()
    assert hub.run()[:2] == (0, other)


def test_a_line_says_what_will_be_downloaded(hub):
    [line] = [line for line in hub.refresh().splitlines() if line.startswith("downloading")]
    to = f"to {hub.home}/hub, where [0-9.]+ GB are free; Ctrl-C .*"
    assert re.fullmatch(rf"downloading {NAME} from http.*: 0 MB {to}", line)
    assert "downloading" not in hub.refresh()  # nothing is missing


@pytest.mark.parametrize("name", ["tokenizer.json", "model-00001-of-00002.safetensors"])
def test_a_file_that_was_cut_in_the_cache_is_named_and_comes_back(name, hub):
    out = hub.fill()
    [path] = hub.home.glob(f"hub/models--owner--my-gpt2/snapshots/*/{name}")
    blob = path.resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    status, _, line = hub.run()
    assert status == 2
    n = len(hub.contents[name])
    assert line == f"error: {path}: has {n - 1:,} bytes of {n:,}; delete {blob} to have it downloaded again"
    blob.unlink()
    assert hub.run()[:2] == (0, out)


def test_a_token_that_the_hub_does_not_accept_is_named(hub):
    hub.files = {}
    hub.status = 401
    status, _, line = hub.run(token="hf_old")
    assert status == 2
    assert line.startswith(f"error: {NAME}: the hub does not accept your token, which may have expired: ")
    assert "token" not in hub.run()[2].partition("my-gpt2:")[2][:20]


def test_a_model_without_safetensors_is_named_by_what_it_has(hub, tmp_path):
    hub.commit = "f" * 40  # the library remembers the files of a commit
    without = {name: hub.contents[name] for name in hub.contents if "safetensors" not in name}
    hub.files = offered(without, hub.commit)
    status, _, line = hub.run()
    assert status == 2
    assert "lacks model.safetensors; it has pytorch_model.bin: with transformers, once: AutoModelForCausalLM" in line
    assert f"from_pretrained('{NAME}').save_pretrained('{tmp_path}/models/{NAME}')" in line


def test_each_refusal_is_one_line(hub):
    status, _, line = hub.run(offline=True)
    assert status == 2
    assert line.startswith(f"error: {NAME}: ")
    assert "offline" in line.lower()
    config = json.dumps(SETTINGS | {"model_type": "llama"}).encode()
    hub.files[f"/{NAME}/resolve/{COMMIT}/config.json"] = config
    status, _, line = hub.run()
    assert (status, 'model_type is "llama"' in line) == (2, True)
    assert not [path for path, _ in hub.ranges if "model-0" in path]  # before the weights come
