"""--serve: the answers of the workbench, and to whom it answers."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from types import SimpleNamespace

import pytest
from speculative.cli.flags import all_flags, parse, with_values
from test_flags import refused
from tiny import ROOT, refusal

from speculative.cli.serve import serve
from speculative.measure.page import sha256
from speculative.session import Session

pytest.importorskip("starlette")
from speculative.cli.workbench import LABELS, MOST_RUNS, Workbench, application

ADDRESS = "127.0.0.1:8000"
PROMPT = "the thing in"
ORIGIN = {"origin": f"http://{ADDRESS}"}


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

    return TestClient(application(bench), base_url=f"http://{ADDRESS}")


def ask(client, prompt=PROMPT, headers=ORIGIN, **values):
    values = {"n_tokens_to_generate": 12} | values
    body = {"prompt": prompt, "values": {name: str(value) for name, value in values.items()}}
    return client.post("/decode", headers=headers, json=body)


def events(text):
    """A stream of server-sent events -> [(kind, value)]"""
    found = [part.split("\n") for part in text.split("\n\n") if part]
    assert all(len(lines) == 2 and lines[0][:7] == "event: " and lines[1][:6] == "data: " for lines in found)
    return [(kind[7:], json.loads(data[6:])) for kind, data in found]


# ---- What is answered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"K": "auto"}, {"temperature": 1, "top_p": 0.9, "seed": 7, "K": 3}])
def test_the_steps_of_a_decode_and_its_run(client, pair, flags):
    answer = ask(client, **flags)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *steps, (last, summary) = events(answer.text)
    assert last == "done"
    assert {kind for kind, _ in steps} == {"step"}
    document = client.get("/runs/1/json").json()
    kept = client.get("/runs/1/steps").json()
    for name in ("autoregressive", "speculative"):
        [sample] = document[name]["samples"]
        for mine in ([step for _, step in steps if step[0] == name], [step for step in kept if step[0] == name]):
            tokens = [token for _, tokens, *_ in mine for token in tokens]
            assert [token[:2] for token in tokens] == [
                *map(list, zip(sample["pieces"], sample["origins"], strict=True))
            ]
            assert 0 < mine[-1][-1] <= 1.001 * document[name]["seconds"]
    if "auto" not in flags.values():
        [expected] = pair.changed(**flags).compare(PROMPT, 12).document["speculative"]["samples"]
        assert document["speculative"]["samples"][0]["tokens"] == expected["tokens"]
    assert summary["values"].items() >= {"prompt": PROMPT, "n_tokens_to_generate": "12"}.items()
    assert summary["decoders"] == {name: [12, document[name]["seconds"]] for name in summary["decoders"]}
    page = client.get("/runs/1/page")
    assert page.headers["content-type"].startswith("text/html")
    assert "<h1>" in page.text
    assert client.get("/runs").json() == [summary]  # for a page that is loaded again, and for other tabs


def test_an_empty_prompt_is_that_of_python(client, pair):
    assert events(ask(client, prompt="").text)[-1][0] == "done"
    document = client.get("/runs/1/json").json()
    expected = pair.compare("", 12).document
    assert document["prompt"] == expected["prompt"] == {"text": "", "tokens": [pair.encoder.eot]}
    assert document["speculative"]["samples"][0]["tokens"] == expected["speculative"]["samples"][0]["tokens"]


@pytest.mark.parametrize("name", ["autoregressive", "speculative"])
def test_one_decoder_alone(client, pair, name):
    """Its text is the same as beside the other decoder, and no speedup is shown."""
    *steps, (last, summary) = events(ask(client, only=name, temperature=1).text)
    assert last == "done"
    assert {step[0] for _, step in steps} == {name} == {step[0] for step in client.get("/runs/1/steps").json()}
    run = client.get("/runs/1/json").json()
    both = pair.changed(temperature=1).compare(PROMPT, 12).document
    assert run[name]["samples"][0]["tokens"] == both[name]["samples"][0]["tokens"]
    assert summary["speedup"] is None
    assert summary["decoders"] == {name: [12, run[name]["seconds"]]}


@pytest.mark.parametrize("rule", ["block", "lenient:0.5", "typical:0.1"])
def test_each_rule_can_be_chosen(client, rule):
    *_, (last, summary) = events(ask(client, accept=rule, temperature=1).text)
    assert (last, summary["values"]["accept"]) == ("done", rule)


def test_the_page_has_the_options_with_their_help_and_keeps_its_policy(client, pair):
    """The policy allows nothing but the page's own style and script, and requests to the server."""
    html = client.get("/").text
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
    help = {name: all_flags()[name].help_now() for name in LABELS}
    assert {field["name"]: field["help"] for field in data["fields"]} == help
    assert all(not field["choices"] or field["value"] in field["choices"] for field in data["fields"])
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', html)[1]
    assert dict(rule.strip().split(" ", 1) for rule in policy.split(";")) == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": f"'{sha256(re.search(r'<style>(.*?)</style>', html, re.DOTALL)[1])}'",
        "script-src": f"'{sha256(re.search(r'<script>(.*?)</script>', html, re.DOTALL)[1])}'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_only_so_many_runs_are_kept_and_others_are_not_found(bench, client):
    for _ in range(MOST_RUNS + 2):
        bench.decode(PROMPT, {"n_tokens_to_generate": "1"}, deque(), threading.Event())
    assert client.get("/runs/3/page").status_code == client.get(f"/runs/{MOST_RUNS + 2}/page").status_code == 200
    for name in ("2/page", "0/json", "-1/page", "..%2f3/page", "9999999/steps", "../main.py"):
        assert client.get(f"/runs/{name}").status_code == 404


# ---- To whom ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "attacker.example:8000", "origin": "http://attacker.example:8000"}, 400),  # DNS rebinding
        ({"host": "127.0.0.1.attacker.example"}, 400),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "http://127.0.0.1:8001"}, 403),  # another program of this machine
        ({"origin": "null"}, 403),  # a sandboxed frame
    ],
)
def test_only_the_page_itself_can_ask(bench, client, headers, status):
    assert ask(client, headers=ORIGIN | headers).status_code == status
    assert len(bench.runs) == (status == 200)
    if status == 400:
        assert client.get("/runs", headers=headers).status_code == 400


def test_a_request_sets_no_option_that_the_form_does_not_have(client):
    for name in ("prompt_file", "ngram_text", "html", "models_dir"):
        assert ask(client, **{name: "/etc/passwd"}).status_code == 400


@pytest.mark.parametrize(
    ("prompt", "values", "line"),
    [
        (PROMPT, {"temperature": "hot"}, "--temperature must be a number of at least 0, not 'hot'"),
        (PROMPT, {"drafter": "../heads"}, "unknown drafter '..'"),
        ("x" * 200, {}, "the prompt's 200 tokens and 12 more exceed the context"),
    ],
)
def test_options_are_checked_as_the_command_lines_are(client, prompt, values, line):
    [(kind, told)] = events(ask(client, prompt, **values).text)
    assert kind == "error"
    assert told.startswith(line)
    assert ask(client).status_code == 200  # and the next one is decoded


# ---- One at a time ---------------------------------------------------------------------------------------------------


class Scripted:
    """A session that decodes until it is allowed to end."""

    def __init__(self):
        self.options = SimpleNamespace(n_tokens_to_generate=4, only=None)
        self.go_on = threading.Semaphore(0)
        self.running = []

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
                    raise RuntimeError("the end")
        finally:
            self.running.remove(prompt)


async def first(stream, kind):
    """The first event of this kind."""
    while True:
        for found in events(await asyncio.wait_for(stream.__anext__(), 60)):
            if found[0] == kind:
                return found


def test_one_decodes_and_the_others_wait():
    async def session():
        pair = Scripted()
        bench = Workbench(pair, all_flags())
        streams = [bench.events(prompt, {}) for prompt in "abc"]
        await first(streams[0], "step")
        await first(streams[1], "waiting")
        await first(streams[2], "waiting")
        assert pair.running == ["a"]
        await streams[1].aclose()  # a page that waits may be closed
        pair.go_on.release()
        assert await first(streams[0], "error") == ("error", "RuntimeError: the end")
        await streams[0].aclose()
        await first(streams[2], "step")
        assert pair.running == ["c"]
        await streams[2].aclose()  # and so may a page that decodes
        while pair.running:
            await asyncio.sleep(0.01)

    asyncio.run(session())


# ---- The flag --------------------------------------------------------------------------------------------------------


def test_the_port():
    assert with_values(["--serve"]) == ["--serve=8000"]
    assert with_values(["--serve", "--demo"]) == ["--serve=8000", "--demo=True"]
    assert with_values(["--serve", "9000"]) == ["--serve=9000"]
    for value in ("65536", "-1", "x", "0.0.0.0:8000", ""):
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
        body = json.dumps({"prompt": "the", "values": {"n_tokens_to_generate": "100", "drafter": "model/ngram"}})
        asking.request("POST", "/decode", body, {"origin": f"http://{host}", "content-type": "application/json"})
        assert any(line.startswith(b"event: step") for line in asking.getresponse())
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (128 + number, "")
        assert err.splitlines()[-1] == line
        assert "Traceback" not in err
    finally:
        process.kill()
