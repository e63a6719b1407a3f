"""--serve: the answers of the workbench, and to whom it answers."""

import asyncio
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque

import pytest
from tiny import ROOT, refusal

from speculative.cli.command import parse
from speculative.measure.page import sha256
from speculative.options import FIELDS
from speculative.session import Session

pytest.importorskip("uvicorn")
from speculative.cli.workbench import LABELS, MOST_RUNS, Workbench, application, serve

ADDRESS = "127.0.0.1:8000"
PROMPT = "the thing in"
ORIGIN = {"origin": f"http://{ADDRESS}"}
DECODERS = ("autoregressive", "speculative")


@pytest.fixture(scope="module")
def pair(tiny_pair):
    sizes = {"draft_model_size": "draft", "target_model_size": "target", "models_dir": str(tiny_pair)}
    return Session(parse(sizes | {"threads": "1", "prompt": PROMPT}))


@pytest.fixture
def bench(pair):
    return Workbench(pair)


def client_of(bench):
    pytest.importorskip("httpx2")
    from starlette.testclient import TestClient

    return TestClient(application(bench), base_url=f"http://{ADDRESS}")


@pytest.fixture
def client(bench):
    return client_of(bench)


def ask(client, prompt=PROMPT, headers=ORIGIN, **values):
    values = {"prompt": prompt, "n_tokens_to_generate": 12} | values
    return client.post("/decode", headers=headers, json={name: str(value) for name, value in values.items()})


def events(text):
    """A stream of server-sent events -> [(kind, value)]"""
    found = [re.fullmatch("event: (.*)\ndata: (.*)", part) for part in text.split("\n\n") if part]
    return [(one[1], json.loads(one[2])) for one in found]


# ---- The answers -----------------------------------------------------------------------------------------------------

HOW = [{}, {"K": "auto"}, {"temperature": 1, "top_p": 0.9, "seed": 7, "accept": "block"}]


@pytest.mark.parametrize("options", HOW, ids=str)
def test_the_steps_of_a_decode_and_its_run(client, pair, options, repeating):
    answer = ask(client, **options)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *steps, (last, summary) = events(answer.text)
    assert (last, {kind for kind, _ in steps}) == ("done", {"step"})
    document = client.get("/runs/1/json").json()
    kept = client.get("/runs/1/steps").json()
    assert {step[0] for _, step in steps} == {*DECODERS} == {step[0] for step in kept}
    for name in DECODERS:
        [sample] = document[name]["samples"]
        expected = [*map(list, zip(sample["pieces"], sample["origins"], strict=True))]
        for of in (kept,) if "K" in options else ([step for _, step in steps], kept):  # auto: by the times of a run
            mine = [step for step in of if step[0] == name]
            assert [token[:2] for step in mine for token in step[1]] == expected
        assert 0 < mine[-1][-1] <= 1.001 * document[name]["seconds"]  # of the run that is kept, the median
        if "K" not in options:
            both = pair.changed(**options).compare(PROMPT, 12, repeats=1).document
            assert sample["tokens"] == both[name]["samples"][0]["tokens"]
    asked = {"prompt": PROMPT, "n_tokens_to_generate": 12} | options
    assert summary["values"].items() >= {name: str(value) for name, value in asked.items()}.items()
    assert summary["decoders"] == {name: [12, document[name]["seconds"]] for name in DECODERS}
    assert client.get("/runs").json() == [summary]  # for a page that is loaded again, and for other tabs
    assert client.get("/runs/1/page").status_code == 200
    assert summary["doubtful"] or summary["speedup"] <= document["figures"]["tokens_per_iteration"]
    assert document["figures"]["runs"] > 1  # half a second of a decode this short


def test_the_page_has_the_options_with_their_help_and_keeps_its_policy(client, pair):
    """The policy allows nothing but the page's own style and script, and requests to the server."""
    html = client.get("/").text
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
    assert data["values"]["prompt"] == PROMPT
    assert {field["name"]: field["help"] for field in data["fields"]} == {n: FIELDS[n].metadata["help"] for n in LABELS}
    assert all(not field["choices"] or data["values"][field["name"]] in field["choices"] for field in data["fields"])
    assert all(parse({field["name"]: choice or None}) for field in data["fields"] for choice in field["choices"])
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', html)[1]
    style, script = (re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)[1] for tag in ("style", "script"))
    rules = {"default-src": "'none'", "img-src": "data:", "style-src": f"'{sha256(style)}'"}
    rules |= {"script-src": f"'{sha256(script)}'", "connect-src": "'self'"}
    rules |= {"base-uri": "'none'", "form-action": "'none'"}
    assert dict(rule.strip().split(" ", 1) for rule in policy.split(";")) == rules


def test_only_so_many_runs_are_kept_and_others_are_not_found(bench, client, monkeypatch):
    run = bench.session.compare(PROMPT, 1, repeats=1)
    monkeypatch.setattr(Session, "compare", lambda *_, **__: run)
    for _ in range(MOST_RUNS + 2):
        bench.decode({"prompt": PROMPT}, deque(), threading.Event())
    assert client.get("/runs/3/page").status_code == client.get(f"/runs/{MOST_RUNS + 2}/page").status_code == 200
    for name in ("2/page", "0/json", "-1/page", "..%2f3/page", "9999999/steps", "../main.py"):
        assert client.get(f"/runs/{name}").status_code == 404


def test_a_password_is_never_shown(tiny_pair):
    sizes = {"draft_model_size": "missing", "target_model_size": "target", "models_dir": str(tiny_pair)}
    source = "http://user:s3cret@127.0.0.1:1/?token=k3y"
    session = Session(parse(sizes | {"source": source, "drafter": "prompt_lookup", "threads": "1"}))
    client = client_of(Workbench(session))
    done, refused = ask(client), ask(client, drafter="model")  # which has to be downloaded
    assert [events(answer.text)[-1][0] for answer in (done, refused)] == ["done", "error"]
    answers = [done, refused, *map(client.get, ("/", "/runs", "/runs/1/json", "/runs/1/page"))]
    assert all(answer.status_code == 200 and not re.search("s3cret|k3y", answer.text) for answer in answers)


# ---- To whom ---------------------------------------------------------------------------------------------------------


ELSEWHERE = {"host": "attacker.example:8000", "origin": "http://attacker.example:8000"}  # DNS rebinding
REFUSED = [(ELSEWHERE, 400), ({"host": "127.0.0.1.attacker.example"}, 400)]
# another site, another program of this machine, a sandboxed frame
REFUSED += [({"origin": origin}, 403) for origin in ("http://attacker.example", "http://127.0.0.1:8001", "null")]


def test_only_the_page_itself_can_ask(bench, client):
    for headers, status in REFUSED:
        assert ask(client, headers=ORIGIN | headers).status_code == status
        assert client.get("/runs", headers=headers).status_code == (400 if status == 400 else 200)
    assert bench.runs == {}
    assert ask(client, headers={"host": "localhost:8000", "origin": "http://localhost:8000"}).status_code == 200
    assert len(bench.runs) == 1


def test_a_request_sets_no_option_that_the_form_does_not_have(client):
    for name in ("prompt_file", "ngram_text", "html", "models_dir"):
        assert ask(client, **{name: "/etc/passwd"}).status_code == 400


def test_options_are_checked_as_the_command_lines_are(client):
    for prompt, values, line in (
        (PROMPT, {"temperature": "hot"}, "--temperature must be a number of at least 0, not 'hot'"),
        (PROMPT, {"drafter": "../heads"}, "--drafter '..' is unknown"),
        ("x" * 200, {}, "the prompt's 200 tokens and 12 more exceed the context"),
    ):
        [(kind, told)] = events(ask(client, prompt, **values).text)
        assert (kind, told[: len(line)]) == ("error", line)
    assert events(ask(client).text)[-1][0] == "done"  # and the next one is decoded


# ---- One at a time ---------------------------------------------------------------------------------------------------


class Endless:
    """In place of Session.compare: decodes again and again, until it is stopped or allowed to fail."""

    def __init__(self, monkeypatch):
        self.fail = threading.Semaphore(0)
        self.running, self.most = [], 0
        monkeypatch.setattr(Session, "compare", lambda *given, watch: self.compare(*given, watch))

    def compare(self, session, prompt, n, watch):
        self.running.append(prompt)
        self.most = max(self.most, len(self.running))
        try:
            while not self.fail.acquire(timeout=0.1):
                session.record("speculative", [prompt], n, 1, False, watch)
            raise RuntimeError("the end")
        finally:
            self.running.remove(prompt)


async def first(stream, kind):
    """The first event of this kind."""
    while True:
        for found in events(await asyncio.wait_for(stream.__anext__(), 60)):
            if found[0] == kind:
                return found


def test_one_decodes_and_the_others_wait(bench, monkeypatch):
    endless = Endless(monkeypatch)

    async def requests():
        streams = [bench.events({"prompt": prompt, "n_tokens_to_generate": "4"}) for prompt in "abcd"]
        await first(streams[0], "step")
        for stream in streams[1:]:
            await first(stream, "waiting")
        assert endless.running == ["a"]
        await streams[1].aclose()  # a page that waits may be closed
        endless.fail.release()
        assert await first(streams[0], "error") == ("error", "RuntimeError: the end")
        await streams[0].aclose()
        await first(streams[2], "step")
        assert endless.running == ["c"]
        await streams[2].aclose()  # and so may a page that decodes: the next one waits until its thread has ended
        await first(streams[3], "step")
        await streams[3].aclose()
        while endless.running:
            await asyncio.sleep(0.01)

    asyncio.run(requests())
    assert (endless.most, bench.runs) == (1, {})


# ---- The server ------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken(pair):
    with socket.create_server(("127.0.0.1", 0)) as other:
        line = refusal(serve, pair, other.getsockname()[1])
    assert re.fullmatch("cannot serve at port [0-9]+: .*; --serve 0 takes a free one", line)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_it_decodes(pair_words, number):
    command = [sys.executable, "main.py", "--serve", "0", *pair_words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        host = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/", process.stdout.readline().strip())[1]
        asking = http.client.HTTPConnection(host)
        asking.request("POST", "/decode", json.dumps({"prompt": "the", "n_tokens_to_generate": "100"}))
        assert any(line.startswith(b"event: step") for line in asking.getresponse())
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "interrupted\n" if number == signal.SIGINT else "")
        assert process.returncode == 128 + number
    finally:
        process.kill()
