"""--serve: what the workbench answers, and to whom."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest
from speculative.cli.flags import all_flags, parse, with_values
from test_flags import refused
from tiny import ROOT, refusal

from speculative.cli.serve import serve
from speculative.measure.page import sha256
from speculative.session import Session
from speculative.support.errors import UserError

pytest.importorskip("starlette")
from starlette.exceptions import HTTPException

from speculative.cli.guard import MOST_CONNECTIONS
from speculative.cli.workbench import FIELDS, MOST_BYTES, MOST_DECODES, MOST_RUNS, Workbench, application, asked

ADDRESS = "127.0.0.1:8000"
PROMPT = "the thing in"
ASKS = {"origin": f"http://{ADDRESS}", "content-type": "application/json"}


@pytest.fixture(scope="module")
def pair(tiny_pair):
    given = {"draft_model_size": "draft", "target_model_size": "target", "models_dir": tiny_pair, "threads": 1}
    return Session(parse(given), given, parse)


@pytest.fixture
def bench(pair):
    return Workbench(pair, all_flags())


@pytest.fixture
def client(bench):
    pytest.importorskip("httpx2")
    from starlette.testclient import TestClient

    return TestClient(application(bench, ADDRESS), base_url=f"http://{ADDRESS}")


def ask(client, prompt=PROMPT, headers=ASKS, **flags):
    flags = {"n_tokens_to_generate": 12} | flags
    body = {"prompt": prompt, "flags": {name: str(value) for name, value in flags.items()}}
    return client.post("/decode", headers=headers, content=json.dumps(body))


def events(text):
    """A stream of server-sent events -> [(kind, value)], but for those that say that nothing has happened yet."""
    found = [part.split("\n") for part in text.split("\n\n") if part]
    assert all(len(lines) == 2 and lines[0][:7] == "event: " and lines[1][:6] == "data: " for lines in found)
    found = [(kind[7:], json.loads(data[6:])) for kind, data in found]
    return [one for one in found if one != ("waiting", 0)]


# ---- What is answered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"K": "auto"}, {"temperature": 1, "top_p": 0.9, "seed": 7, "K": 3}])
def test_the_steps_of_a_decode_and_its_run(client, pair, flags):
    answer = ask(client, **flags)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *steps, (last, summary) = events(answer.text)
    assert last == "done"
    assert {kind for kind, _ in steps} == {"step"}
    document = client.get("/runs/1.json").json()
    for name in ("autoregressive", "speculative"):
        mine = [step for _, step in steps if step["decoder"] == name]
        sample = document[name]["samples"][0]
        assert "".join(text for step in mine for text, _ in step["tokens"]) == sample["text"]
        assert [origin.partition(":")[0] for s in mine for _, origin in s["tokens"] if origin] == sample["origins"]
        assert 0 < mine[-1]["end"] <= document[name]["seconds"]
    if "auto" not in flags.values():
        [expected] = pair.changed(**flags).compare(PROMPT, 12).document["speculative"]["samples"]
        assert document["speculative"]["samples"][0]["tokens"] == expected["tokens"]
    assert (summary["number"], summary["prompt"], summary["n_tokens_to_generate"]) == ("1", PROMPT, 12)
    page = client.get("/runs/1")
    assert page.headers["content-type"].startswith("text/html")
    assert "<h1>" in page.text
    assert client.get("/runs").json() == [summary]  # for a page that is loaded again, and for other tabs
    for name in ("autoregressive", "speculative"):
        assert summary[name] == {"tokens": 12, "seconds": document[name]["seconds"]}


def test_an_empty_prompt_is_that_of_python(client, pair):
    assert events(ask(client, prompt="").text)[-1][0] == "done"
    document = client.get("/runs/1.json").json()
    expected = pair.compare("", 12).document
    assert document["prompt"] == expected["prompt"] == {"text": "", "tokens": [pair.encoder.eot]}
    assert document["speculative"]["samples"][0]["tokens"] == expected["speculative"]["samples"][0]["tokens"]


@pytest.mark.parametrize("name", ["autoregressive", "speculative"])
def test_one_decoder_alone(client, pair, name):
    """Its text and its times are those of both; nothing is compared, and there is no page."""
    *steps, (last, summary) = events(ask(client, only=name, temperature=1).text)
    assert last == "done"
    assert {step["decoder"] for _, step in steps} == {name}
    run = client.get("/runs/1.json").json()
    both = pair.changed(temperature=1).compare(PROMPT, 12).document
    assert run[name]["samples"][0]["tokens"] == both[name]["samples"][0]["tokens"]
    [other] = {"autoregressive", "speculative"} - {name}
    assert (run[other]["samples"], summary[other], summary["speedup"]) == ([], None, None)
    assert summary[name] == {"tokens": 12, "seconds": run[name]["seconds"]}
    page = client.get("/runs/1")
    assert (page.status_code, page.text) == (404, "one decoder alone has no page")


def test_the_page_has_the_flags_with_their_help_and_keeps_its_policy(client, pair):
    """Nothing but its own style and script, and requests to where it came from."""
    html = client.get("/").text
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
    flags = [
        {"name": name, "value": getattr(pair.options, name), "help": all_flags()[name].help_now()} for name in FIELDS
    ]
    assert (data["fields"], data["target"], data["draft"]) == (flags, "target", "draft")
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', html)[1]
    assert dict(rule.strip().split(" ", 1) for rule in policy.split(";")) == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": f"'{sha256(re.search(r'<style>(.*?)</style>', html, re.DOTALL)[1])}'",
        "script-src": f"'{sha256(re.search(r'<script>(.*?)</script>', html, re.DOTALL)[1])}'",
        "connect-src": "'self'",
        "frame-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    for path in ("/", "/runs/1", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == "frame-ancestors 'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_only_so_many_runs_are_kept_and_others_are_not_found(bench, client):
    for _ in range(MOST_RUNS + 2):
        bench.decodes.append(threading.current_thread())
        bench.decode(PROMPT, {"n_tokens_to_generate": "1"}, deque(), threading.Event())
    assert client.get("/runs/3").status_code == client.get(f"/runs/{MOST_RUNS + 2}").status_code == 200
    for name in ("2", "0", "3.html", "3.", "-1", "..%2f3", "%2e%2e/main.py", "9" * 5000, "3.json.", "é"):
        assert client.get(f"/runs/{name}").status_code == 404


# ---- Whom it answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"host": "attacker.example:8000", "origin": "http://attacker.example:8000"}, 421),  # DNS rebinding
        ({"host": "127.0.0.1:8001", "origin": "http://127.0.0.1:8001"}, 421),
        ({"host": "127.0.0.1:8000.attacker.example"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "http://localhost:8000"}, 403),  # another origin than the host's
        ({"origin": "https://127.0.0.1:8000"}, 403),
        ({"origin": "null"}, 403),  # a sandboxed frame's
        ({"origin": None}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),  # which a form may send without asking
        ({"content-type": None}, 415),
    ],
)
def test_whose_requests_are_decoded(client, headers, status):
    headers = {name: value for name, value in (ASKS | headers).items() if value is not None}
    answer = ask(client, headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert answer.text.isprintable()
        assert len(answer.text) < 100
        assert client.get("/runs/1").status_code == 404


def test_who_may_read(client):
    ask(client)
    for path in ("/", "/runs", "/runs/1", "/runs/1.json"):
        for headers, status in (
            ({}, 200),
            ({"sec-fetch-site": "none"}, 200),
            ({"host": "attacker.example"}, 421),
            ({"origin": "http://attacker.example"}, 403),
            ({"sec-fetch-site": "cross-site"}, 200 if path == "/" else 403),  # a link
        ):
            assert client.get(path, headers=headers).status_code == status
    assert client.post("/", headers=ASKS).status_code == 405
    assert client.get("/decode").status_code == 405
    assert client.get("/main.py").status_code == client.get("/../main.py").status_code == 404


BAD = [b"", b"{", b"[]", b"1", b"null", b'"x"', b'{"prompt": "x"}', b'{"flags": {}}', b"\xff", b"[" * 60_000]
BAD += [b'{"prompt": 1, "flags": {}}', b'{"prompt": NaN, "flags": {}}', b'{"prompt": "\\ud800", "flags": {}}']
BAD += [b'{"prompt": "x", "flags": %s}' % flags for flags in (b"[]", b'{"K": 4}', b'{"K": null}')]
NOT_ASKED = (b"prompt_file", b"ngram_text", b"html", b"models_dir", b"self", b"main")
BAD += [b'{"prompt": "x", "flags": {"%s": "/etc/passwd"}}' % name for name in NOT_ASKED]


@pytest.mark.parametrize("body", BAD)
def test_what_is_no_request(client, body):
    answer = client.post("/decode", headers=ASKS, content=body)
    assert (answer.status_code, answer.text) == (400, 'a request is {"prompt": text, "flags": {flag: text}}')


def test_a_request_is_bounded(bench, client):
    assert ask(client, prompt="x" * MOST_BYTES).status_code == 413
    assert ask(client, drafter="model/" * 17).status_code == 400
    bench.decodes += [threading.Thread()] * MOST_DECODES
    assert ask(client).status_code == 503
    bench.decodes.clear()
    assert ask(client).status_code == 200


def test_no_more_of_a_request_is_read_than_it_may_have():
    read = []

    class Request:
        headers = ASKS

        async def stream(self):
            for part in itertools.repeat(b" " * 4096):
                read.append(part)
                yield part

    with pytest.raises(HTTPException) as caught:
        asyncio.run(asked(Request()))
    assert caught.value.status_code == 413
    assert len(read) <= MOST_BYTES // 4096 + 1


@pytest.mark.parametrize(
    ("prompt", "flags", "line"),
    [
        (PROMPT, {"temperature": "hot"}, "--temperature must be a number of at least 0, not 'hot'"),
        (PROMPT, {"drafter": "../heads"}, "unknown drafter '..'"),
        ("x" * 200, {}, "the prompt's 200 tokens and 12 more exceed the context of 128 tokens"),
        ("", {"n_tokens_to_generate": "128"}, "the prompt's 1 tokens and 128 more exceed the context of 128 tokens"),
    ],
)
def test_flags_are_checked_as_the_command_lines_are(client, prompt, flags, line):
    [(kind, said)] = events(ask(client, prompt, **flags).text)
    assert kind == "error"
    assert said.startswith(line)
    assert said.isprintable()
    assert len(said) < 400
    assert ask(client).status_code == 200  # and the next one is decoded


# ---- One at a time ---------------------------------------------------------------------------------------------------


class Scripted:
    """A pair whose decodes go on until they are allowed to end."""

    def __init__(self, fails=None):
        self.options = SimpleNamespace(n_tokens_to_generate=4, only=None)
        self.go_on = threading.Semaphore(0)
        self.running = []
        self.fails = fails

    def changed(self, **flags):
        return self

    def compare(self, prompt, n, watch):
        self.running.append(prompt)
        recorder = SimpleNamespace(seconds=0.5, now=SimpleNamespace(drafting=0.1, scoring=0.2))
        step = SimpleNamespace(text="a", pieces=["a"], origins=["bonus"])
        try:
            while True:
                watch("speculative", step, recorder)
                if self.go_on.acquire(timeout=0.02):
                    raise self.fails or RuntimeError("the end")
        finally:
            self.running.remove(prompt)


async def first(stream, kind):
    """The first event of this kind."""
    while True:
        for found in events(await asyncio.wait_for(stream.__anext__(), 60)):
            if found[0] == kind:
                return found


async def until(what):
    while not what():
        await asyncio.sleep(0.01)


def test_one_decodes_and_the_others_wait():
    async def session():
        pair = Scripted()
        bench = Workbench(pair, all_flags())
        streams = [bench.events(prompt, {}) for prompt in "abc"]
        await first(streams[0], "step")
        assert await first(streams[1], "waiting") == ("waiting", 1)
        assert await first(streams[2], "waiting") == ("waiting", 2)
        assert pair.running == ["a"]
        await streams[1].aclose()  # who waits may give up
        assert await first(streams[2], "waiting") == ("waiting", 1)
        pair.go_on.release()
        await first(streams[2], "step")
        assert pair.running == ["c"]
        await streams[2].aclose()
        await until(lambda: not bench.decodes)
        assert pair.running == []

    asyncio.run(session())


@pytest.mark.parametrize(
    ("error", "line"),
    [(UserError("one line"), "one line"), (MemoryError(), "MemoryError: "), (ValueError("oh"), "ValueError: oh")],
)
def test_a_decode_that_fails_says_so(error, line):
    async def session():
        pair = Scripted(error)
        bench = Workbench(pair, all_flags())
        pair.go_on.release()
        assert await first(bench.events("a", {}), "error") == ("error", line)
        await until(lambda: not bench.decodes)

    asyncio.run(session())


# ---- Connections -----------------------------------------------------------------------------------------------------


def connect(address, words):
    """Says this -> the socket."""
    host, port = address.split("/")[2].split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(words)
    return connection


def hung_up(connection):
    """Waits for what comes: whether it is the end."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # there was something that nobody had read
        return True


def request_of(address):
    """A request that decodes."""
    body = json.dumps({"prompt": PROMPT, "flags": {"n_tokens_to_generate": "4"}}).encode()
    host = address.split("/")[2]
    head = f"POST /decode HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def endless():
    return Workbench(Scripted(), all_flags())


@pytest.mark.parametrize("said", [0, 10, -1], ids=["nothing", "half a head", "all but the last byte"])
def test_who_says_nothing_shuts_nobody_out(bench, serving, said):
    address = serving(bench, slow=3600)
    request = request_of(address)
    first = connect(address, request[:-1])
    with contextlib.ExitStack() as others:
        for _ in range(3 * MOST_CONNECTIONS):
            others.enter_context(connect(address, request[:said]))
        with connect(address, request) as owner, owner.makefile("rb") as answer:
            lines = answer.readlines()
    assert lines[0] == b"HTTP/1.1 200 OK\r\n"
    assert b"event: done\n" in lines
    assert hung_up(first)


@pytest.mark.parametrize("said", [0, 10, -1], ids=["nothing", "half a head", "all but the last byte"])
def test_a_request_has_to_arrive_in_time(bench, serving, said):
    address = serving(bench, slow=0.1)
    with connect(address, request_of(address)[:said]) as connection:
        assert hung_up(connection)


def test_what_runs_is_not_cut_off_by_who_comes_later(endless, serving):
    address = serving(endless, slow=0.1)
    with connect(address, request_of(address)) as owner, owner.makefile("rb") as answer:
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        with contextlib.ExitStack() as others:
            for _ in range(3 * MOST_CONNECTIONS):
                others.enter_context(connect(address, b"GET"))
            assert hung_up(others.enter_context(connect(address, b"")))  # by now a request would be late
        endless.session.go_on.release()
        assert b"event: error\n" in answer.readlines()


def test_of_many_requests_that_are_complete_together_so_many_have_a_place(endless, serving):
    address = serving(endless)
    request = request_of(address)
    with contextlib.ExitStack() as them:
        asking = [them.enter_context(connect(address, request[:-1])) for _ in range(28)]
        for connection in asking:
            connection.sendall(request[-1:])
        statuses = [connection.recv(12) for connection in asking]
    assert sorted(statuses) == [b"HTTP/1.1 200"] * MOST_DECODES + [b"HTTP/1.1 503"] * (28 - MOST_DECODES)
    while endless.decodes:  # each of them is gone with who had asked for it
        time.sleep(0.01)


# ---- The flag --------------------------------------------------------------------------------------------------------


def test_the_port():
    assert with_values(["--serve"]) == ["--serve=8000"]
    assert with_values(["--serve", "--demo"]) == ["--serve=8000", "--demo=True"]
    assert with_values(["--serve", "9000"]) == ["--serve=9000"]
    for value in ("80", "1023", "65536", "-1", "x", "0.0.0.0:8000", "", "00"):
        assert refused(serve=value).startswith("--serve must be")
    for other in ({"interactive": "True"}, {"prompt": "a"}, {"html": "a.html"}, {"verify": "True"}):
        assert "cannot be combined" in refused(serve="8000", **other)


def test_a_port_that_is_taken(pair):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refusal(serve, pair, all_flags(), port)
        assert line.startswith(f"cannot serve at port {port}: ")
        assert line.endswith("; --serve 0 takes one that is free")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_ends_it_while_it_decodes(pair_words, number, line):
    command = [sys.executable, "main.py", "--serve", "0", *pair_words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip()
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        host = address.split("/")[2]
        asking = http.client.HTTPConnection(host)
        body = json.dumps({"prompt": "the", "flags": {"n_tokens_to_generate": "100", "drafter": "model/ngram"}})
        asking.request("POST", "/decode", body, {"origin": f"http://{host}", "content-type": "application/json"})
        assert any(line.startswith(b"event: step") for line in asking.getresponse())
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (128 + number, "")
        assert err.splitlines()[-1] == line
        assert "Traceback" not in err
    finally:
        process.kill()
