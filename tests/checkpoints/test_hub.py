"""Models of the Hugging Face hub, by its own library, from a server on this machine that answers as the hub does."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hub_folders import CONFIG, random_tensors, sizes, write_folder
from servers import Handler, Server, served
from tiny import python, random_arrays

NAME = "owner/my-gpt2"
COMMIT = "0123456789abcdef" * 2 + "01234567"
SETTINGS = CONFIG | {"vocab_size": 2048}
LOAD = """
import sys, utils
from speculative.support.errors import guarded
with guarded():
    print(utils.load_encoder_hparams_and_params(*sys.argv[1:])[2]["wte"].tobytes().hex()[:64])
"""


def printed(tensors):
    """What LOAD prints."""
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


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder for a cache with the model, which tests copy."""
    return tmp_path_factory.mktemp("kept") / "hf"


@pytest.fixture
def hub(kept, tmp_path):
    """The server; .run(folder) loads the model in a process of its own, whose cache is tmp_path/hf."""
    source = write_folder(tmp_path / "source", SETTINGS, random_tensors(SETTINGS), n_parts=2)
    contents = {path.name: path.read_bytes() for path in source.iterdir()} | {"pytorch_model.bin": b"not read"}
    with served(Server(offered(contents))) as server:
        server.contents, server.asked, server.commit, server.folder = contents, [], COMMIT, tmp_path
        server.RequestHandlerClass = HubHandler
        variables = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}

        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | variables

        def run(name=NAME, **more):
            done = python("-c", LOAD, name, str(tmp_path / "models"), env=environment | more)
            return done.returncode, done.stdout, done.stderr.splitlines()[-1] if done.stderr else ""

        def fill():
            """Download the model, or copy what an earlier test has downloaded. Return what a run prints."""
            if kept.exists():
                shutil.copytree(kept, tmp_path / "hf", symlinks=True)
            else:
                status, _, err = run()
                assert status == 0, err
                shutil.copytree(tmp_path / "hf", kept, symlinks=True)
            server.ranges.clear()
            server.asked.clear()
            return printed(random_tensors(SETTINGS))

        server.run, server.fill = run, fill
        server.refresh = lambda: python("utils.py", "download", NAME, "--refresh", env=environment)
        yield server


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
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        assert hub.run(**more)[:2] == (0, out)
    assert hub.asked == []
    done = hub.refresh()
    assert done.returncode == 0, done.stderr
    assert hub.run()[:2] == (0, other)


def test_a_line_says_what_will_be_downloaded(hub, tmp_path):
    done = hub.refresh()
    [line] = [line for line in done.stderr.splitlines() if line.startswith("downloading")]
    to = f"to {tmp_path}/hf/hub, where [0-9.]+ GB are free; Ctrl-C .*"
    assert re.fullmatch(rf"downloading {NAME} from http.*: 0 MB {to}", line)
    assert "downloading" not in hub.refresh().stderr  # nothing is missing


@pytest.mark.parametrize("name", ["tokenizer.json", "model-00001-of-00002.safetensors"])
def test_a_file_that_was_cut_in_the_cache_is_named_and_comes_back(name, hub, tmp_path):
    out = hub.fill()
    [path] = (tmp_path / "hf").glob(f"hub/models--owner--my-gpt2/snapshots/*/{name}")
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
    status, _, line = hub.run(HF_TOKEN="hf_old")
    assert status == 2
    assert line.startswith(f"error: {NAME}: the hub does not accept your token, which may have expired: ")
    assert "token" not in hub.run()[2].partition("my-gpt2:")[2][:20]


def test_a_model_without_safetensors_is_named_by_what_it_has(hub, tmp_path):
    hub.files = offered({name: hub.contents[name] for name in hub.contents if "safetensors" not in name})
    status, _, line = hub.run()
    assert status == 2
    assert "lacks model.safetensors; it has pytorch_model.bin: with transformers, once: AutoModelForCausalLM" in line
    assert f"from_pretrained('{NAME}').save_pretrained('{tmp_path}/models/{NAME}')" in line


def test_each_refusal_is_one_line(hub):
    status, _, line = hub.run(HF_HUB_OFFLINE="1")
    assert status == 2
    assert line.startswith(f"error: {NAME}: ")
    assert "offline" in line.lower()
    config = json.dumps(SETTINGS | {"model_type": "llama"}).encode()
    hub.files[f"/{NAME}/resolve/{COMMIT}/config.json"] = config
    status, _, line = hub.run()
    assert (status, 'model_type is "llama"' in line) == (2, True)
    assert not [path for path, _ in hub.ranges if "model-0" in path]  # before the weights come
