"""Downloading, from a real server on this machine that does to its answers what networks do to them."""

import base64
import contextlib
import hashlib
import http.server
import json
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tiny import ROOT, largest_file, refusal

import utils
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.support import checksums, official
from speculative.support.errors import UserError
from speculative.support.fetch import File, fetch_files
from speculative.support.http import Limits, check_url
from speculative.support.official import TF_DATA, TF_INDEX
from utils import download_gpt2_files

LIMITS = Limits(connect=5, read=5, pause=0.001)


class Server(http.server.ThreadingHTTPServer):
    """Serves files {path: bytes}. Of each path's faults, each answer takes the first, if there is one left.

    A fault is a dict: "status" and "headers" in place of the true ones, "body" in place of the file, "flip" of a bit in
    byte i, "to": byte i of what is sent, at which "then" the connection closes, is reset, stalls or goes on with a
    space now and then, "ignore" the header of a request, and "file", what the file becomes before.
    """

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.faults = {}
        self.requests = []  # (path, Range)
        self.headers = []  # of each request
        self.before_answer = lambda path: None
        self.hashes = True  # whether it says what they are
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # clients that leave are what these tests are about


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        path = self.path.partition("?")[0]
        server.requests.append((self.path, self.headers["Range"]))
        server.headers.append(self.headers)
        server.before_answer(path)
        fault = server.faults[path].pop(0) if server.faults.get(path) else {}
        if "file" in fault:
            server.files[path] = fault["file"]
        if path not in server.files or "status" in fault:
            return self.answer(fault.get("status", 404), fault.get("headers", {}), b"try later")
        body = fault.get("body", server.files[path])
        etag = f'"{hashlib.sha1(body).hexdigest()}"'
        start = 0
        headers = {"ETag": etag}
        if "ignore" in fault:
            del self.headers[fault["ignore"]]
        if self.headers["Range"] and self.headers["If-Range"] in (None, etag):
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        if server.hashes or start:
            headers["Content-MD5"] = base64.b64encode(hashlib.md5(body[start:]).digest()).decode()  # as the RFC has it
        if "flip" in fault:
            i = fault["flip"] % len(body)
            body = body[:i] + bytes([body[i] ^ 1]) + body[i + 1 :]
        headers |= {"Content-Length": str(len(body) - start)} | fault.get("headers", {})
        self.answer(206 if start else 200, headers, body[start:][: fault.get("to")], fault.get("then"))

    def answer(self, status, headers, body, then=None):
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if then == "stall":
            self.connection.settimeout(60)
            self.connection.recv(1)  # until the client has had enough
        if then == "drip":
            while True:  # until the client has had enough
                self.wfile.write(b" ")
                time.sleep(0.02)
        if then == "reset":
            time.sleep(0.02)  # so that what went before is not swept away with the connection
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if then in ("close", "reset"):
            self.connection.close()


@contextlib.contextmanager
def served(server):
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def certify(server, folder):
    """Makes a server speak https -> its certificate, which nobody has signed."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to make a certificate")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return cert


def close(at):
    return {"to": at, "then": "close"}


def status(number, **headers):
    return {"status": number, "headers": {name.replace("_", "-"): value for name, value in headers.items()}}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


# Three files, of which different things are known beforehand.
RNG = np.random.default_rng(0)
CONTENTS = {"settings": b'{"n": 1}' * 9, "words": RNG.bytes(3000), "weights": RNG.bytes(100_000)}
WEIGHTS = "/model/weights"


def check_settings(path):
    if path.read_bytes() != CONTENTS["settings"]:
        raise UserError("these are other settings; take the right ones")


KNOWN = {
    "settings": {"check": check_settings},
    "words": {"sha256": sha256(CONTENTS["words"])},
    "weights": {"size": len(CONTENTS["weights"])},
}


@pytest.fixture
def server():
    with served(Server({f"/model/{name}": content for name, content in CONTENTS.items()})) as server:
        yield server


@pytest.fixture
def folder(server, tmp_path):
    """The folder of the files. At every request and at the end, each file under its own name must be whole."""
    folder = tmp_path / "model"
    broken = []

    def look(path):
        there = [path for path in folder.glob("*") if path.name in CONTENTS]
        broken.extend(path.name for path in there if path.read_bytes() not in server.files.values())

    server.before_answer = look
    yield folder
    look("")
    assert not broken


@pytest.fixture
def fetch(server, folder):
    def fetch(limits=LIMITS, url=None, names=CONTENTS, **known):
        base = url or f"{server.url}/model"
        fetch_files([File(name, f"{base}/{name}", **KNOWN[name] | known) for name in names], folder, limits)

    return fetch


def assert_complete(folder, server):
    there = {path.name: path.read_bytes() for path in folder.glob("[!.]*") if path.name != checksums.NAME}
    assert there == {name: server.files[f"/model/{name}"] for name in CONTENTS}
    assert checksums.noted(folder) == {name: checksums.describe(folder / name) for name in CONTENTS}


def ranges(server, path=WEIGHTS):
    return [range_ for requested, range_ in server.requests if requested == path]


def test_each_file_comes_once_and_in_order(fetch, server, folder):
    fetch()
    assert_complete(folder, server)
    assert server.requests == [(f"/model/{name}", None) for name in CONTENTS]
    assert {headers["Accept-Encoding"] for headers in server.headers} == {"identity"}
    (folder / "words").unlink()
    (folder / checksums.NAME).unlink()  # what was there before, from elsewhere maybe, is noted too
    fetch()
    assert_complete(folder, server)
    assert server.requests[3:] == [("/model/words", None)]
    (folder / "words").write_bytes(CONTENTS["words"][::-1])
    (folder / checksums.NAME).unlink()
    assert f"{folder / 'words'} is not the file that {server.url}/model/words is: delete it" in refusal(fetch)
    (folder / "words").unlink()


# ---- Broken connections and busy servers -----------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["close", "reset", "stall"])
@pytest.mark.parametrize("at", [0, 1, 50_000, 99_999])
def test_interruptions_are_resumed(then, at, fetch, server, folder):
    server.faults[WEIGHTS] = [{"to": at, "then": then}]
    fetch(LIMITS._replace(read=0.1 if then == "stall" else 5))
    assert_complete(folder, server)
    resumed = ranges(server)[-1]
    if then == "reset":  # which may sweep away what was sent just before it
        assert resumed is None or 0 < int(resumed[6:-1]) <= at
    else:
        assert resumed == (f"bytes={at}-" if at else None)


def test_it_goes_on_as_long_as_each_request_brings_something(fetch, server, folder):
    n = 20
    server.faults[WEIGHTS] = [close(1000)] * n + [close(0)] * 100
    assert "more expected" in refusal(fetch)
    assert ranges(server) == [None, *(f"bytes={1000 * i}-" for i in range(1, n)), *["bytes=20000-"] * 7]
    server.faults.clear()
    fetch()
    assert_complete(folder, server)


@pytest.mark.parametrize("number", [408, 425, 429, 500, 502, 503, 504, 599])
def test_busy_servers_are_asked_again(number, fetch, server, folder):
    server.faults[WEIGHTS] = [status(number), close(5000), status(number), status(number)]
    fetch()
    assert_complete(folder, server)
    assert ranges(server) == [None, None, *["bytes=5000-"] * 3]


OWN_PAUSES = [0, 1, 3, 7, 15, 31]  # the next would be longer than is waited altogether


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        *((value, OWN_PAUSES) for value in ("nan", "-1", "garbage", "Mon, 99 Foo 9999", "0", "9" * 5000, None)),
        ("Wed, 21 Oct 2015 07:28:00 GMT", OWN_PAUSES),
        ("4", [4, 4, 4, 7, 15, 31]),
        ("90", [90]),
        *((value, []) for value in ("101", "3600", "999999999", "Fri, 31 Dec 2099 23:59:59 GMT")),  # left at once
    ],
)
def test_pauses_are_those_that_are_asked_for(asked, expected, fetch, server):
    pauses = []
    server.faults[WEIGHTS] = [status(503, Retry_After=asked)] * 100
    line = refusal(fetch, LIMITS._replace(pause=1, sleep=pauses.append))
    assert "(status 503" in line
    assert ("asks to wait" in line) == (expected != OWN_PAUSES)
    assert pauses == expected


def test_the_waiting_in_a_row_is_bounded(fetch, server):
    """Stalls and pauses count, however many retries are left."""
    server.faults[WEIGHTS] = [{"to": 70_000, "then": "stall"}] + [{"to": 0, "then": "stall"}] * 100
    assert "timed out" in refusal(fetch, LIMITS._replace(read=0.1, waiting=0.35, retries=100))
    assert 2 <= len(ranges(server)) <= 5  # each takes 0.1 s at least


@pytest.mark.parametrize(
    ("fault", "why", "n_requests"),
    [
        ({"to": 0, "then": "stall"}, "timed out", 3),
        (close(0), "more expected", 3),
        (status(503), "status 503", 8),
        (status(404), "status 404", 1),
        (status(302, Location="/model/settings"), "Exceeded 30 redirects", 93),
        ({"headers": {"Content-Length": "2000000000"}}, "has 2,000,000,000 bytes, more than 16,777,216", 1),
    ],
)
def test_where_nothing_comes_it_is_soon_given_up(fault, why, n_requests, fetch, server, folder):
    server.faults["/model/settings"] = [fault] * 100
    assert why in refusal(fetch, LIMITS._replace(read=0.1))
    assert len(server.requests) == n_requests
    server.faults.clear()
    fetch()
    assert_complete(folder, server)


def test_what_is_waited_for_is_said(fetch, server, capsys):
    server.faults["/model/words"] = [status(503, Retry_After="30")]
    fetch(LIMITS._replace(sleep=lambda seconds: None))
    asked = "status 503, asks to wait 30 s: 127.0.0.1 is asked again in 30 s\n"
    assert capsys.readouterr().err == asked


def test_an_answer_that_does_not_come_is_said(fetch, server, capsys):
    server.before_answer = lambda path: time.sleep(0.5)
    fetch(LIMITS._replace(silent=0.1), names=["settings"])
    assert capsys.readouterr().err == "no answer from 127.0.0.1 yet, Ctrl-C ends it\n"


# ---- Answers that are not the file -----------------------------------------------------------------------------------

WRONG = {
    "web page": {"body": b"<!DOCTYPE html><html><body>Sign in to the hotel's network</body></html>"},
    "too short": {"body": b"some bytes"},
    "too long": {"headers": {"Content-Length": "999999"}},
    "no length": {"headers": {"Content-Length": None}},
    "length below 0": {"headers": {"Content-Length": "-5"}},
    "compressed": {"headers": {"Content-Encoding": "gzip"}},
    "wrong Content-MD5": {"headers": {"Content-MD5": base64.b64encode(bytes(16)).decode()}},
    "one bit wrong": {"flip": 35},
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", CONTENTS)
def test_a_wrong_file_is_never_kept_and_asked_for_again(kind, name, fetch, server, folder):
    path = f"/model/{name}"
    server.faults[path] = [WRONG[kind]] * 50
    line = refusal(fetch)
    assert name in line
    assert not (folder / name).exists()
    assert "web page" in line or kind != "web page" or name == "weights"
    assert len(server.faults[path]) >= 50 - 4  # gigabytes are not downloaded for ever
    server.faults[path] = [WRONG[kind]]
    server.requests.clear()
    fetch()
    assert_complete(folder, server)
    first, *_, last = ranges(server, path)
    assert first is last is None  # what was wrong was not built on


NEW = CONTENTS["weights"][::-1]
AGAIN = [None, "bytes=70000-", None]
NO_HASHES = {"headers": {"Content-MD5": None}}


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        ([close(70_000), {"ignore": "Range"}], [None, "bytes=70000-"]),
        ([close(70_000), {"headers": {"Content-Length": "10"}}], [None, "bytes=70000-", "bytes=70010-"]),
        ([close(70_000), {"headers": {"Content-Range": "bytes 69999-99999/100000"}}], AGAIN),
        ([close(70_000), {"headers": {"Content-Range": None}}], AGAIN),
        ([close(70_000), status(416)], AGAIN),
        ([close(70_000) | {"headers": {"ETag": None}}], [None, None]),  # which cannot be told from another
        ([close(70_000) | {"headers": {"ETag": 'W/"weak"'}}], [None, None]),
        ([close(70_000), {"file": NEW}], [None, "bytes=70000-"]),
        ([close(70_000) | NO_HASHES, {"file": NEW, "ignore": "If-Range"} | NO_HASHES], AGAIN),
    ],
)
def test_what_is_built_on(faults, requests, fetch, server, folder):
    server.faults[WEIGHTS] = faults
    fetch()
    assert ranges(server) == requests
    assert_complete(folder, server)


NOTE = {"url": "URL", "length": 10**6, "etag": "", "md5": "", "sha256": ""}
NOTES = ["", "{", "[]", "null", '{"url": 1}', '{"url": "URL"}', "[" * 10**5, "\udcff"]
NOTES += [json.dumps(NOTE | wrong) for wrong in ({"length": "x"}, {"length": 1000}, {"etag": '"\n"'}, {"md5": 5})]


@pytest.mark.parametrize("note", NOTES)
def test_a_damaged_note_means_starting_again(note, fetch, server, folder):
    folder.mkdir()
    (folder / "weights.part").write_bytes(bytes(1000))
    note = note.replace("URL", f"{server.url}{WEIGHTS}")
    (folder / "weights.part.json").write_bytes(note.encode("utf-8", "surrogateescape"))
    fetch()
    assert_complete(folder, server)


@pytest.mark.parametrize("suffix", ["part", "part.json"])
def test_a_link_in_place_of_a_part_is_not_followed(suffix, fetch, server, folder, tmp_path):
    """A folder from elsewhere may hold one, to any file of the user's."""
    (tmp_path / "mine").write_text("mine")
    folder.mkdir()
    (folder / f"weights.{suffix}").symlink_to(tmp_path / "mine")
    fetch()
    assert (tmp_path / "mine").read_text() == "mine"
    assert_complete(folder, server)


# ---- Addresses -------------------------------------------------------------------------------------------------------

ELSEWHERE = """http://example.com/x https:///x ftp://127.0.0.1/x file:///etc/passwd //example.com/x http://[
    ht%74p://example.com/x http://localhost:PORT/x"""


@pytest.mark.parametrize("target", ELSEWHERE.split())
def test_redirects_that_are_not_followed(target, fetch, server):
    with served(Server({"/x": CONTENTS["weights"]})) as other:
        server.faults[WEIGHTS] = [status(302, Location=target.replace("PORT", str(other.server_port)))] * 20
        line = refusal(fetch)
        assert any(why in line for why in ("No connection adapters", "No host specified", "Invalid IPv6 URL"))
        assert not other.requests


HTTPS = "https://a.b/c http://localhost:8/x http://127.1.2.3/ http://[::1]:8/"
NOT_HTTPS = """http://a.b/c http://127.0.0.1.evil.com/ http://localhost@evil.com/ http://localhost:8@evil.com/ x https://
    https:///x https://?x file:///x https://[ https://[::1 https://a:b/ https://:1/"""


def test_addresses_that_may_be_asked():
    for url in HTTPS.split():
        assert check_url(url) == url
    for url in ["", *NOT_HTTPS.split()]:
        assert "https only" in refusal(check_url, url)


def test_no_network_says_what_works_without(fetch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        line = refusal(fetch, url=f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert "(Connection refused)" in line
    assert "python main.py --demo works without" in line
    assert "cannot download https://nowhere.invalid" in refusal(fetch, url="https://nowhere.invalid")
    assert "cannot download" in refusal(fetch, url=f"https://{'a' * 70}.invalid")


# ---- The disk --------------------------------------------------------------------------------------------------------


def test_a_disk_too_small_is_noticed_beforehand(fetch, server, folder):
    assert "GB free" in refusal(fetch, size=10**18)
    assert not server.requests
    server.faults["/model/words"] = [{"headers": {"Content-Length": "9" * 15}}]
    assert "GB free" in refusal(fetch, most=10**16)
    assert not (folder / "words.part").exists()
    assert not server.faults["/model/words"]


@pytest.mark.parametrize("room", [4000, 50_000, 99_999])
def test_a_disk_that_fills_up(room, fetch, server, folder):
    with largest_file(room):
        line = refusal(fetch)
    assert "File too large" in line
    assert "run again to go on" in line
    assert (folder / "weights.part").stat().st_size == room
    fetch()
    assert ranges(server) == [None, f"bytes={room}-"]
    assert_complete(folder, server)


class Killed(BaseException):
    """Ends a download on the spot, as no except clause of ours catches it."""


STEPS = ("open", "mkdir", "rmdir", "unlink", "replace", "rename")


@contextlib.contextmanager
def killed_at(number):
    """Raises Killed after the step of that number that was taken on disk; counted from 1."""
    n_steps = 0

    def count(frame, event, function):
        nonlocal n_steps
        taken = event == "c_return" and function.__module__ in ("posix", "nt", "io", "_io")
        n_steps += taken and function.__name__ in STEPS
        if n_steps == number:
            raise Killed

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_crash_at_every_step_on_disk(fetch, server, folder, tmp_path):
    server.hashes = False  # so that none tells a file pieced together from two versions of it
    fetch(names=["settings"])
    folder.rename(tmp_path / "begun")
    for number in range(1, 1000):
        shutil.rmtree(folder, ignore_errors=True)
        if number > 2:  # the very first steps make the folder
            shutil.copytree(tmp_path / "begun", folder)
        server.files[WEIGHTS] = CONTENTS["weights"]
        server.faults = {WEIGHTS: [close(70_000), {"file": NEW}], "/model/words": [{"flip": 5}]}
        try:
            with killed_at(number):
                fetch()
            break  # all steps were taken
        except Killed:
            fetch()
            assert_complete(folder, server)
    assert number > 30


# ---- Several processes -----------------------------------------------------------------------------------------------

SCRIPT = """
import signal, sys
from speculative.support import fetch, http
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
url, folder, *names = sys.argv[1:]
fetch.fetch_files([fetch.File(name, f"{url}/{name}") for name in names], folder, http.Limits(pause=0.01))
"""


@pytest.mark.parametrize("ends", [None, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_second_process_waits_for_the_first(ends, server, folder):
    """If the first one is killed, the second goes on from there."""

    def start():
        command = [sys.executable, "-c", SCRIPT, f"{server.url}/model", folder, *CONTENTS]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    part = folder / "weights.part"
    go_on = threading.Event()
    server.before_answer = lambda path: go_on.wait(60)
    if ends == signal.SIGKILL:
        server.faults[WEIGHTS] = [{"to": 70_000, "then": "stall"}]
        go_on.set()
    first = start()
    while not (part.exists() and part.stat().st_size > 60_000 if go_on.is_set() else server.requests):
        time.sleep(0.01)
    second = start()
    assert "waiting for it" in second.stderr.readline()
    if ends:
        first.send_signal(ends)
        first.communicate()
    go_on.set()
    assert (second.communicate()[1], second.returncode) == ("", 0)
    assert_complete(folder, server)
    expected = {signal.SIGKILL: [WEIGHTS], signal.SIGINT: ["/model/settings"]}.get(ends, [])  # asked for once more
    requested = [path for path, _ in server.requests]
    assert sorted(requested) == sorted([*(f"/model/{name}" for name in CONTENTS), *expected])
    assert bool(ranges(server)[-1]) == (ends == signal.SIGKILL)
    first.stderr.close()


# ---- The official models ---------------------------------------------------------------------------------------------

NAMES = ("hparams.json", "encoder.json", "vocab.bpe", TF_INDEX, TF_DATA)
HUB = "/openai-community/gpt2/resolve/main"


@pytest.fixture
def mirror(tiny_files, server, monkeypatch):
    """The URL of one where the tiny model is 124M, in both forms."""
    monkeypatch.setitem(official.WEIGHT_BYTES, "124M", len(tiny_files[TF_DATA]))
    monkeypatch.setitem(official.HPARAMS, "124M", json.loads(tiny_files["hparams.json"]))
    for name in ("encoder.json", "vocab.bpe", f"124M/{TF_INDEX}", f"124M/{TF_DATA}"):
        monkeypatch.setitem(official.SHA256, name, sha256(tiny_files[name.removeprefix("124M/")]))
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    hparams = json.loads(tiny_files["hparams.json"])
    config = {"model_type": "gpt2", "vocab_size": hparams.pop("n_vocab"), "n_positions": hparams["n_ctx"], **hparams}
    server.files.update({f"/124M/{name}": tiny_files[name] for name in NAMES})
    server.files[f"{HUB}/config.json"] = json.dumps(config).encode()
    for name, theirs in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        server.files[f"{HUB}/{theirs}"] = tiny_files[name]
    server.files[f"{HUB}/model.safetensors"] = tiny_files["model.safetensors"]
    return server.url


@pytest.mark.parametrize("source", ["mirror", "huggingface"])
def test_official_models_come_with_their_first_use(source, mirror, server, tmp_path, tiny_hparams, tiny_arrays):
    weights = server.files[f"{HUB}/model.safetensors"]
    server.files["/cdn/file"] = weights
    redirect = status(302, Location="/cdn/file", X_Linked_ETag=f'"{sha256(weights)}"')
    server.faults[f"{HUB}/model.safetensors"] = [redirect] * 3
    server.faults["/cdn/file"] = [close(70_000), close(20_000)]
    source = mirror if source == "mirror" else source
    encoder, hparams = load_encoder_and_hparams("124M", tmp_path, source)
    assert (encoder.n_vocab, hparams) == (260, tiny_hparams)
    assert len(server.requests) == 3  # the small files alone
    params = load_params(complete_folder("124M", tmp_path, source), hparams)
    np.testing.assert_array_equal(params["blocks"][1]["mlp"]["c_proj"]["w"], tiny_arrays["h1/mlp/c_proj/w"])
    np.testing.assert_array_equal(params["wte"], tiny_arrays["wte"])
    assert ranges(server, "/cdn/file") == ([None, "bytes=70000-", "bytes=90000-"] if source != mirror else [])


def test_what_is_not_the_official_file_is_refused(mirror, server, tmp_path, tiny_hparams):
    weights = f"{HUB}/model.safetensors"

    def line(source="huggingface", folder=tmp_path):
        return refusal(download_gpt2_files, "124M", folder, source)

    server.faults[weights] = [{"headers": {"Content-Length": "9" * 12}}]
    assert "999,999,999,999 bytes, more than" in line()
    server.faults[weights] = [status(302, Location=weights, X_Linked_ETag=f'"{"0" * 64}"'), {}] * 50
    assert "sha256" in line()
    server.faults.clear()
    server.files[weights] = bytes(1000)
    assert "not a safetensors file" in line()
    assert not (tmp_path / "model.safetensors").exists()
    server.requests.clear()
    server.files["/124M/hparams.json"] = json.dumps(tiny_hparams | {"n_head": 1}).encode()  # with as many parameters
    assert "not the hparams of 124M" in line(mirror, tmp_path / "new")
    assert {path for path, _ in server.requests} == {"/124M/hparams.json"}


def test_the_command(mirror, server, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "jax", raising=False)  # with it, the process would end where it is interrupted
    download = ["download", "124M", "--models_dir", str(tmp_path), "--source", mirror]
    server.before_answer = lambda path: path.endswith(TF_DATA) and signal.raise_signal(signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    with pytest.raises(SystemExit) as end:
        utils.main(download)
    signal.signal(signal.SIGINT, before)
    assert end.value.code == 130
    assert not (tmp_path / "124M" / TF_DATA).exists()
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; run again to go on from here"
    server.before_answer = lambda path: None
    utils.main(download)
    assert capsys.readouterr().out == f"124M is in {tmp_path / '124M'}\n"
    utils.main(["check", "124M", "--models_dir", str(tmp_path)])
    out = capsys.readouterr().out
    assert out.count("ok  ") == 5
    assert "finite numbers" in out


WRONG_WORDS = """|download 12M|download ../124M|upload 124M|download 124M --src openai|download 124M --source openia
    |download 124M --models_dir utils.py/x|check 12M"""


@pytest.mark.parametrize("words", WRONG_WORDS.split("|"))
def test_a_wrong_command_is_one_line(words, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        utils.main(words.split())
    out, line = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert line.startswith("error: ")
    assert line.endswith("\n")
    assert line[:-1].isprintable()
