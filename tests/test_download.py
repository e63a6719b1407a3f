"""Downloading, from a real server on this machine that does to its answers what networks do to them."""

import base64
import builtins
import errno
import hashlib
import http.server
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from urllib.parse import urlsplit

import numpy as np
import pytest

import utils
from plumbing import checksums, fetch, patience
from plumbing import official as official_files
from plumbing.errors import UserError
from plumbing.fetch import check_url
from utils import TF_DATA, TF_INDEX, download_gpt2_files

ROOT = pathlib.Path(utils.__file__).parent
NAMES = ("hparams.json", "encoder.json", "vocab.bpe", TF_INDEX, TF_DATA)
DATA = f"/models/124M/{TF_DATA}"
HUB = "/openai-community/gpt2/resolve/main"


class Server(http.server.ThreadingHTTPServer):
    """Serves files {path: bytes}, and before each answer takes the next fault of that path, if there is one.

    A fault is (kind, at): what goes wrong once `at` bytes of the body are out, or the words of a header and so on.
    """

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.faults, self.requests, self.encodings, self.credentials = files, {}, [], set(), set()
        self.before_answer, self.pause, self.hashes = lambda path: None, 0.0, True
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # clients that leave are what these tests are about


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        server.encodings.add(self.headers.get("Accept-Encoding"))
        server.credentials.add(self.headers.get("Authorization"))
        path = urlsplit(self.path).path  # a proxy is asked for the whole URL
        server.before_answer(path)
        kind, at = server.faults[path].pop(0) if server.faults.get(path) else (None, None)
        if kind == "change":
            server.files[path] = at
        if path not in server.files:
            return self.answer(404, {}, b"not here")
        body = at if kind == "body" else server.files[path]
        etag = f'"{hashlib.sha1(body).hexdigest()}"'
        headers = {
            "ETag": etag,
            "Content-MD5": base64.b64encode(hashlib.md5(body).digest()).decode() if server.hashes else None,
            "Content-Type": "application/octet-stream",
        }
        start = 0
        same = self.headers.get("If-Range") in (None, etag) or kind == "ignore If-Range"
        if self.headers.get("Range") and same and kind != "ignore range":
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            headers["Content-MD5"] = base64.b64encode(hashlib.md5(body[start:]).digest()).decode()  # as the RFC has it
        if kind == "status":
            return self.answer(*at, b"try later")
        if kind == "headers":
            headers |= at
        if kind == "flip":
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        if kind == "wrong range":
            headers["Content-Range"] = f"bytes {start - 1}-{len(body) - 1}/{len(body)}"
        headers = {"Content-Length": str(len(body) - start)} | headers
        self.answer(206 if start else 200, headers, body[start:], kind, at)

    def answer(self, status, headers, body, kind=None, at=None):
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if kind in ("close", "reset", "stall"):
            body = body[:at]
        for i in range(0, len(body), 4096):
            self.wfile.write(body[i : i + 4096])
            if self.server.pause:
                time.sleep(self.server.pause)
        if kind == "stall":
            self.connection.settimeout(60)
            self.connection.recv(1)  # until the client has had enough
        if kind == "reset":
            time.sleep(0.02)  # so that what went before is not swept away with the connection
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if kind in ("close", "reset"):
            self.connection.close()


@pytest.fixture
def official(tiny_files, monkeypatch):
    """Makes the tiny model the official 124M, and returns its files under OpenAI's and Hugging Face's addresses."""
    monkeypatch.setattr(official_files, "WEIGHT_BYTES", {"124M": len(tiny_files[TF_DATA])})
    monkeypatch.setattr(utils, "MODEL_SIZES", ("124M",))
    monkeypatch.setattr(official_files, "HPARAMS", {"124M": json.loads(tiny_files["hparams.json"])})
    monkeypatch.setattr(
        official_files, "SHA256", {name: sha256(tiny_files[name]) for name in ("encoder.json", "vocab.bpe")}
    )
    monkeypatch.setattr(fetch, "TIMEOUT", (5, 5))
    monkeypatch.setattr(fetch, "PAUSES", PAUSES)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # what it does shows only when the power fails
    monkeypatch.delenv("HTTP_PROXY", raising=False)
    monkeypatch.delenv("http_proxy", raising=False)
    hparams = json.loads(tiny_files["hparams.json"])
    config = {"model_type": "gpt2", "vocab_size": hparams.pop("n_vocab"), "n_positions": hparams["n_ctx"], **hparams}
    hub = {"config.json": json.dumps(config).encode(), "model.safetensors": tiny_files["model.safetensors"]}
    hub |= {"vocab.json": tiny_files["encoder.json"], "merges.txt": tiny_files["vocab.bpe"]}
    files = {f"/models/124M/{name}": tiny_files[name] for name in NAMES}
    return files | {f"{HUB}/{name}": content for name, content in hub.items()}


PAUSES = {"backoff_factor": 0.001, "backoff_jitter": 0, "backoff_max": 0.01}


@pytest.fixture
def server(official, monkeypatch):
    with Server(official) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(official_files, "OPENAI", f"{server.url}/models")
        monkeypatch.setattr(official_files, "HUGGING_FACE", f"{server.url}/openai-community")
        yield server
        server.shutdown()


@pytest.fixture
def folder(server, tmp_path):
    """Where the model goes. At every request and at the end, whatever has its name there must be whole."""
    folder = tmp_path / "124M"
    broken = []

    def look(path):
        there = [folder / name for name in (*NAMES, "model.safetensors") if (folder / name).exists()]
        broken.extend(path.name for path in there if path.read_bytes() not in server.files.values())

    server.before_answer = look
    yield folder
    look("")
    assert not broken


def is_whole(folder, name, server):
    return (folder / name).read_bytes() == server.files[f"/models/124M/{name}"]


def is_complete(folder, server):
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == sorted([*NAMES, checksums.NAME])
    assert checksums.noted(folder) == {name: checksums.describe(folder / name) for name in NAMES}
    return all(is_whole(folder, name, server) for name in NAMES)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def data_requests(server):
    return [range_ for path, range_ in server.requests if path.endswith(TF_DATA)]


def failure(folder, *args):
    with pytest.raises(UserError) as caught:
        download_gpt2_files("124M", folder, *args)
    line = str(caught.value)
    assert line and "\n" not in line and len(line) < 600
    return line


def test_small_files_first_and_nothing_twice(server, folder):
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)
    assert [path.rpartition("/")[2] for path, _ in server.requests] == list(NAMES)
    assert server.encodings == {"identity"}
    download_gpt2_files("124M", folder)
    assert len(server.requests) == len(NAMES)
    encoder, _, _ = utils.load_encoder_hparams_and_params("124M", folder.parent)
    assert encoder.n_vocab == 260


def test_loading_downloads_what_is_missing(server, folder):
    utils.load_encoder_hparams_and_params("124M", folder.parent)
    (folder / "vocab.bpe").unlink()
    server.requests.clear()
    utils.load_encoder_hparams_and_params("124M", folder.parent)
    assert server.requests == [("/models/124M/vocab.bpe", None)]


# ---- Broken connections and busy servers -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["close", "reset", "stall"])
@pytest.mark.parametrize("where", ["first byte", "second byte", "middle", "last byte"])
def test_interruptions_are_resumed(kind, where, server, folder, monkeypatch):
    if kind == "stall":
        monkeypatch.setattr(fetch, "TIMEOUT", (5, 0.1))
    size = len(server.files[DATA])
    at = {"first byte": 0, "second byte": 1, "middle": size // 2, "last byte": size - 1}[where]
    server.faults[DATA] = [(kind, at)]
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)
    resumed = data_requests(server)[-1]
    if kind == "reset":  # which may sweep away what was sent just before it
        assert resumed is None or 0 < int(resumed[6:-1]) <= at
    else:
        assert resumed == (f"bytes={at}-" if at else None)


def test_more_interruptions_than_retries_as_long_as_each_request_brings_something(server, folder):
    n = 3 * fetch.RETRIES
    server.faults[DATA] = [("close", 1000)] * n
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)
    assert data_requests(server) == [None, *(f"bytes={1000 * (i + 1)}-" for i in range(n))]


def test_every_file_survives_every_interruption(server, folder):
    for name in NAMES:
        third = len(server.files[f"/models/124M/{name}"]) // 3
        server.faults[f"/models/124M/{name}"] = [(kind, at) for kind in ("close", "reset") for at in (0, third, 1)]
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)
    assert not any(server.faults.values())


def test_a_connection_that_brings_nothing_for_ever(server, folder):
    """More patience where a part of the file has arrived."""
    server.faults[DATA] = [("close", 0)] * 100
    assert "more expected" in failure(folder)
    assert len(data_requests(server)) == 1 + fetch.RETRIES_AT_START
    server.faults[DATA] = [("close", 70_000)] + [("close", 0)] * 100
    assert "more expected" in failure(folder)
    assert data_requests(server)[1 + fetch.RETRIES_AT_START :] == [None, *["bytes=70000-"] * fetch.RETRIES]
    server.faults.clear()
    download_gpt2_files("124M", folder)


BUSY = [(status, {}) for status in (408, 425, 429, 500, 502, 503, 504, 599)]
BUSY += [(429, {"Retry-After": value}) for value in ("0", "nonsense", "-1", "nan", "Wed, 21 Oct 2015 07:28:00 GMT")]


@pytest.mark.parametrize("answer", BUSY, ids=str)
@pytest.mark.parametrize("resumed", [False, True])
def test_busy_servers_are_asked_again(answer, resumed, server, folder):
    server.faults[DATA] = [("close", 5000)] * resumed + [("status", answer)] * 2
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)
    assert data_requests(server)[-1] == ("bytes=5000-" if resumed else None)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(form, server, folder, monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    value = "4" if form == "seconds" else formatdate(time.time() + 4, usegmt=True)
    server.faults[DATA] = [("status", (503, {"Retry-After": value}))]
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)
    assert len(pauses) == 1 and 2 < pauses[0] <= 4


FAR = ["86400", "999999999", "9" * 5000, "Fri, 31 Dec 2099 23:59:59 GMT"]


@pytest.mark.parametrize("value", FAR, ids=lambda value: value[:20])
def test_who_asks_for_more_than_two_minutes_is_left_at_once(value, server, folder, monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    server.faults[DATA] = [("status", (429, {"Retry-After": value}))] * 50
    assert "status 429" in failure(folder)
    assert sum(pauses) <= fetch.MOST_WAITING


@pytest.mark.parametrize("value", ["nan", "-1", "garbage", "Mon, 99 Foo 9999", "0"])
def test_a_retry_after_that_says_nothing_is_a_pause_as_any_other(value, server, folder, monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr(fetch, "PAUSES", {"backoff_factor": 1, "backoff_max": 20})
    server.faults[DATA] = [("status", (503, {"Retry-After": value}))] * 100
    failure(folder)
    assert pauses == [0, 2, 4, 8, 16, 20, 20]


@pytest.mark.parametrize("at", [0, 70_000])
def test_two_minutes_of_waiting_in_all(at, server, folder, monkeypatch):
    """Of stalls and of the pauses between them, once nothing comes any more; and nothing is left where nothing came."""
    now = [0.0]
    waited = []

    class Clock:
        @staticmethod
        def monotonic():
            return now[0]

        @staticmethod
        def sleep(seconds):
            now[0] += seconds

    def stall(session, file, part, bar, waiting):
        if not waited and at:
            part.write_bytes(bytes(at))
            fetch.note_of(part).write_text("{}")
        waited.append(now[0])
        now[0] += 30
        raise fetch.TryAgain("Read timed out")

    monkeypatch.setattr(fetch, "time", Clock)
    monkeypatch.setattr(patience, "time", Clock)
    monkeypatch.setattr(fetch, "receive", stall)
    monkeypatch.setattr(fetch, "PAUSES", {"backoff_factor": 0.5, "backoff_max": 60})
    assert "Read timed out" in failure(folder)
    assert 60 < now[0] <= fetch.MOST_WAITING + 30 and len(waited) >= 3
    assert folder.exists() == bool(at)


def test_a_stall_leaves_nothing(server, folder, monkeypatch):
    monkeypatch.setattr(fetch, "TIMEOUT", (5, 0.05))
    server.faults["/models/124M/hparams.json"] = [("stall", 0)] * 50
    assert "timed out" in failure(folder)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["hparams.json", "encoder.json"])
def test_a_small_file_that_is_large_is_not_fetched(name, server, folder):
    """Its length is known before its first byte, and it is asked for once."""
    path = f"/models/124M/{name}"
    server.faults[path] = [("headers", {"Content-Length": "2000000000"})] * 50
    assert "2,000,000,000 bytes, more than 16,777,216" in failure(folder)
    assert len(server.faults[path]) == 49 and not list(folder.glob(f"{name}*"))


def test_safetensors_have_a_bound_too(server, folder):
    server.faults[f"{HUB}/model.safetensors"] = [("headers", {"Content-Length": str(10**12)})] * 50
    assert "1,000,000,000,000 bytes, more than" in failure(folder, "huggingface")


def test_what_a_server_says_is_not_obeyed_by_a_terminal(folder, capsys):
    """Its status line is quoted while it is asked again, and in the end."""

    def answer():
        while True:
            connection, _ = listener.accept()
            connection.recv(10_000)
            connection.sendall("HTTP/1.1 \033[2J\u202e\u009b31m OK\r\n\r\n".encode())
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        models_dir = str(folder.parent)
        with pytest.raises(SystemExit) as end:
            utils.main(["download", "124M", "--models_dir", models_dir, "--source", f"http://127.0.0.1:{port}"])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "") and "\\x1b[2J" in err
    assert all(char.isprintable() for char in err.replace("\n", ""))


@pytest.mark.parametrize("suffix", ["part", "part.json"])
def test_a_link_in_place_of_a_part_is_not_followed(suffix, server, folder, tmp_path):
    """A folder from elsewhere may hold one, to any file of the user's."""
    (tmp_path / "mine").write_text("mine")
    folder.mkdir()
    (folder / f"{TF_DATA}.{suffix}").symlink_to(tmp_path / "mine")
    download_gpt2_files("124M", folder)
    assert (tmp_path / "mine").read_text() == "mine" and is_complete(folder, server)


def test_pauses_grow_and_differ(server, folder, monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr(fetch, "PAUSES", {"backoff_factor": 1, "backoff_jitter": 1, "backoff_max": 20})
    server.faults[DATA] = [("status", (503, {}))] * 100
    assert "status 503" in failure(folder)
    assert len(data_requests(server)) == 1 + fetch.RETRIES
    assert all(low <= pause <= low + 1 for pause, low in zip(pauses, [0, 2, 4, 8, 16, 20, 20], strict=True))
    assert len(set(pauses[1:5])) == 4 and all(pause % 1 for pause in pauses[1:5])  # jitter


# ---- Answers that are not the file -----------------------------------------------------------------------------------

WRONG = {
    "web page": ("body", b"<!DOCTYPE html><html><body>Sign in to the hotel's network</body></html>"),
    "too short": ("body", b"some bytes"),
    "too long": ("headers", {"Content-Length": "999999999"}),
    "no length": ("headers", {"Content-Length": None}),
    "length in words": ("headers", {"Content-Length": "many"}),
    "length below 0": ("headers", {"Content-Length": "-5"}),
    "compressed": ("headers", {"Content-Encoding": "gzip"}),
    "wrong Content-MD5": ("headers", {"Content-MD5": base64.b64encode(bytes(16)).decode()}),
    "Content-MD5 of nonsense": ("headers", {"Content-MD5": "?"}),
    "first byte wrong": ("flip", 0),
    "middle byte wrong": ("flip", 0.5),
    "last byte wrong": ("flip", 1),
}


def wrong(kind, content):
    fault, at = WRONG[kind]
    return (fault, int(at * (len(content) - 1))) if fault == "flip" else (fault, at)


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_recognised_and_asked_for_again(kind, server, folder):
    server.faults[DATA] = [wrong(kind, server.files[DATA])]
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)
    assert data_requests(server) == [None, None]  # what was wrong was not built on


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", ["hparams.json", "vocab.bpe", TF_DATA])
def test_a_file_that_stays_wrong_is_never_kept(kind, name, server, folder):
    path = f"/models/124M/{name}"
    server.faults[path] = [wrong(kind, server.files[path])] * 50
    assert name in failure(folder)
    assert not (folder / name).exists()
    assert len(server.faults[path]) >= 50 - 2 - fetch.RETRIES_AT_START  # gigabytes are not downloaded for ever
    server.faults.clear()
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)


def test_a_web_page_in_place_of_a_file_of_unknown_length(server, folder):
    server.faults[f"/models/124M/{TF_INDEX}"] = [WRONG["web page"]] * 50
    assert "web page" in failure(folder)


def test_a_server_that_ignores_range(server, folder):
    server.faults[DATA] = [("close", 70_000), ("ignore range", None)]
    download_gpt2_files("124M", folder)
    assert data_requests(server) == [None, "bytes=70000-"]
    assert is_complete(folder, server)


@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_changes_between_two_requests(honest, server, folder):
    old = server.files[DATA]
    new = bytes(reversed(old))
    server.faults[DATA] = [("close", 70_000), ("change", new)]
    if not honest:  # the second answer is the end of the new file, which no hash tells from the old one's
        server.hashes = False
        server.faults[DATA] = [("close", 70_000), ("ignore If-Range", None)]
        server.before_answer = lambda path: (
            server.files.update({DATA: new}) if len(data_requests(server)) == 2 else None
        )
    download_gpt2_files("124M", folder)
    assert data_requests(server) == [None, "bytes=70000-"] + ([] if honest else [None])
    assert (folder / TF_DATA).read_bytes() == new


def test_a_rest_that_is_shorter_than_it_says(server, folder):
    server.faults[DATA] = [("close", 70_000), ("headers", {"Content-Length": "10"})]
    download_gpt2_files("124M", folder)
    assert data_requests(server) == [None, "bytes=70000-", "bytes=70010-"]
    assert is_complete(folder, server)


@pytest.mark.parametrize(
    "fault", [("wrong range", None), ("headers", {"Content-Range": None}), ("status", (416, {}))], ids=str
)
def test_the_wrong_part_of_a_file(fault, server, folder):
    server.faults[DATA] = [("close", 70_000), fault]
    download_gpt2_files("124M", folder)
    assert data_requests(server) == [None, "bytes=70000-", None]
    assert is_complete(folder, server)


@pytest.mark.parametrize("headers", [{"ETag": None}, {"ETag": 'W/"weak"'}])
def test_what_cannot_be_told_apart_is_not_resumed(headers, server, folder):
    path = f"/models/124M/{TF_INDEX}"
    server.faults[path] = [("headers", headers | {"Content-Length": "150000"})]
    download_gpt2_files("124M", folder)
    assert [request for request in server.requests if request[0] == path] == [(path, None)] * 2
    assert is_complete(folder, server)


@pytest.mark.parametrize("note", ["", "{", "[]", "null", '{"url": 1}', '{"url": "URL"}', "[" * 10**5, "\udcff"])
def test_a_damaged_note_means_starting_again(note, server, folder):
    folder.mkdir()
    note = note.replace("URL", f"{server.url}{DATA}")
    (folder / f"{TF_DATA}.part").write_bytes(bytes(1000))
    (folder / f"{TF_DATA}.part.json").write_bytes(note.encode("utf-8", "surrogateescape"))
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)


def test_a_part_longer_than_its_file(server, folder):
    server.faults[DATA] = [("close", 70_000)] + [("status", (503, {}))] * 100
    failure(folder)
    with open(folder / f"{TF_DATA}.part", "ab") as f:
        f.write(bytes(10**6))
    server.faults.clear()
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)


# ---- Addresses and sources -------------------------------------------------------------------------------------------

ELSEWHERE = ["http://example.com/x", "https:///x", "ftp://127.0.0.1/x", "file:///etc/passwd", "//example.com/x"]
ELSEWHERE += ["http://localhost:1/x", "ht%74p://example.com/x", "http://["]


@pytest.mark.parametrize("target", ELSEWHERE)
def test_redirects_that_are_not_followed(target, server, folder, monkeypatch):
    asked = set()
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kw: asked.add(args[:2]) or look_up(*args, **kw))
    server.faults[DATA] = [("status", (302, {"Location": target}))] * 20
    assert TF_DATA in failure(folder)
    assert asked == {("127.0.0.1", server.server_port)}


def test_redirects_that_are_followed(server, folder):
    server.files["/elsewhere"] = server.files[DATA]
    server.faults[DATA] = [("status", (307, {"Location": "/elsewhere"})), ("status", (302, {"Location": DATA}))] * 10
    download_gpt2_files("124M", folder)
    assert ("/elsewhere", None) in server.requests
    path = f"/models/124M/{TF_INDEX}"
    server.faults[path] = [("status", (302, {"Location": path}))] * 200
    (folder / TF_INDEX).unlink()
    assert "redirects" in failure(folder)


@pytest.mark.parametrize("url", ["https://a.b/c", "http://localhost:8/x", "http://127.1.2.3/", "http://[::1]:8/"])
def test_addresses_that_may_be_asked(url):
    assert check_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://a.b/c", "http://127.0.0.1.evil.com/", "http://localhost@evil.com/", "http://localhost:8@evil.com/", "x",
        "https://", "https:///x", "https://?x", "file:///x", "", "https://[", "https://[::1", "https://a:b/", "https://:1/",
    ],
)  # fmt: skip
def test_addresses_that_may_not(url):
    with pytest.raises(UserError, match="https only"):
        check_url(url)


def test_a_size_that_the_source_lacks_fails_at_the_first_small_file(server, folder):
    line = failure(folder, f"{server.url}/elsewhere")
    assert "status 404" in line and len(server.requests) == 1


def test_hparams_of_another_model(server, folder, tiny_hparams):
    server.files["/models/124M/hparams.json"] = json.dumps(tiny_hparams | {"n_layer": 3}).encode()
    assert "not the hparams of 124M" in failure(folder)
    server.files["/models/124M/hparams.json"] = json.dumps(tiny_hparams | {"n_head": 1}).encode()  # as many parameters
    assert "not the hparams of 124M" in failure(folder)
    assert all(path.endswith("hparams.json") for path, _ in server.requests)


def test_a_mirror(server, folder):
    download_gpt2_files("124M", folder, f"{server.url}/models/")
    assert is_complete(folder, server)


def test_unknown_source_or_size(server, folder):
    for source in ("openia", "http://example.com/models"):
        line = failure(folder, source)
        assert source in line and "https only" in line
    with pytest.raises(UserError, match="official are 124M"):
        download_gpt2_files("125M", folder)
    assert not server.requests and not folder.exists()


def test_hugging_face_gives_the_same_arrays(server, folder, tiny_arrays):
    weights = f"{HUB}/model.safetensors"
    server.files["/cdn/file"] = server.files[weights]
    redirect = {"Location": "/cdn/file", "X-Linked-ETag": f'"{sha256(server.files[weights])}"'}
    server.faults[weights] = [("status", (302, redirect))] * 3
    server.faults["/cdn/file"] = [("close", 70_000), ("close", 20_000)]
    download_gpt2_files("124M", folder, "huggingface")
    assert [range_ for path, range_ in server.requests if path == "/cdn/file"] == [None, "bytes=70000-", "bytes=90000-"]
    _, hparams, params = utils.load_encoder_hparams_and_params("124M", folder.parent)
    assert hparams == {"n_vocab": 260, "n_ctx": 16, "n_embd": 32, "n_head": 4, "n_layer": 2}
    np.testing.assert_array_equal(params["blocks"][1]["mlp"]["c_proj"]["w"], tiny_arrays["h1/mlp/c_proj/w"])
    np.testing.assert_array_equal(params["wte"], tiny_arrays["wte"])


def test_the_hash_that_hugging_face_names_is_checked(server, folder):
    weights = f"{HUB}/model.safetensors"
    server.files["/cdn/file"] = server.files[weights]
    server.faults[weights] = [("status", (302, {"Location": "/cdn/file", "X-Linked-ETag": f'"{"0" * 64}"'}))] * 50
    assert "sha256" in failure(folder, "huggingface")
    assert not (folder / "model.safetensors").exists()


def test_safetensors_are_checked_before_they_get_their_name(server, folder):
    server.files[f"{HUB}/model.safetensors"] = bytes(1000)
    assert "not a safetensors file" in failure(folder, "huggingface")
    assert not (folder / "model.safetensors").exists()


def test_no_network_says_what_works_without(folder):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        line = failure(folder, f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert "(Connection refused)" in line and "python main.py --demo" in line
    assert "cannot download https://nowhere.invalid" in failure(folder, "https://nowhere.invalid/models")
    assert "cannot download" in failure(folder, f"https://{'a' * 70}.invalid/models")


def test_proxies_are_honoured(server, folder, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    download_gpt2_files("124M", folder, "http://localhost:1/models")
    assert {path for path, _ in server.requests} == {f"http://localhost:1/models/124M/{name}" for name in NAMES}


def test_certificates_are_verified(folder, tmp_path, official):
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to make a certificate")
    import ssl

    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with Server(official) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert "certificate verify failed" in failure(folder, f"https://localhost:{server.server_port}/models")
        assert not server.requests
        server.shutdown()


# ---- The disk --------------------------------------------------------------------------------------------------------


def test_a_disk_too_small_is_noticed_before_the_first_byte(server, folder, monkeypatch):
    usage = shutil.disk_usage(folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    line = failure(folder)
    assert "0.000 GB free" in line and not server.requests


def test_a_disk_too_small_for_a_file_of_unknown_size(server, folder, monkeypatch):
    usage = shutil.disk_usage(folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    assert "0.000 GB free" in failure(folder, "huggingface")
    assert not (folder / "model.safetensors.part").exists()


class FullDisk(io.FileIO):
    """A file on a disk that has `room` bytes left."""

    room = 0

    def write(self, chunk):
        written = super().write(chunk[: FullDisk.room])
        FullDisk.room -= written
        if written < len(chunk):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written


@pytest.mark.parametrize("where", ["first byte", "second byte", "middle", "last byte"])
def test_a_disk_that_fills_up(where, server, folder, monkeypatch):
    size = len(server.files[DATA])
    room = {"first byte": 0, "second byte": 1, "middle": size // 2, "last byte": size - 1}[where]
    small = sum(len(server.files[f"/models/124M/{name}"]) for name in NAMES if name != TF_DATA)
    with monkeypatch.context() as patch:
        patch.setattr(FullDisk, "room", small + room)
        patch.setattr(fetch, "open", lambda path, mode: (FullDisk if mode == "ab" else open)(path, mode), raising=False)
        line = failure(folder)
    assert "No space left" in line and "run again to go on" in line
    part = folder / f"{TF_DATA}.part"
    assert (part.stat().st_size if part.exists() else 0) == room
    download_gpt2_files("124M", folder)
    assert data_requests(server) == [None, f"bytes={room}-" if room else None]
    assert is_complete(folder, server)


class Killed(BaseException):
    """Ends a download on the spot, as no except clause of ours catches it."""


STEPS = [(pathlib.Path, name) for name in ("mkdir", "unlink", "replace", "write_text")] + [(os, "fsync")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_every_step_on_disk(when, server, folder, tmp_path, monkeypatch):
    """Every change that a download makes on disk is the last one it makes, before or after it took place."""
    steps = 0

    def crash_at(real):
        def step(*args, **kwargs):
            nonlocal steps
            steps -= 1
            if steps == 0 and when == "before":
                raise Killed
            result = real(*args, **kwargs)
            if steps == 0:
                raise Killed
            return result

        return step

    download_gpt2_files("124M", tmp_path / "others")
    for name in ("vocab.bpe", TF_DATA):
        (tmp_path / "others" / name).unlink()
    n_crashes, old = 0, server.files[DATA]
    server.hashes = False  # so that none tells a file pieced together from two versions of it
    for first in range(1, 1000):
        shutil.rmtree(folder, ignore_errors=True)
        if first > 1:  # the very first step makes the folder
            shutil.copytree(tmp_path / "others", folder)
        steps = first
        server.files[DATA] = old
        server.faults = {DATA: [("close", 70_000), ("change", bytes(reversed(old)))]}
        server.faults["/models/124M/vocab.bpe"] = [("flip", 5)]
        with monkeypatch.context() as patch:
            for owner, name in STEPS:
                patch.setattr(owner, name, crash_at(getattr(owner, name)))
            patch.setattr(fetch, "open", crash_at(builtins.open), raising=False)
            try:
                download_gpt2_files("124M", folder)
                break  # all steps were taken
            except Killed:
                n_crashes += 1
        download_gpt2_files("124M", folder)
        assert is_complete(folder, server)
    assert n_crashes > 25


# ---- What is noted, and what is left ---------------------------------------------------------------------------------


def test_a_bit_that_flips_later_is_noticed(server, folder):
    """On loading in the small files, in the weights where they are small; and whichever it is by the command."""
    download_gpt2_files("124M", folder)
    for name in NAMES:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(UserError, match=f"{name}: damaged: its sha256 .* delete .*{name} and run again"):
            utils.load_encoder_hparams_and_params("124M", folder.parent)
        (folder / name).write_bytes(content + b" ")
        with pytest.raises(UserError, match=f"{name}: has [0-9,]+ bytes, checksums.json says"):
            utils.load_encoder_hparams_and_params("124M", folder.parent)
        (folder / name).write_bytes(content)
    utils.load_encoder_hparams_and_params("124M", folder.parent)


def test_large_weights_are_compared_too(server, folder, monkeypatch, capsys):
    monkeypatch.setattr(checksums, "MOST_SMALL", 2**15)
    download_gpt2_files("124M", folder, "huggingface")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-8] + bytes([content[-8] ^ 1]) + content[-7:])
    with pytest.raises(UserError, match=f"{path}: {checksums.DAMAGED}; delete"):
        utils.load_encoder_hparams_and_params("124M", folder.parent)
    with pytest.raises(SystemExit) as end:
        utils.main(["check", "124M", "--models_dir", str(folder.parent)])
    out, err = capsys.readouterr()
    assert end.value.code == 2 and err == f"error: {path}: damaged; delete {path} and run again\n"
    assert f"DAMAGED  {path}: damaged: its sha256" in out and out.count("ok  ") == 3
    path.unlink()
    utils.main(["download", "124M", "--models_dir", str(folder.parent), "--source", "huggingface"])
    utils.main(["check", "124M", "--models_dir", str(folder.parent)])
    assert "finite numbers" in capsys.readouterr().out


def test_a_model_that_was_there_before_is_noted_when_it_is_asked_for(server, folder):
    download_gpt2_files("124M", folder)
    (folder / checksums.NAME).unlink()
    utils.load_encoder_hparams_and_params("124M", folder.parent)
    download_gpt2_files("124M", folder)
    assert is_complete(folder, server)


def test_the_small_files_alone(server, folder):
    utils.load_encoder_and_hparams("124M", folder.parent)
    assert [path.rpartition("/")[2] for path, _ in server.requests] == list(NAMES[:3])


def test_nothing_is_left_where_nothing_came(server, folder, monkeypatch):
    models_dir = folder.parent / "a" / "b"
    server.faults["/models/124M/hparams.json"] = [("status", (503, {}))] * 50
    for source in ("openai", "http://127.0.0.1:1", f"{server.url}/nowhere"):
        failure(models_dir / "124M", source)
        assert not models_dir.parent.exists()
    monkeypatch.setattr(fetch, "receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download_gpt2_files("124M", models_dir / "124M")
    assert not models_dir.parent.exists()


def interrupt(*args):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_process_that_waited_for_one_that_left_nothing(server, folder):
    server.faults["/models/124M/hparams.json"] = [("stall", 0)]
    first = start_process(server, folder)
    while not server.requests:
        time.sleep(0.01)
    second = start_process(server, folder)
    assert "waiting for it" in second.stderr.readline()
    first.send_signal(signal.SIGINT)
    first.communicate()
    server.faults.clear()
    assert (second.communicate()[1], second.returncode) == ("", 0)
    assert is_complete(folder, server)


@pytest.mark.parametrize("fault", [("stall", 0), ("status", (503, {"Retry-After": "1"}))])
def test_what_is_waited_for_is_said(fault, server, folder, monkeypatch, capsys):
    monkeypatch.setattr(patience, "SECONDS", 0.2)
    monkeypatch.setattr(fetch, "TIMEOUT", (5, 1))
    server.faults["/models/124M/vocab.bpe"] = [fault]
    download_gpt2_files("124M", folder)
    why = "no answer" if fault[0] == "stall" else "retrying: status 503"
    assert capsys.readouterr().err == f"{why}; waiting for 127.0.0.1 for 0 s, Ctrl-C ends it\n"


# ---- Several processes -----------------------------------------------------------------------------------------------

SCRIPT = """
import json, signal, sys
from plumbing import fetch
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
fetch.PAUSES = {"backoff_factor": 0.01}
files, folder = json.loads(sys.argv[1]), sys.argv[2]
fetch.fetch_files([fetch.File(*file) for file in files], folder)
"""


def start_process(server, folder):
    files = [(name, f"{server.url}/models/124M/{name}") for name in NAMES]
    command = [sys.executable, "-c", SCRIPT, json.dumps(files), folder]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_kill_9_at_random_moments(server, tmp_path):
    rng = np.random.default_rng(1)
    n_killed = 0
    for attempt in range(5):
        folder, connected = tmp_path / f"{attempt}", threading.Event()
        server.before_answer, server.pause = lambda path, connected=connected: connected.set(), 0.005  # 0.2 s in all
        process = start_process(server, folder)
        assert connected.wait(60)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.communicate()
        n_killed += process.returncode == -signal.SIGKILL
        for name in NAMES:
            assert not (folder / name).exists() or is_whole(folder, name, server)
        server.pause = 0
        download_gpt2_files("124M", folder)
        assert is_complete(folder, server)
    assert n_killed >= 2  # the others were too late
    assert any(range_ for path, range_ in server.requests)  # and what was there was built on


def test_processes_at_the_same_time(server, folder):
    n, waiting = 3, threading.Semaphore(0)

    def answer_once_the_others_wait(path):
        server.before_answer = lambda path: None
        for _ in range(n - 1):
            waiting.acquire(timeout=60)

    def listen(process):
        for line in process.stderr:
            assert "waiting for it" in line
            waiting.release()

    server.before_answer = answer_once_the_others_wait
    processes = [start_process(server, folder) for _ in range(n)]
    threads = [threading.Thread(target=listen, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    for process, thread in zip(processes, threads, strict=True):
        assert process.wait() == 0
        thread.join()
        process.stderr.close()
    assert is_complete(folder, server)
    assert [path.rpartition("/")[2] for path, _ in server.requests] == list(NAMES)  # one downloaded, the others waited


def test_a_waiting_process_takes_over_from_a_killed_one(server, folder):
    server.faults[DATA] = [("stall", 70_000)]
    first, part = start_process(server, folder), folder / f"{TF_DATA}.part"
    while not part.exists() or part.stat().st_size < 60_000:  # the rest may be in the buffer that kill -9 destroys
        time.sleep(0.01)
    second = start_process(server, folder)
    assert "waiting for it" in second.stderr.readline()
    first.kill()
    first.communicate()
    assert second.wait() == 0
    second.stderr.close()
    assert is_complete(folder, server)
    assert [bool(range_) for range_ in data_requests(server)] == [False, True]  # it went on from where the first was


# ---- The command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["download"], ["download", "12M"], ["download", "../124M"], ["upload", "124M"], ["download", "124M", "x"],
        ["download", "124M", "--src", "openai"], ["download", "124M", "--source"], ["download", "124M", "--source", ""],
        ["download", "124M", "--source", "http://example.com"], ["download", "124M", "--models_dir", "utils.py/x"],
    ],
)  # fmt: skip
def test_a_wrong_command_is_one_line(arguments, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        utils.main(arguments)
    out, line = capsys.readouterr()
    assert end.value.code == 2
    assert out == "" and "error: " in line and line.endswith("\n") and line.count("\n") == 1


def test_the_exit_status_of_the_command():
    command = [sys.executable, "utils.py", "download", "124M", "--source", "x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_the_command_downloads(server, folder, capsys):
    utils.main(["download", "124M", "--models_dir", str(folder.parent)])
    assert is_complete(folder, server)
    assert str(folder) in capsys.readouterr().out


def test_ctrl_c_is_one_line_and_status_130(server, folder, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "jax", raising=False)  # where another test has imported it, the process would end

    def interrupt(path):
        if path.endswith(TF_DATA):
            signal.raise_signal(signal.SIGINT)

    server.before_answer = interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(SystemExit) as end:
            utils.main(["download", "124M", "--models_dir", str(folder.parent)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert end.value.code == 130
    assert capsys.readouterr().err.strip().splitlines()[-1] == "interrupted; run again to go on from here"
    assert not (folder / TF_DATA).exists()
