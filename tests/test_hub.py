"""Models of the Hugging Face hub, by its own library, from a server on this machine that answers as the hub does."""

import hashlib
import json
import os

import numpy as np
import pytest
from test_checkpoints import CONFIG, random_tensors, write_folder
from test_download import Handler, Server, served
from tiny import python

NAME = "owner/my-gpt2"
COMMIT = "0123456789abcdef" * 2 + "01234567"
SETTINGS = CONFIG | {"vocab_size": 2048}
LOAD = """
import sys, utils
from speculative.support.errors import guarded
guarded(lambda: print(utils.load_encoder_hparams_and_params(*sys.argv[1:])[2]["wte"].tobytes().hex()[:64]))
"""


def sha1(content):
    return hashlib.sha1(content).hexdigest()


class HubHandler(Handler):
    def end_headers(self):
        self.send_header("X-Repo-Commit", COMMIT)
        if self.path in self.server.files:
            self.send_header("ETag", f'"{sha1(self.server.files[self.path])}"')
        super().end_headers()


def offered(contents):
    """{name: content} -> the answers of the hub"""
    about = {"id": NAME, "sha": COMMIT, "siblings": [{"rfilename": name} for name in contents]}
    listed = [{"type": "file", "path": name, "size": len(c), "oid": sha1(c)} for name, c in contents.items()]
    answers = {f"/api/models/{NAME}": about}
    for revision in ("main", COMMIT, "refs%2Fpr%2F1"):
        answers |= {
            f"/api/models/{NAME}/{what}/{revision}": content
            for what, content in (("revision", about), ("tree", listed))
        }
    files = {path: json.dumps(content).encode() for path, content in answers.items()}
    return files | {f"/{NAME}/resolve/{COMMIT}/{name}": content for name, content in contents.items()}


@pytest.fixture
def hub(tmp_path):
    """The server; .run(folder) loads the model in a process of its own, whose cache is tmp_path/hf."""
    source = write_folder(tmp_path / "source", SETTINGS, random_tensors(SETTINGS), n_parts=2)
    contents = {path.name: path.read_bytes() for path in source.iterdir()} | {"pytorch_model.bin": b"not read"}
    with served(Server(offered(contents))) as server:
        server.contents = contents
        server.RequestHandlerClass = HubHandler
        variables = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}

        def run(name=NAME, **more):
            environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
            done = python("-c", LOAD, name, str(tmp_path / "models"), env=environment | variables | more)
            return done.returncode, done.stdout, done.stderr.splitlines()[-1] if done.stderr else ""

        server.run = run
        yield server


def test_a_model_is_downloaded_to_their_cache_and_read_there(hub, tmp_path):
    status, out, err = hub.run()
    first = np.ascontiguousarray(random_tensors(SETTINGS)["wte"]).tobytes().hex()[:64]
    assert (status, out) == (0, f"{first}\n"), err
    fetched = {path.rpartition("/")[2] for path, _ in hub.ranges}
    assert "pytorch_model.bin" not in fetched
    assert "model.safetensors.index.json" in fetched
    assert not (tmp_path / "models").exists()
    assert hub.run(f"{NAME}@refs/pr/1")[:2] == (0, out)
    hub.ranges.clear()
    assert hub.run(HF_HUB_OFFLINE="1")[:2] == (0, out)  # nothing is asked for what is there
    assert hub.ranges == []


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
