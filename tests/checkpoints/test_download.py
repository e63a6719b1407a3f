"""Downloads, from a server on this machine that does to its answers what networks do to them."""

import errno
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
from functools import partial
from unittest.mock import Mock

import filelock
import numpy as np
import pytest
from servers import Server, served
from tiny import ROOT, refusal

from speculative.checkpoints import download, folder
from speculative.checkpoints.folder import announce_downloads, find_files
from speculative.checkpoints.names import TF_DATA, TF_INDEX
from speculative.run import load
from speculative.run.options import Options
from speculative.support.errors import UserError


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


WEIGHTS = np.random.default_rng(0).bytes(1_000_000)
SUM = hashlib.sha256(WEIGHTS).hexdigest()
PATH = "/model/weights"


@pytest.fixture
def server():
    with served(Server({PATH: WEIGHTS})) as server:
        yield server


@pytest.fixture
def get(server, tmp_path):
    """Downloads the file; how: sha256, size."""
    return lambda **how: download.download(f"{server.url}{PATH}", str(tmp_path / "model" / "weights"), **how)


def test_an_interrupted_download_goes_on_and_is_noted(server, get, tmp_path):
    """At once, and when it is started again."""
    get = partial(get, size=len(WEIGHTS))
    server.faults[PATH] = [{"close": 300_000}, "page", 503, {"close": 200_000}, {"close": 0}] + [503] * 5
    assert refusal(get) == f"{server.url}{PATH} is a web page, not the file"
    assert "it ends at byte 458,752 of 1,000,000" in refusal(get)
    assert "503 Server Error" in refusal(get)
    assert os.listdir(tmp_path / "model") == ["weights.part"]
    get(sha256=SUM)
    begins = [int(wanted.removeprefix("bytes=").removesuffix("-")) for _, wanted in server.ranges]
    assert begins == [0, *[262144] * 3, *[458752] * 7]
    assert (tmp_path / "model" / "weights").read_bytes() == WEIGHTS
    assert (tmp_path / "model" / "SHA256SUMS").read_text() == f"{SUM}  weights\n"
    assert sorted(os.listdir(tmp_path / "model")) == ["SHA256SUMS", "weights"]


PARTS = [(b"older", True, 2), (b"older" * 300_000, True, 1), (WEIGHTS, True, 0), (WEIGHTS, False, 1)]


@pytest.mark.parametrize(("part", "has_size", "n_asked"), PARTS, ids=range(4))
def test_a_part_of_an_earlier_run(part, has_size, n_asked, server, get, tmp_path):
    """It may be of another version of the file, or complete. If no size is known, the file is asked for anew."""
    get = partial(get, size=len(WEIGHTS) if has_size else 0)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.part").write_bytes(part)
    if part == b"older":
        assert "sha256 is wrong" in refusal(get, sha256=SUM)
        assert not (tmp_path / "model").exists()
    get(sha256=SUM)
    assert (tmp_path / "model" / "weights").read_bytes() == WEIGHTS
    assert len(server.ranges) == n_asked


def test_a_refusal_is_told_at_once_and_leaves_nothing(server, get, tmp_path):
    assert "has 1,000,000 bytes, not 5" in refusal(get, size=5)
    for server.claimed in (0, -5):
        assert refusal(get) == f"{server.url}{PATH} is not the file: its length is 0 or unknown"
    server.kind = "text/html; charset=utf-8"
    assert refusal(get) == f"{server.url}{PATH} is a web page, not the file"
    server.files = {}
    assert "404" in refusal(get)
    server.server_close()
    server.shutdown()
    assert "Connection refused); run again" in refusal(get)
    assert not (tmp_path / "model").exists()


def test_other_bytes_than_were_asked_for_are_refused(server, get, tmp_path):
    server.shift = 9
    server.faults[PATH] = [{"close": 300_000}]
    assert refusal(get).endswith("is not the file: the server sends other bytes than were asked for")
    assert os.listdir(tmp_path / "model") == ["weights.part"]


def test_nothing_is_written_to_a_file_of_another_name(server, get, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "model").mkdir()
    os.link(tmp_path / "precious", tmp_path / "model" / "weights.part")
    get(size=len(WEIGHTS))
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "model" / "weights").read_bytes() == WEIGHTS


def test_nothing_is_written_through_a_link(server, get, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "model").mkdir()
    for name in ("weights", "weights.part", "weights.lock", "SHA256SUMS"):
        (tmp_path / "model" / name).symlink_to("../missing" if name == "weights" else "../precious")
    get()
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "missing").exists()
    assert (tmp_path / "model" / "weights").read_bytes() == WEIGHTS


DOWNLOAD = """
import sys
from speculative.checkpoints.download import download
from speculative.support.errors import guarded
url, path, sha256 = sys.argv[1:]
with guarded():
    download(url, path, sha256, 1_000_000)
"""


def until(condition):
    while not condition():
        time.sleep(0.01)


def test_a_second_program_waits_for_the_download(server, tmp_path, monkeypatch):
    """It says so, and goes on with the download if the first one is killed."""
    monkeypatch.undo()  # time.sleep
    path = tmp_path / "model" / "weights"
    words = [sys.executable, "-c", DOWNLOAD, f"{server.url}{PATH}", str(path), SUM]
    server.pause = threading.Event()
    first = subprocess.Popen(words, cwd=ROOT)
    until(lambda: server.ranges)
    second = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    third = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for process in (second, third):
        assert process.stderr.readline() == f"waiting for another program, which downloads {path} ...\n"
    assert len(server.ranges) == 1
    until(lambda: path.with_name("weights.part").stat().st_size > 400_000)
    first.kill()
    first.wait()
    server.pause.set()
    assert [process.wait(60) for process in (second, third)] == [0, 0]
    for process in (second, third):
        process.stderr.close()
    assert path.read_bytes() == WEIGHTS
    assert len(server.ranges) == 2
    assert server.ranges[1][1] != "bytes=0-"
    assert sorted(os.listdir(path.parent)) == ["SHA256SUMS", "weights"]


def test_a_disk_without_locks_is_written_all_the_same(get, tmp_path, monkeypatch):
    for error in (NotImplementedError, OSError(errno.ENOLCK, "No locks available")):
        monkeypatch.setattr(filelock.FileLock, "acquire", Mock(side_effect=error))
        get(sha256=SUM)
        assert (tmp_path / "model" / "weights").read_bytes() == WEIGHTS
        (tmp_path / "model" / "weights").unlink()


def test_a_line_says_what_will_be_downloaded_and_what_remains(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(download, "download", lambda *about: None)
    download.download_gpt2_files("124M", str(tmp_path / "124M"), weights=False)
    assert capsys.readouterr().err == ""
    (tmp_path / "124M").mkdir()
    with open(tmp_path / "124M" / f"{TF_DATA}.part", "wb") as f:
        f.truncate(100_000_000)
    download.download_gpt2_files("124M", str(tmp_path / "124M"))
    line = capsys.readouterr().err
    to = f"to {tmp_path}/124M, where .* are free; Ctrl-C keeps .*"
    assert re.fullmatch(rf"downloading 124M from http.*: 0.4 GB {to}\n", line)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Mock(free=100_000_000))
    line = refusal(download.download_gpt2_files, "355M", str(tmp_path / "355M"))
    assert line == f"355M needs 1.4 GB in {tmp_path}/355M, where 0.1 GB are free"
    announce_downloads(["1558M", "124M", "1558M", "./folder"], str(tmp_path), "openai")
    line = capsys.readouterr().err
    assert re.fullmatch("6.6 GB will be downloaded from https:.*: 1558M and 124M; .* --demo works without .*\n", line)
    (tmp_path / "124M" / TF_DATA).touch()
    (tmp_path / "124M" / TF_INDEX).touch()
    announce_downloads(["124M"], str(tmp_path), "openai")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [(f"{TF_DATA}.part", True), ("hparams.json.part", True), ("notes.tmp", True), ("pytorch_model.bin", False)],
)
def test_a_download_goes_on_beside_its_own_part_and_not_beside_weights_of_others(
    name, is_ours, tmp_path, monkeypatch, capsys
):
    (tmp_path / "124M").mkdir()
    (tmp_path / "124M" / name).touch()
    announce_downloads(["124M"], str(tmp_path), "openai")
    assert bool(capsys.readouterr().err) == is_ours
    asked = []
    monkeypatch.setattr(folder, "download_gpt2_files", lambda *given: asked.append(given))
    if is_ours:
        find_files("124M", str(tmp_path))
        assert asked
    else:
        assert "it has pytorch_model.bin" in refusal(find_files, "124M", str(tmp_path))


def test_the_total_is_that_of_all_weights_also_if_small_files_were_read(tmp_path, monkeypatch, capsys):
    o = Options(engine="numpy", models_dir=str(tmp_path))
    models = load.new_models_of(o, quiet=True)
    models.specs["target"] = Mock()  # its small files are open, as --fast asks for its size
    monkeypatch.setattr(load, "find_files", Mock(side_effect=UserError("no network")))
    assert refusal(load.load, o, models) == "no network"
    assert "6.7 GB will be downloaded from" in capsys.readouterr().err


@pytest.mark.parametrize("variable", [*download.VARIABLES, None])
def test_a_companys_certificate_in_any_variable_counts_for_all(variable, tmp_path, monkeypatch):
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "company.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    for name in download.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(certificate))
    server = Server({PATH: WEIGHTS})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url, path = f"https://127.0.0.1:{server.server_port}{PATH}", str(tmp_path / "weights")
    with served(server):
        if variable:
            download.download(url, path)
            assert os.environ["SSL_CERT_FILE"] == str(certificate)  # which the hub's library reads
        else:
            assert "name its file: SSL_CERT_FILE=company.pem" in refusal(download.download, url, path)
            monkeypatch.setenv("CURL_CA_BUNDLE", "missing.pem")
            assert refusal(download.download, url, path).startswith("CURL_CA_BUNDLE is missing.pem, which is not there")
