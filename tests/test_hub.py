"""Models of the Hugging Face hub, from a server on this machine that answers as the hub does."""

import contextlib
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from test_checkpoints import CONFIG, random_tensors, write_folder
from test_download import PAUSES, Server

from checkpoints.folders import missing_files, model_folder
from plumbing import checksums, fetch, hub
from plumbing.errors import UserError
from plumbing.hub import hub_name
from utils import load_encoder_hparams_and_params, main

NAME = "owner/my-gpt2"
COMMIT = "0123456789abcdef" * 2 + "01234567"
SETTINGS = CONFIG | {"vocab_size": 2048}
UNWANTED = ("pytorch_model.bin", "README.md", "onnx/model.onnx", "model.fp16.safetensors")


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(Server):
    """A model's files: small ones are kept by git, weights as large files at another address."""

    def __init__(self, folder, name=NAME, elsewhere=""):
        super().__init__({})
        self.hashes = False  # the hub sends no Content-MD5
        self.name = name
        self.contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.contents |= dict.fromkeys(UNWANTED, b"not needed")
        self.large = [file for file in self.contents if file.endswith(".safetensors")]
        self.publish(COMMIT, elsewhere)

    def publish(self, commit, elsewhere=""):
        """The files as they are now, at this commit and on main."""
        listed = []
        for file, content in self.contents.items():
            path = self.path(file, commit)
            entry = {"rfilename": file, "size": len(content), "blobId": git_hash(content)}
            self.files[path] = content
            if file in self.large:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
                self.files[f"/cdn/{sha256}"] = content
                headers = {"Location": f"{elsewhere}/cdn/{sha256}", "X-Linked-ETag": f'"{sha256}"'}
                self.faults[path] = [("status", (302, headers))] * 30
            listed.append(entry)
        answer = {"id": self.name, "sha": commit, "siblings": listed}
        for revision in ("main", commit):
            self.files[f"/api/models/{self.name}/revision/{revision}"] = json.dumps(answer).encode()

    def path(self, file, commit=COMMIT):
        return f"/{self.name}/resolve/{commit}/{file}"

    def asked_for(self, *parts):
        """How often a path that ends so was asked for."""
        return sum(path.split("?")[0].endswith(parts) for path, _ in self.requests)


@contextlib.contextmanager
def served(server):
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hugging face"))
    monkeypatch.setattr(fetch, "PAUSES", PAUSES)


@pytest.fixture
def source(tmp_path):
    return write_folder(tmp_path / "source", SETTINGS, random_tensors(SETTINGS))


@pytest.fixture
def server(source, monkeypatch):
    with served(Hub(source)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def models_dir(tmp_path):
    return str(tmp_path / "models")


def refusal(*args):
    with pytest.raises(UserError) as caught:
        load_encoder_hparams_and_params(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names():
    assert hub_name("a/b") == hub_name("a/b@main") == ("a/b", "main")
    assert hub_name("A-1/b.c_d@v1.0") == ("A-1/b.c_d", "v1.0")
    assert hub_name("distilgpt2") == ("distilbert/distilgpt2", "main")
    assert hub_name("gpt2-xl@abc") == ("openai-community/gpt2-xl", "abc")
    for no_name in (
        "124M",
        "gpt3",
        "a/b/c",
        "/a",
        "a/",
        "a/..",
        "../a",
        "a/b@",
        "a/b@c/d",
        "a/.b",
        "a..b/c",
        "a b/c",
        "a/b\n",
    ):
        assert hub_name(no_name) is None


def test_a_model_is_downloaded_checked_and_read(server, source, models_dir):
    _, hparams, params = load_encoder_hparams_and_params(NAME, models_dir)
    assert hparams["n_vocab"] == 2048
    np.testing.assert_array_equal(params["wte"], random_tensors(SETTINGS)["wte"])
    folder = Path(models_dir, *NAME.split("/"))
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "tokenizer.json", "model.safetensors", "checksums.json", ".lock")
    }
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in source.iterdir())
    assert {*checksums.noted(folder)} == {"config.json", "tokenizer.json", "model.safetensors"}
    n_requests = len(server.requests)
    load_encoder_hparams_and_params(NAME, models_dir)
    assert len(server.requests) == n_requests  # nothing is asked for what is there


def test_parts_and_optional_files(tmp_path, monkeypatch, models_dir):
    folder = write_folder(tmp_path / "parts", SETTINGS, random_tensors(SETTINGS), n_parts=3)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    with served(Hub(folder)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        load_encoder_hparams_and_params(NAME, models_dir)
    theirs = {path.name for path in folder.iterdir()}
    assert {path.name for path in Path(models_dir, *NAME.split("/")).iterdir()} == theirs | {"checksums.json", ".lock"}


def test_a_short_name_and_a_revision(source, monkeypatch, models_dir):
    with served(Hub(source, "distilbert/distilgpt2")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        load_encoder_hparams_and_params("distilgpt2", models_dir)
        load_encoder_hparams_and_params(f"distilgpt2@{COMMIT}", models_dir)
    assert sorted(path.name for path in Path(models_dir, "distilbert").iterdir()) == [
        "distilgpt2",
        f"distilgpt2@{COMMIT}",
    ]


def test_a_folder_of_a_short_name_comes_first(server, source, models_dir):
    shutil.copytree(source, Path(models_dir, "gpt2"))
    load_encoder_hparams_and_params("gpt2", models_dir)
    assert not server.requests


def test_an_interrupted_download_goes_on(server, models_dir):
    large = hashlib.sha256(server.contents["model.safetensors"]).hexdigest()
    server.faults[f"/cdn/{large}"] = [("close", 70_000), ("reset", 20_000)]
    load_encoder_hparams_and_params(NAME, models_dir)
    assert ("bytes=70000-") in [range_ for path, range_ in server.requests if path == f"/cdn/{large}"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_what_is_not_the_listed_file_never_gets_its_name(name, server, models_dir):
    content = server.contents[name]
    changed = content[:-1] + bytes([content[-1] ^ 1])
    path = server.path(name)
    if name in server.large:
        path = f"/cdn/{hashlib.sha256(content).hexdigest()}"
    server.files[path] = changed
    line = refusal(NAME, models_dir)
    assert name in line and ("sha256" in line or "not the file that the hub lists" in line)
    assert not Path(models_dir, NAME, name).exists()


def test_a_model_is_of_one_commit(server, models_dir):
    """Weights that were pushed between two runs are not mixed with settings from before."""
    server.faults[server.path("model.safetensors")] = [("status", (404, {}))]
    assert "the hub has no owner/my-gpt2" in refusal(NAME, models_dir)
    server.contents["config.json"] += b" "
    server.publish("f" * 40)
    hub.listing.cache_clear()
    line = refusal(NAME, models_dir)
    assert "config.json is not that of owner/my-gpt2 at commit fffffff: delete" in line
    assert server.asked_for("model.safetensors") == 1


ANSWERS = {
    "gated": (403, {"X-Error-Code": "GatedRepo"}, "is gated: accept its conditions at"),
    "gated, without a token": (401, {"X-Error-Code": "GatedRepo"}, "is gated: accept its conditions at"),
    "private, or none": (401, {"X-Error-Code": "RepoNotFound"}, "is private, or there is none of that name"),
    "forbidden": (403, {}, "is private, or there is none of that name"),
    "missing": (404, {"X-Error-Code": "RepoNotFound"}, "the hub has no owner/my-gpt2: check the name"),
    "no such revision": (404, {"X-Error-Code": "RevisionNotFound"}, "has no revision main"),
    "something else": (418, {}, "(status 418)"),
}


@pytest.mark.parametrize(("status", "headers", "says"), ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("of", ["the list", "a file"])
def test_each_refusal_has_its_own_line(of, status, headers, says, server, models_dir):
    path = f"/api/models/{NAME}/revision/main" if of == "the list" else server.path("tokenizer.json")
    server.faults[path] = [("status", (status, headers))] * 20
    assert says in refusal(NAME, models_dir)
    assert not Path(models_dir).exists()


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b""}, "could run a program"),
        ({"config.json": b"{}", "model.safetensors": b""}, "lacks vocab.json, merges.txt"),
        ({"README.md": b""}, "is no GPT-2 as it is read here: it lacks config.json"),
    ],
)
def test_models_without_what_is_read_here(contents, says, server, models_dir):
    server.contents = contents
    server.publish(COMMIT)
    assert says in refusal(NAME, models_dir)


@pytest.mark.parametrize(
    "answer",
    [b"", b"<html>", b"[]", b'{"sha": "main", "siblings": []}', b'{"siblings": []}', b"[" * 10**5]
    + [
        json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "config.json", **entry}]}).encode()
        for entry in (
            {},
            {"size": 1, "blobId": "x"},
            {"size": "1", "blobId": COMMIT},
            {"size": 1, "lfs": {"sha256": "x"}},
        )
    ],
)
def test_a_list_that_is_none(answer, server, models_dir):
    server.files[f"/api/models/{NAME}/revision/main"] = answer
    assert "is no list of the files of a model" in refusal(NAME, models_dir)


def test_settings_that_are_not_honoured_are_told_before_the_weights_come(server, models_dir):
    server.contents["config.json"] = json.dumps(SETTINGS | {"tie_word_embeddings": False}).encode()
    server.publish(COMMIT)
    assert "tie_word_embeddings is false" in refusal(NAME, models_dir)
    assert server.asked_for("model.safetensors") == 0


def test_offline(server, models_dir, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    line = refusal(NAME, models_dir)
    assert "owner/my-gpt2 is neither in" in line and "HF_HUB_OFFLINE is set" in line
    assert not server.requests and not Path(models_dir).exists()


def test_no_network(models_dir, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "cannot read http://127.0.0.1:1/api/models/owner/my-gpt2/revision/main" in refusal(NAME, models_dir)
    monkeypatch.setenv("HF_ENDPOINT", "http://example.com")
    assert "https only" in refusal(NAME, models_dir)


def test_what_their_own_libraries_have_is_read_there(server, source, models_dir, tmp_path, monkeypatch):
    cache = tmp_path / "hugging face" / "hub" / "models--owner--my-gpt2"
    shutil.copytree(source, cache / "snapshots" / COMMIT)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)
    for name in (NAME, f"{NAME}@{COMMIT}"):
        load_encoder_hparams_and_params(name, models_dir)
        assert model_folder(name, models_dir) == str(cache / "snapshots" / COMMIT)
    assert not server.requests and not Path(models_dir).exists()
    (cache / "snapshots" / COMMIT / "model.safetensors").unlink()  # half a model is not read there
    load_encoder_hparams_and_params(NAME, models_dir)
    assert server.requests and missing_files(model_folder(NAME, models_dir)) == []
    (cache / "refs" / "main").write_text("../../../..")
    assert model_folder(NAME, str(tmp_path / "other")) == str(tmp_path / "other" / "owner" / "my-gpt2")


@pytest.mark.parametrize("where", ["HF_TOKEN", "file"])
def test_the_token_goes_to_the_hub_and_to_no_other_host(where, source, models_dir, monkeypatch, tmp_path):
    """The weights lie on another host, as the hub's do, behind a certificate."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    if where == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
    else:
        os.makedirs(tmp_path / "hugging face")
        (tmp_path / "hugging face" / "token").write_text("hf_secret\n")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(cert))
    other = Server({})
    other.socket = context.wrap_socket(other.socket, server_side=True)
    with served(other), served(Hub(source, elsewhere=f"https://localhost:{other.server_port}")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        other.files.update(server.files)
        load_encoder_hparams_and_params(NAME, models_dir)
    assert server.credentials == {"Bearer hf_secret"}
    assert other.requests and other.credentials == {None}


def test_utils_downloads_and_checks_them(server, models_dir, capsys):
    main(["download", NAME, "--models_dir", models_dir])
    main(["check", NAME, "--models_dir", models_dir])
    out = capsys.readouterr().out
    assert f"{NAME} is in {Path(models_dir, NAME)}" in out and out.count("ok ") == 3
