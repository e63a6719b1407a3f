"""Models of the Hugging Face hub, from a server on this machine that answers as the hub does."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_checkpoints import CONFIG, random_tensors, write_folder
from test_download import LIMITS, Server, certify, ranges, served, sha256, status
from tiny import python, refusal

from speculative.checkpoints.folders import missing_files, model_folder
from speculative.support import checksums
from speculative.support.hub import hub_name
from speculative.support.listing import listing
from utils import load_encoder_hparams_and_params, main

NAME = "owner/my-gpt2"
COMMIT = "0123456789abcdef" * 2 + "01234567"
SETTINGS = CONFIG | {"vocab_size": 2048}
LIST = f"/api/models/{NAME}/revision/main"


class Hub(Server):
    """A model's files: small ones are kept by git, weights as large files at another address."""

    def __init__(self, folder, name=NAME, elsewhere=""):
        super().__init__({})
        self.hashes = False  # the hub sends no Content-MD5
        self.name = name
        self.elsewhere = elsewhere
        self.contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.contents |= dict.fromkeys(("pytorch_model.bin", "README.md", "onnx/model.onnx"), b"not needed")
        self.contents["model.fp16.safetensors"] = b"not needed either"
        self.publish()

    def publish(self, commit=COMMIT):
        """The files as they are now, at this commit and on main."""
        listed = []
        for file, content in self.contents.items():
            path = self.path(file, commit)
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry = {"rfilename": file, "size": len(content), "blobId": blob}
            self.files[path] = content
            if file.endswith(".safetensors"):
                large = sha256(content)
                entry["lfs"] = {"sha256": large, "size": len(content), "pointerSize": 134}
                self.files[f"/cdn/{large}"] = content
                self.faults[path] = [
                    status(302, Location=f"{self.elsewhere}/cdn/{large}", X_Linked_ETag=f'"{large}"')
                ] * 30
            listed.append(entry)
        for revision in ("main", commit):
            answer = {"id": self.name, "sha": commit, "siblings": listed}
            self.files[f"/api/models/{self.name}/revision/{revision}"] = json.dumps(answer).encode()

    def path(self, file, commit=COMMIT):
        return f"/{self.name}/resolve/{commit}/{file}"

    def stored(self, file):
        """The path under which its bytes are."""
        large = f"/cdn/{sha256(self.contents[file])}"
        return large if large in self.files else self.path(file)


@pytest.fixture(autouse=True)
def environment(set_variable, monkeypatch, tmp_path):
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    set_variable("HF_HOME", str(tmp_path / "hugging face"))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("hub") / "source", SETTINGS, random_tensors(SETTINGS))


@pytest.fixture
def server(source, monkeypatch):
    with served(Hub(source)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def models_dir(tmp_path):
    return str(tmp_path / "models")


@pytest.fixture
def refused(models_dir):
    """Returns the line with which the model is refused."""
    return lambda: refusal(load_encoder_hparams_and_params, NAME, models_dir)


NO_NAMES = ["124M", "gpt3", "a/b/c", "/a", "a/", "a/..", "../a", "a/b@", "a/b@c/d", "a/.b", "a..b/c", "a b/c", "a/b\n"]


def test_names():
    assert hub_name("a/b") == hub_name("a/b@main") == ("a/b", "main")
    assert hub_name("A-1/b.c_d@v1.0") == ("A-1/b.c_d", "v1.0")
    assert hub_name("distilgpt2") == ("distilbert/distilgpt2", "main")
    assert hub_name("gpt2-xl@abc") == ("openai-community/gpt2-xl", "abc")
    assert {*map(hub_name, NO_NAMES)} == {None}


def test_a_model_is_downloaded_checked_and_read(server, source, models_dir, capsys):
    main(["download", NAME, "--models_dir", models_dir])
    _, hparams, params = load_encoder_hparams_and_params(NAME, models_dir)
    assert hparams["n_vocab"] == 2048
    np.testing.assert_array_equal(params["wte"], random_tensors(SETTINGS)["wte"])
    folder = Path(models_dir, *NAME.split("/"))
    theirs = {path.name for path in source.iterdir()}
    assert theirs == {"config.json", "tokenizer.json", "model.safetensors"} == {*checksums.noted(folder)}
    assert {path.name for path in folder.iterdir()} == theirs | {"checksums.json", ".lock"}
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in source.iterdir())
    n_requests = len(server.requests)
    main(["check", NAME, "--models_dir", models_dir])
    assert len(server.requests) == n_requests  # nothing is asked for what is there
    out = capsys.readouterr().out
    assert f"{NAME} is in {folder}" in out
    assert out.count("ok ") == 3


def test_parts_optional_files_a_short_name_and_a_revision(tmp_path, monkeypatch, models_dir):
    folder = write_folder(tmp_path / "parts", SETTINGS, random_tensors(SETTINGS), n_parts=3)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    theirs = {path.name for path in folder.iterdir()}
    with served(Hub(folder, "distilbert/distilgpt2")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for name in ("distilgpt2", f"distilgpt2@{COMMIT}"):
            load_encoder_hparams_and_params(name, models_dir)
            there = {path.name for path in Path(models_dir, "distilbert", name).iterdir()}
            assert there == theirs | {"checksums.json", ".lock"}
    shutil.copytree(folder, Path(models_dir, "gpt2"))  # a folder of a short name comes first
    load_encoder_hparams_and_params("gpt2", models_dir)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_what_is_not_the_listed_file_never_gets_its_name(name, server, refused, models_dir):
    content = server.contents[name]
    server.files[server.stored(name)] = content[:-1] + bytes([content[-1] ^ 1])
    line = refused()
    assert name in line
    assert "sha256" in line or "not the file that the hub lists" in line
    assert not Path(models_dir, NAME, name).exists()


def test_a_model_is_of_one_commit(server, refused):
    """Weights that were pushed between two runs are not mixed with settings from before."""
    server.faults[server.path("model.safetensors")] = [status(404)]
    assert "the hub has no owner/my-gpt2" in refused()
    server.contents["config.json"] += b" "
    server.publish("f" * 40)
    listing.cache_clear()
    assert "config.json is not that of owner/my-gpt2 at commit fffffff: delete" in refused()
    assert not ranges(server, server.path("model.safetensors", "f" * 40))


@pytest.mark.parametrize("of", [LIST, f"/{NAME}/resolve/{COMMIT}/tokenizer.json"])
@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (403, "GatedRepo", "is gated: accept its conditions at"),
        (401, "GatedRepo", "is gated: accept its conditions at"),
        (401, "RepoNotFound", "is private, or there is none of that name"),
        (403, None, "is private, or there is none of that name"),
        (404, "RepoNotFound", "the hub has no owner/my-gpt2: check the name"),
        (404, "RevisionNotFound", "has no revision main"),
        (404, "EntryNotFound", "has lost a file that it listed"),
        (418, None, "(status 418)"),
    ],
)
def test_each_refusal_has_its_own_line(of, number, code, says, server, refused, models_dir):
    server.faults[of] = [status(number, X_Error_Code=code)] * 20
    assert says in refused()
    assert not Path(models_dir, NAME, "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b""}, "could run a program"),
        ({"config.json": b"{}", "model.safetensors": b""}, "lacks vocab.json, merges.txt"),
        ({"README.md": b""}, "is no GPT-2 as it is read here: it lacks config.json"),
    ],
)
def test_models_without_what_is_read_here(contents, says, server, refused):
    server.contents = contents
    server.publish()
    assert says in refused()


ENTRIES = [{}, {"size": 1, "blobId": "x"}, {"size": "1", "blobId": COMMIT}, {"size": 1, "lfs": {"sha256": "x"}}]
ENTRIES += [{"size": size, "blobId": COMMIT} for size in (10**400, -1, True, 1.5)]
NO_LISTS = ["", "<html>", "[]", '{"sha": "main", "siblings": []}', '{"siblings": []}', "[" * 10**5]
NO_LISTS += [json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "config.json", **entry}]}) for entry in ENTRIES]


@pytest.mark.parametrize("answer", NO_LISTS, ids=lambda answer: answer[:80])
def test_a_list_that_is_none(answer, server, refused):
    server.files[LIST] = answer.encode()
    assert "is no list of the files of a model" in refused()


def test_settings_that_are_not_honoured_are_told_before_the_weights_come(server, refused):
    server.contents["config.json"] = json.dumps(SETTINGS | {"tie_word_embeddings": False}).encode()
    server.publish()
    assert "tie_word_embeddings is false" in refused()
    assert not ranges(server, server.path("model.safetensors"))


def test_offline_and_without_a_network(server, refused, models_dir, set_variable):
    base = "http://127.0.0.1:1"
    assert f"cannot download {base}/api/models/a/b/revision" in refusal(listing, hub_name("a/b"), base, LIMITS)
    assert "https only" in refusal(listing, hub_name("a/b"), "http://example.com")
    set_variable("HF_HUB_OFFLINE", "1")
    assert refused() == f"{NAME} is neither downloaded nor in the cache of Hugging Face, and HF_HUB_OFFLINE is set"
    assert not server.requests
    assert not Path(models_dir).exists()


def test_a_list_that_comes_at_the_second_time(server, models_dir):
    server.faults[LIST] = [status(429, Retry_After="0"), {"to": 50, "then": "close"}]
    load_encoder_hparams_and_params(NAME, models_dir)


def test_a_list_that_is_long_or_drips_is_not_waited_for(server):
    """Each byte comes in time, but the whole would take for ever."""
    server.faults[LIST] = [{"to": 0, "then": "drip"}, {"body": b"x" * (2**24 + 1)}]
    assert "has not come in 0 s" in refusal(listing, hub_name(NAME), server.url, LIMITS._replace(waiting=0.1))
    assert "has more than 16,777,216 bytes" in refusal(listing, hub_name(NAME), server.url, LIMITS)


def test_without_huggingface_hub_the_line_says_what_to_install(server, models_dir):
    program = "import sys, utils; sys.modules['huggingface_hub'] = None; utils.main(sys.argv[1:])"
    done = python("-c", program, "download", NAME, "--models_dir", models_dir)
    assert done.returncode == 2
    assert done.stderr == f"error: {NAME} needs huggingface_hub: pip install huggingface_hub\n"
    assert not server.requests


def test_what_their_own_libraries_have_is_read_there(server, source, models_dir, tmp_path):
    cache = tmp_path / "hugging face" / "hub" / "models--owner--my-gpt2"
    shutil.copytree(source, cache / "snapshots" / COMMIT)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)
    for name in (NAME, f"{NAME}@{COMMIT}"):
        load_encoder_hparams_and_params(name, models_dir)
        assert model_folder(name, models_dir) == str(cache / "snapshots" / COMMIT)
    assert not server.requests
    assert not Path(models_dir).exists()
    (cache / "snapshots" / COMMIT / "model.safetensors").unlink()  # half a model is not read there
    load_encoder_hparams_and_params(NAME, models_dir)
    assert server.requests
    assert missing_files(model_folder(NAME, models_dir)) == []
    shutil.copytree(source, cache / "elsewhere")  # a whole model, but out of the folder of its versions
    (cache / "refs" / "main").write_text("../elsewhere")
    assert model_folder(NAME, str(tmp_path / "other")) == str(tmp_path / "other" / "owner" / "my-gpt2")


@pytest.mark.parametrize("where", ["HF_TOKEN", "file"])
def test_the_token_goes_to_the_hub_and_to_no_other_host(where, source, models_dir, monkeypatch, tmp_path):
    """The weights lie on another host, as the hub's do, behind a certificate."""
    if where == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
    else:
        (tmp_path / "hugging face").mkdir()
        (tmp_path / "hugging face" / "token").write_text("hf_secret\n")
    other = Server({})
    certificate = certify(other, tmp_path)
    with served(other), served(Hub(source, elsewhere=f"https://localhost:{other.server_port}")) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        other.files.update(server.files)
        assert "certificate verify failed" in refusal(load_encoder_hparams_and_params, NAME, models_dir)
        assert not other.requests
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        load_encoder_hparams_and_params(NAME, models_dir)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer hf_secret"}
    assert {headers["Authorization"] for headers in other.headers} == {None}
